//! Lines of `key<TAB>value`, and code shared by all sources of one record per line.

use std::borrow::Cow;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use isobath::Tree;

use super::{InputFile, Loaded, OnBad, Sink};
use crate::{LabError, Monitor, Stage, Unit, unescape, unhex};

/// U+FEFF in UTF-8, which some programs put before all text.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How keys and values stand in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFormat {
    /// As they are: a key has no tab, neither has a line end.
    Raw,
    /// As `scan` prints them: `\n`, `\t`, `\r`, `\\` and `\xNN` stand for bytes, so that they may
    /// have any.
    Escaped,
    /// Both in hexadecimal, so that they may have any bytes.
    Hex,
}

/// A file that is read in lines; nothing is loaded yet.
pub struct Lines<'m> {
    pub(super) path: PathBuf,
    total: Option<u64>,
    reader: BufReader<InputFile<'m>>,
    monitor: &'m dyn Monitor,
    /// The newest line and its number, counted from 1.
    line: Vec<u8>,
    number: u64,
}

impl std::fmt::Debug for Lines<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl<'m> Lines<'m> {
    /// Opens a file, or standard input for `None` and `-`.
    ///
    /// # Errors
    /// A file that is missing, or a directory.
    pub fn open(from: Option<&Path>, monitor: &'m dyn Monitor) -> Result<Lines<'m>, LabError> {
        let file = InputFile::open(from, monitor)?;
        Ok(Lines {
            path: file.path.clone(),
            total: file.total,
            reader: BufReader::with_capacity(1 << 20, file),
            monitor,
            line: Vec::new(),
            number: 0,
        })
    }

    /// Bytes of the input, if that is known.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.total
    }

    /// Loads lines of `key<TAB>value`. The first tab separates; a later line replaces an earlier
    /// one of the same key; empty lines are ignored.
    ///
    /// # Errors
    /// A line without a tab, with too long a key, or with what is no hexadecimal number or escape
    /// where it should be, unless bad records are skipped; engine and I/O errors.
    pub fn load(self, tree: &Tree, format: LineFormat, on_bad: OnBad) -> Result<Loaded, LabError> {
        self.each(tree, on_bad, <[u8]>::is_empty, |line| {
            let at = line.iter().position(|b| *b == b'\t');
            let at = at.ok_or_else(|| "there is no tab between key and value".to_owned())?;
            let (key, value) = (&line[..at], &line[at + 1..]);
            match format {
                LineFormat::Raw => Ok((key.into(), value.into())),
                LineFormat::Escaped => Ok((unescape(key)?.into(), unescape(value)?.into())),
                LineFormat::Hex => Ok((bytes(key)?.into(), bytes(value)?.into())),
            }
        })
    }

    /// Loads the record that `record` makes of each line, except for those that are `blank`.
    pub(super) fn each(
        mut self,
        tree: &Tree,
        on_bad: OnBad,
        blank: impl Fn(&[u8]) -> bool,
        record: impl Fn(&[u8]) -> Result<(Cow<'_, [u8]>, Cow<'_, [u8]>), String>,
    ) -> Result<Loaded, LabError> {
        let mut sink = Sink::new(tree, &self.path, on_bad, self.monitor)?;
        self.monitor.begin(Stage {
            name: "reading",
            total: self.total,
            unit: Unit::Bytes,
        });
        loop {
            match self.next() {
                Ok(true) => {}
                Ok(false) => return sink.finish(),
                Err(error) => return Err(sink.nothing_stored(error)),
            }
            if blank(&self.line) {
                continue;
            }
            match record(&self.line) {
                Ok((key, value)) => sink.store(self.number, &key, &value)?,
                Err(reason) => sink.bad(self.number, &reason)?,
            }
        }
    }

    /// Reads the next line without its end, and the first one without a byte order mark; `false` at
    /// the end of all.
    fn next(&mut self) -> Result<bool, LabError> {
        self.monitor.check()?;
        self.line.clear();
        let read = self
            .reader
            .read_until(b'\n', &mut self.line)
            .map_err(LabError::io("read", &self.path))?;
        self.monitor.advance(read as u64);
        self.number += 1;
        if self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
            self.line.drain(..BYTE_ORDER_MARK.len());
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
            }
        }
        Ok(read > 0)
    }
}

fn bytes(hex: &[u8]) -> Result<Vec<u8>, String> {
    unhex(&String::from_utf8_lossy(hex))
}
