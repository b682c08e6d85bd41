//! info: a store's properties and contents.

use std::os::unix::fs::MetadataExt;

use isobath::{Store, StoreState, TreeStats};
use isobath_lab::{Sheet, escape};
use serde_json::json;

use super::store::{self, SMALL_POOL};
use crate::args::InfoArgs;
use crate::failure::Failure;
use crate::output::{Output, count, counted, size};

/// Bytes of a block of `st_blocks`.
const BLOCK: u64 = 512;

pub(crate) fn info(args: &InfoArgs, out: &mut Output) -> Result<(), Failure> {
    let info = store::info(&args.store)?;
    let store = store::read(&args.store, SMALL_POOL)?;
    let trees = store.trees()?.into_iter().map(|tree| {
        let stats = store.tree(&tree.name)?.stats()?;
        Ok((tree.name, stats))
    });
    let trees = trees.collect::<Result<Vec<_>, isobath::Error>>()?;
    let log_path = store.log_path();
    let files = files(&store);
    store.close()?;
    let mut all = TreeStats::default();
    all.is_exact = true;
    for (_, tree) in &trees {
        all.is_exact &= tree.is_exact;
        all.records += tree.records;
        all.key_bytes += tree.key_bytes;
        all.value_bytes += tree.value_bytes;
        all.bytes += tree.bytes;
    }
    let numbers = |stats: &TreeStats| {
        json!({
            "records": stats.records,
            "key_bytes": stats.key_bytes,
            "value_bytes": stats.value_bytes,
            "bytes": stats.bytes,
            "is_exact": stats.is_exact,
        })
    };
    if out.json() {
        let mut document = numbers(&all);
        let (state, pid) = match info.state {
            StoreState::Closed => ("closed", None),
            StoreState::InUse { pid } => ("in use", pid),
            _ => ("not closed", None),
        };
        document["state"] = state.into();
        document["pid"] = pid.into();
        document["limit_bytes"] = info.limit_bytes.into();
        document["log_path"] = log_path.map(|path| path.display().to_string()).into();
        document["files"] = files
            .iter()
            .map(|(path, length, allocated)| {
                json!({"path": path, "bytes": length, "allocated_bytes": allocated})
            })
            .collect();
        document["trees"] = trees
            .iter()
            .map(|(name, stats)| {
                let mut tree = numbers(stats);
                tree["name"] = name.as_str().into();
                tree
            })
            .collect();
        return out.document(&document);
    }
    let mut rows = Vec::new();
    for (path, length, allocated) in files {
        let length = size(length);
        let allocated = size(allocated);
        let file = format!("{path}: {length}, {allocated} of it allocated");
        rows.push(("file", file));
    }
    rows.push((
        "state",
        match info.state {
            StoreState::Closed => "closed".to_owned(),
            StoreState::InUse { pid: Some(pid) } => format!("open for writing by process {pid}"),
            StoreState::InUse { pid: None } => "open for writing by another process".to_owned(),
            _ => "not closed: `isobath recover`, or any verb that writes, recovers it".to_owned(),
        },
    ));
    rows.push(("limit", info.limit_bytes.map_or("none".to_owned(), size)));
    let log = log_path.map(|path| path.display().to_string());
    let log = log.unwrap_or_else(|| "in the store's own files".to_owned());
    rows.push(("log", log));
    rows.push((
        "records",
        format!(
            "{}{} in {}, {} of keys, {} of values",
            about(&all),
            count(all.records),
            counted(trees.len() as u64, "tree"),
            size(all.key_bytes),
            size(all.value_bytes)
        ),
    ));
    out.facts(&[], rows, false)?;
    if trees.is_empty() {
        return Ok(());
    }
    out.sheet(&Sheet::of(
        &trees,
        &[
            ("tree", |(name, _)| escape(name.as_bytes())),
            ("records", |(_, stats)| about(stats) + &count(stats.records)),
            ("keys", |(_, stats)| about(stats) + &size(stats.key_bytes)),
            ("values", |(_, stats)| {
                about(stats) + &size(stats.value_bytes)
            }),
            ("pages", |(_, stats)| about(stats) + &size(stats.bytes)),
        ],
    ))
}

/// Marks what is estimated.
fn about(stats: &TreeStats) -> String {
    if stats.is_exact { "" } else { "~" }.to_owned()
}

/// The files of a store, their lengths, and what the file system has given them.
fn files(store: &Store) -> Vec<(String, u64, u64)> {
    let files = store.paths().iter().map(|path| {
        let (length, allocated) = match path.metadata() {
            Ok(found) if found.is_file() => (found.len(), found.blocks() * BLOCK),
            // A block device has all that it is.
            _ => (store.stats().volume_bytes, store.stats().volume_bytes),
        };
        (path.display().to_string(), length, allocated)
    });
    files.collect()
}
