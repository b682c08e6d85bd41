//! compact: giving file space back.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::json;

use super::store::{self, LARGE_POOL};
use crate::args::CompactArgs;
use crate::failure::Failure;
use crate::output::{Output, size};

/// Bytes that the file systems have given these files; block devices count as none.
fn allocated(paths: &[PathBuf]) -> u64 {
    let blocks = |path| fs::metadata(path).map_or(0, |found| found.blocks());
    paths.iter().map(blocks).sum::<u64>() * 512
}

pub(crate) fn compact(args: &CompactArgs, out: &mut Output) -> Result<(), Failure> {
    let store = store::write(&args.store, LARGE_POOL)?;
    let paths = store.paths().to_vec();
    let allocated_before = allocated(&paths);
    let gained = store.compact()?;
    store.close()?;
    let allocated_after = allocated(&paths);
    if out.json() {
        return out.document(&json!({
            "bytes_before": gained.bytes_before,
            "bytes_after": gained.bytes_after,
            "allocated_before": allocated_before,
            "allocated_after": allocated_after,
            "bytes_discarded": gained.bytes_discarded,
        }));
    }
    let (before, after) = (size(gained.bytes_before), size(gained.bytes_after));
    let is_shorter = gained.bytes_before != gained.bytes_after;
    if is_shorter {
        out.line(&format!("{before} -> {after}"))?;
    }
    if gained.bytes_discarded > 0 {
        let bytes = size(gained.bytes_discarded);
        return out.line(&format!("the drive was asked to discard {bytes}"));
    }
    if allocated_after < allocated_before.min(gained.bytes_after) {
        let (length, holds) = (after, size(allocated_after));
        return out.line(&format!("{length}, of which {holds} are allocated"));
    }
    match is_shorter {
        true => Ok(()),
        false => out.line(&format!("{after}: nothing to give back")),
    }
}
