//! Loading a person's own data: directory trees, CSV and TSV, NDJSON, and
//! lines of `key<TAB>value`.

mod delimited;
mod directory;
mod lines;
mod ndjson;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use isobath::{LoadError, Loader, Tree};
use serde::Serialize;

pub use delimited::{Column, Delimited, Rows};
use directory::lock;
pub(crate) use directory::{Files, SMALL_FILE, SourceFile, find_files, for_each_file, load_files};
pub use directory::{Skipped, load_directory};
pub use lines::{LineFormat, Lines};

use crate::error::LabError;
pub use crate::files::{InputFile, must_be};
use crate::{Monitor, Stage, Unit};

/// The result of a load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Loaded {
    /// Records or files stored.
    pub records: u64,
    /// Bytes of their keys, and of those that were replaced.
    pub key_bytes: u64,
    /// Bytes of the values of the same.
    pub value_bytes: u64,
    /// Records that a later one of the same key has replaced.
    pub replaced_records: u64,
    /// The first of these.
    pub replaced_lines: Vec<ReplacedLine>,
    /// Records left out because they were bad, if that was allowed.
    pub bad_records: u64,
    /// The first of these.
    pub bad_lines: Vec<BadLine>,
    /// Files that were not stored, by reason; directories only.
    pub skipped: Skipped,
}

/// Lines of each kind that are listed one by one; the rest are counted.
const TOLD_LINES: usize = 5;

/// A record that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BadLine {
    /// The line that it begins in, counted from 1.
    pub line: u64,
    /// Why it cannot be stored.
    pub reason: String,
}

/// A record whose key a later one has, which is the one that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ReplacedLine {
    /// The line that it begins in, counted from 1.
    pub line: u64,
    /// That of the later one.
    pub by_line: u64,
}

/// The treatment of a record that cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBad {
    /// End the load with an error that names the line.
    Stop,
    /// Count it and go on.
    Skip,
}

/// The sink of records: sorted into the tree at the end, with counts.
struct Sink<'m> {
    path: PathBuf,
    loader: Loader,
    on_bad: OnBad,
    loaded: Loaded,
    replaced: Arc<Mutex<Vec<ReplacedLine>>>,
    monitor: &'m dyn Monitor,
}

impl<'m> Sink<'m> {
    fn new(
        tree: &Tree,
        path: &Path,
        on_bad: OnBad,
        monitor: &'m dyn Monitor,
    ) -> Result<Sink<'m>, LabError> {
        let replaced = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&replaced);
        Ok(Sink {
            path: path.to_path_buf(),
            loader: tree
                .loader()?
                .on_replaced(move |line, by_line| note(&to, ReplacedLine { line, by_line })),
            on_bad,
            loaded: Loaded::default(),
            replaced,
            monitor,
        })
    }

    /// Takes a record that came from `line` (counted from 1).
    fn store(&mut self, line: u64, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        match self.loader.push_numbered(line, key, value) {
            Err(error @ (LoadError::KeyTooLong { .. } | LoadError::ValueTooLong { .. })) => {
                return self.bad(line, &error.to_string());
            }
            Err(other) => return Err(self.nothing_stored(other.into())),
            Ok(()) => {}
        }
        self.loaded.records += 1;
        self.loaded.key_bytes += key.len() as u64;
        self.loaded.value_bytes += value.len() as u64;
        Ok(())
    }

    /// A record that cannot be stored, and why.
    fn bad(&mut self, line: u64, reason: &str) -> Result<(), LabError> {
        if self.on_bad == OnBad::Skip {
            self.loaded.bad_records += 1;
            if self.loaded.bad_lines.len() < TOLD_LINES {
                let reason = reason.to_owned();
                self.loaded.bad_lines.push(BadLine { line, reason });
            }
            return Ok(());
        }
        Err(LabError::input(
            &self.path,
            format!(
                "line {line}: {reason}; nothing was loaded: correct it, or leave such records out with --skip-bad"
            ),
        ))
    }

    /// An error before the first record is stored.
    fn nothing_stored(&self, error: LabError) -> LabError {
        error.after("nothing was loaded: records are sorted first and stored at the end")
    }

    fn finish(mut self) -> Result<Loaded, LabError> {
        let total = self.loaded.records;
        self.monitor.begin(Stage {
            name: "storing",
            total: Some(total),
            unit: Unit::Items,
        });
        let (mut passed, mut inserted) = (0, None);
        let stored = self.loader.finish(&mut |stage, done, _| {
            if stage == "inserting" {
                inserted = Some(done);
            }
            self.monitor.advance(done.saturating_sub(passed));
            passed = done.max(passed);
            if self.monitor.cancelled() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let stored = stored.map_err(|error| {
            let error = match error {
                LoadError::Interrupted => LabError::Interrupted,
                other => other.into(),
            };
            error.after(match inserted {
                None => {
                    "nothing was loaded: records are sorted first and stored together".to_owned()
                }
                // Some of a later commit may be in besides.
                Some(inserted) => format!(
                    "at least {} of {total} are in, the lowest keys first: the same load completes it",
                    counted(inserted, "record")
                ),
            })
        })?;
        self.loaded.replaced_records = self.loaded.records - stored;
        self.loaded.records = stored;
        self.loaded.replaced_lines = std::mem::take(&mut lock(&self.replaced));
        Ok(self.loaded)
    }
}

/// Keeps the first few lines, once each.
fn note(lines: &Mutex<Vec<ReplacedLine>>, line: ReplacedLine) {
    let mut lines = lock(lines);
    match lines.binary_search(&line) {
        Ok(_) => {}
        Err(at) => {
            lines.insert(at, line);
            lines.truncate(TOLD_LINES);
        }
    }
}

/// A number of things: "1 record", "2 records".
pub(crate) fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
