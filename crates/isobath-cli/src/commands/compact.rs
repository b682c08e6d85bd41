//! compact: giving file space back.

use serde_json::json;

use super::store::{self, LARGE_POOL};
use crate::args::CompactArgs;
use crate::failure::Failure;
use crate::output::{Output, size};

pub(crate) fn compact(args: &CompactArgs, out: &mut Output) -> Result<(), Failure> {
    let store = store::write(&args.store, LARGE_POOL)?;
    let gained = store.compact()?;
    store.close()?;
    if out.json() {
        return out.document(&json!({
            "bytes_before": gained.bytes_before,
            "bytes_after": gained.bytes_after,
            "bytes_discarded": gained.bytes_discarded,
        }));
    }
    let (before, after) = (size(gained.bytes_before), size(gained.bytes_after));
    if gained.bytes_before != gained.bytes_after {
        out.line(&format!("{before} -> {after}"))?;
    }
    if gained.bytes_discarded > 0 {
        let bytes = size(gained.bytes_discarded);
        return out.line(&format!("the drive was asked to discard {bytes}"));
    }
    match gained.bytes_before == gained.bytes_after {
        true => out.line(&format!("{after}: nothing to give back")),
        false => Ok(()),
    }
}
