//! Loading a person's own data: directory trees, CSV and TSV, NDJSON, and
//! lines of `key<TAB>value`.

mod delimited;
mod directory;
mod lines;
mod ndjson;

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use isobath::{Store, Tree};
use serde::Serialize;

pub use delimited::{Column, Delimited, Rows};
pub(crate) use directory::{Files, SMALL_FILE, SourceFile, find_files, for_each_file, load_files};
pub use directory::{Skipped, load_directory};
pub use lines::load_lines;
pub use ndjson::load_ndjson;

use crate::error::LabError;
pub use crate::files::must_be;
use crate::files::open_regular;
use crate::pipeline::Lanes;
use crate::{Monitor, Stage, Unit};

/// What a load did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Loaded {
    /// Records or files stored.
    pub records: u64,
    /// Bytes of keys stored.
    pub key_bytes: u64,
    /// Bytes of values stored.
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
            name: "loading",
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

/// Where records go: the tree, in order per key, with counts.
struct Sink<'s> {
    path: PathBuf,
    lanes: Lanes<'s>,
    on_bad: OnBad,
    loaded: Loaded,
}

impl<'s> Sink<'s> {
    fn new(store: &'s Store, tree: &Tree, path: &Path, on_bad: OnBad) -> Sink<'s> {
        Sink {
            path: path.to_path_buf(),
            lanes: Lanes::new(store, tree),
            on_bad,
            loaded: Loaded::default(),
        }
    }

    /// Stores a record that came from `line` (counted from 1).
    fn store(&mut self, line: u64, key: Vec<u8>, value: Vec<u8>) -> Result<(), LabError> {
        if key.len() > isobath::MAX_KEY_BYTES {
            let reason = format!(
                "the key has {} bytes; at most {} are possible",
                key.len(),
                isobath::MAX_KEY_BYTES
            );
            return self.bad(line, &reason);
        }
        self.loaded.records += 1;
        self.loaded.key_bytes += key.len() as u64;
        self.loaded.value_bytes += value.len() as u64;
        self.lanes.push(key, value)
    }

    /// A record that cannot be stored, and why.
    fn bad(&mut self, line: u64, reason: &str) -> Result<(), LabError> {
        if self.on_bad == OnBad::Skip {
            self.loaded.bad_records += 1;
            return Ok(());
        }
        Err(LabError::input(
            &self.path,
            format!("line {line}: {reason}; correct it, or leave such records out with --skip-bad"),
        ))
    }

    fn finish(self) -> Result<Loaded, LabError> {
        self.lanes.finish()?;
        Ok(self.loaded)
    }
}
