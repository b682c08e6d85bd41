//! Comparing every stored byte with the file that it came from.

use std::fs::{self, File};
use std::sync::Arc;
use std::time::SystemTime;

use isobath::{Store, Tree};
use serde::Serialize;

use crate::files::read_full;
use crate::load::{Files, SMALL_FILE, SourceFile, for_each_file};
use crate::pipeline::InFlight;
use crate::{LabError, Monitor, Stage, Unit};

/// The counts of a comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Files whose every byte was found in the store.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that changed on disk since they were stored.
    pub changed: u64,
    /// Files that cannot be read and are not in the store either.
    pub unreadable: u64,
}

impl Verified {
    fn add(&mut self, other: Verified) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.changed += other.changed;
        self.unreadable += other.unreadable;
    }
}

/// How many bytes of a large value are compared at a time.
const PIECE: usize = 1 << 20;
/// Threads that read files.
const READERS: usize = 4;

/// Compares the tree with the files, byte by byte. A file that was modified
/// after `started` may differ.
pub(super) fn verify(
    store: &Store,
    tree: &Tree,
    files: &Files,
    started: SystemTime,
    monitor: &dyn Monitor,
) -> Result<Verified, LabError> {
    monitor.begin(Stage {
        name: "verifying files",
        total: Some(files.bytes),
        unit: Unit::Bytes,
    });
    let parts = for_each_file(files, READERS, |claim| {
        let mut verified = Verified::default();
        let mut in_flight = InFlight::new(store);
        while let Some(file) = claim() {
            monitor.check()?;
            verify_one(tree, file, started, &mut in_flight, &mut verified)?;
            monitor.advance(file.bytes);
        }
        in_flight.finish(|part| verified.add(part))?;
        Ok(verified)
    })?;
    let mut total = Verified::default();
    parts.into_iter().for_each(|part| total.add(part));
    Ok(total)
}

fn verify_one(
    tree: &Tree,
    file: &SourceFile,
    started: SystemTime,
    in_flight: &mut InFlight<'_, Verified>,
    verified: &mut Verified,
) -> Result<(), LabError> {
    if file.bytes > SMALL_FILE {
        verified.add(compare_large(tree, file, started)?);
        return Ok(());
    }
    let content = fs::read(&file.path).ok();
    let (tree, file) = (tree.clone(), Arc::new(file.clone()));
    in_flight.start(
        content.as_ref().map_or(0, Vec::len),
        move || {
            let stored = tree.get(&file.key)?;
            if content.is_some() && content == stored {
                return Ok(same(content.map_or(0, |c| c.len() as u64)));
            }
            differs(&file, content.is_some(), stored.is_some(), started)
        },
        |part| verified.add(part),
    )
}

fn same(bytes: u64) -> Verified {
    Verified {
        files: 1,
        bytes,
        ..Verified::default()
    }
}

/// Decides whether a difference is the engine's fault.
fn differs(
    file: &SourceFile,
    readable: bool,
    stored: bool,
    started: SystemTime,
) -> Result<Verified, LabError> {
    let untouched = fs::metadata(&file.path)
        .and_then(|meta| meta.modified())
        .is_ok_and(|modified| modified < started);
    match (readable, stored) {
        (false, false) => Ok(Verified {
            unreadable: 1,
            ..Verified::default()
        }),
        (true, stored) if untouched => Err(LabError::Verify(format!(
            "the store {} of {}",
            if stored {
                "holds other bytes"
            } else {
                "lost the content"
            },
            file.path.display()
        ))),
        _ => Ok(Verified {
            changed: 1,
            ..Verified::default()
        }),
    }
}

fn compare_large(
    tree: &Tree,
    file: &SourceFile,
    started: SystemTime,
) -> Result<Verified, LabError> {
    let input = File::open(&file.path).ok();
    let (Some(mut input), Some(mut stored)) = (input, tree.reader(&file.key)?) else {
        let readable = File::open(&file.path).is_ok();
        return differs(file, readable, tree.contains(&file.key)?, started);
    };
    let (mut ours, mut theirs) = (vec![0; PIECE], vec![0; PIECE]);
    let mut bytes = 0;
    loop {
        let from_store = read_full(&mut stored, &mut ours)
            .map_err(|e| LabError::streamed("read the stored copy of", &file.path, e))?;
        let Ok(from_file) = read_full(&mut input, &mut theirs) else {
            return differs(file, false, true, started);
        };
        if ours[..from_store] != theirs[..from_file] {
            return differs(file, true, true, started);
        }
        if from_store == 0 {
            return Ok(same(bytes));
        }
        bytes += from_store as u64;
    }
}

/// Reads the keys below `prefix` in order; answers how many there are.
pub(super) fn scan_prefix(tree: &Tree, prefix: &[u8]) -> Result<u64, LabError> {
    let mut count = 0;
    let mut last: Option<Vec<u8>> = None;
    for record in tree.prefix(prefix) {
        let (key, _) = record?;
        if !key.starts_with(prefix) || last.as_ref().is_some_and(|last| *last >= key) {
            return Err(LabError::Verify(format!(
                "a scan of `{}` met the key `{}` out of place",
                crate::escape(prefix),
                crate::escape(&key)
            )));
        }
        count += 1;
        last = Some(key);
    }
    Ok(count)
}
