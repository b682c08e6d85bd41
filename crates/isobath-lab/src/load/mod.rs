//! Loading a person's own data: directory trees, CSV and TSV, NDJSON, and
//! lines of `key<TAB>value`.

mod delimited;
mod directory;
mod lines;
mod ndjson;

use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use isobath::{Error, Loader, Tree};
use serde::Serialize;

pub use delimited::{Column, Delimited, Rows};
pub(crate) use directory::{Files, SMALL_FILE, SourceFile, find_files, for_each_file, load_files};
pub use directory::{Skipped, load_directory};
pub use lines::load_lines;
pub use ndjson::load_ndjson;

use crate::error::LabError;
pub use crate::files::must_be;
use crate::files::open_regular;
use crate::{Monitor, Stage, Unit};

/// What a load did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Loaded {
    /// Records or files stored.
    pub records: u64,
    /// Records that a later one of the same key has replaced.
    pub replaced_records: u64,
    /// Bytes of the keys of all these.
    pub key_bytes: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// Records left out because they were bad, where that was allowed.
    pub bad_records: u64,
    /// Files that were not stored, by reason; directories only.
    pub skipped: Skipped,
}

/// What to do with a record that cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBad {
    /// End the load with an error that names the line.
    Stop,
    /// Count it and go on.
    Skip,
}

/// Where records come from: a file or standard input, read in lines.
struct Input {
    path: PathBuf,
    /// Bytes of it, where that is known.
    total: Option<u64>,
    reader: BufReader<Box<dyn Read>>,
}

impl Input {
    /// `None` is standard input.
    fn open(path: Option<&Path>) -> Result<Input, LabError> {
        let (reader, path, total): (Box<dyn Read>, _, _) = match path {
            None => (Box::new(io::stdin().lock()), PathBuf::from("-"), None),
            Some(path) => {
                let file = open_regular(path)?;
                let total = file.metadata().map_err(LabError::io("read", path))?.len();
                (Box::new(file), path.to_path_buf(), Some(total))
            }
        };
        Ok(Input {
            path,
            total,
            reader: BufReader::with_capacity(1 << 20, reader),
        })
    }

    fn begin(&self, monitor: &dyn Monitor) {
        monitor.begin(Stage {
            name: "reading",
            total: self.total,
            unit: Unit::Bytes,
        });
    }

    /// Reads one line without its end into `line`; `false` at the end.
    fn line(&mut self, line: &mut Vec<u8>) -> Result<bool, LabError> {
        line.clear();
        let read = self
            .reader
            .read_until(b'\n', line)
            .map_err(LabError::io("read", &self.path))?;
        if line.last() == Some(&b'\n') {
            line.pop();
            if line.last() == Some(&b'\r') {
                line.pop();
            }
        }
        Ok(read > 0)
    }
}

/// Where records go: sorted into the tree at the end, with counts.
struct Sink<'m> {
    path: PathBuf,
    loader: Loader,
    on_bad: OnBad,
    loaded: Loaded,
    monitor: &'m dyn Monitor,
}

impl<'m> Sink<'m> {
    fn new(
        tree: &Tree,
        path: &Path,
        on_bad: OnBad,
        monitor: &'m dyn Monitor,
    ) -> Result<Sink<'m>, LabError> {
        Ok(Sink {
            path: path.to_path_buf(),
            loader: tree.loader()?,
            on_bad,
            loaded: Loaded::default(),
            monitor,
        })
    }

    /// Takes a record that came from `line` (counted from 1).
    fn store(&mut self, line: u64, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        match self.loader.push(key, value) {
            Err(error @ (Error::KeyTooLong { .. } | Error::ValueTooLong { .. })) => {
                return self.bad(line, &error.to_string());
            }
            other => other?,
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
            return Ok(());
        }
        Err(LabError::input(
            &self.path,
            format!(
                "line {line}: {reason}; nothing was loaded: correct it, or leave such records out with --skip-bad"
            ),
        ))
    }

    fn finish(mut self) -> Result<Loaded, LabError> {
        self.monitor.begin(Stage {
            name: "storing",
            total: Some(self.loaded.records),
            unit: Unit::Items,
        });
        let mut passed = 0;
        let stored = self.loader.finish(&mut |_, done, _| {
            self.monitor.advance(done.saturating_sub(passed));
            passed = done.max(passed);
            if self.monitor.cancelled() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let stored = stored.map_err(|error| match error {
            Error::Interrupted => LabError::Interrupted,
            other => other.into(),
        })?;
        self.loaded.replaced_records = self.loaded.records - stored;
        self.loaded.records = stored;
        Ok(self.loaded)
    }
}
