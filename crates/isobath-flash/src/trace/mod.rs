//! Traces of page writes and trims.
//!
//! Four formats are read ([`TraceFormat`]); two of them, plain CSV and binary, are also written,
//! and are what an engine records its page writes in:
//!
//! **CSV**: one operation per line, `W,page` or `T,page`, optionally followed by `,count` for
//! consecutive pages. Empty lines and lines that start with `#` are skipped.
//!
//! ```text
//! # page writes
//! W,17
//! W,4096,64
//! T,17
//! ```
//!
//! **Binary**, little-endian: a header of 16 bytes, then records of 8 bytes.
//!
//! ```text
//! 0        8        12           16
//! | "ISOTRACE" | version 1 | page bytes |
//! | first page (4 bytes) | count (3 bytes) | 'W' or 'T' (1 byte) | ...
//! ```

mod contents;
mod formats;

pub use contents::TraceContents;
pub use formats::{BinaryWriter, TraceFormat, read_trace, write_binary, write_csv};

use std::collections::HashMap;

use crate::workload::{Op, Workload};

/// A trace in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    ops: Vec<Op>,
    pages: u32,
}

/// An error of a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A line or record that cannot be understood.
    #[error("trace line {line}: {what}: `{text}`")]
    Malformed {
        /// Line, or record of a binary trace, from 1.
        line: u64,
        /// The problem.
        what: &'static str,
        /// The line.
        text: String,
    },
    /// A page beyond the device.
    #[error("trace line {line} names page {page}, but the device has {pages} pages")]
    BeyondDevice {
        /// Line or record, from 1.
        line: u64,
        /// The page.
        page: u64,
        /// Pages of the device.
        pages: u64,
    },
    /// A record of more pages than one may write.
    #[error(
        "trace line {line} writes {pages} pages at once, but a line may write {max}; write it as several lines if that is \
         meant"
    )]
    LongRecord {
        /// Line or record, from 1.
        line: u64,
        /// Pages of the record.
        pages: u64,
        /// Pages that it may have.
        max: u32,
    },
    /// More operations than are kept in memory.
    #[error(
        "trace line {line} is beyond the first {max} page writes and trims, more than are read; cut the trace before it"
    )]
    TooLong {
        /// Line or record, from 1.
        line: u64,
        /// Operations that are read.
        max: usize,
    },
    /// Nothing to replay.
    #[error("the trace has no page write in {lines} lines")]
    Empty {
        /// Lines read.
        lines: u64,
    },
    /// Not a binary trace of a version known here.
    #[error("not a binary trace: {what}")]
    Header {
        /// The problem.
        what: String,
    },
    /// An unknown format.
    #[error(
        "unknown trace format `{name}`; the known ones are {}",
        TraceFormat::NAMES
    )]
    UnknownFormat {
        /// The requested value.
        name: String,
    },
    /// A page size of 0.
    #[error("page size {page_bytes} bytes must be a positive multiple of 512")]
    PageSize {
        /// Bytes per page.
        page_bytes: u32,
    },
    /// The source failed.
    #[error("trace line {line}: {source}")]
    Read {
        /// Line or record, from 1.
        line: u64,
        /// The cause.
        source: std::io::Error,
    },
}

impl Trace {
    /// A trace of these operations over `pages` pages; larger page numbers raise `pages`.
    pub fn new(ops: Vec<Op>, pages: u32) -> Self {
        let named = ops.iter().map(|op| op.page() + 1).max().unwrap_or(0);
        Self {
            ops,
            pages: pages.max(named),
        }
    }

    /// The operations.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Number of pages: one more than the largest page named.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Writes, without trims.
    pub fn writes(&self) -> u64 {
        self.ops.iter().filter(|op| !op.is_trim()).count() as u64
    }

    /// The trace as a workload, played `times` times.
    pub fn replay(&self, times: u32) -> Replay<'_> {
        Replay {
            trace: self,
            next: 0,
            left: times,
        }
    }
}

/// Numbers for pages in order of first appearance; a number that a trim gave up is used again.
#[derive(Debug, Default)]
struct PageNumbers {
    of: HashMap<u64, u32>,
    free: Vec<u32>,
    next: u32,
}

impl PageNumbers {
    fn write(&mut self, page: u64) -> Op {
        let (free, next) = (&mut self.free, &mut self.next);
        let number = self.of.entry(page).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                *next += 1;
                *next - 1
            })
        });
        Op::write(*number)
    }

    /// Nothing for a page that was never written: its trim says nothing.
    fn trim(&mut self, page: u64) -> Option<Op> {
        let number = self.of.remove(&page)?;
        self.free.push(number);
        Some(Op::trim(number))
    }

    /// As [`trim`](Self::trim) for every page of `first..end`, however many these are.
    fn trim_all(&mut self, first: u64, end: u64, ops: &mut Vec<Op>) {
        if end - first <= self.of.len() as u64 {
            ops.extend((first..end).filter_map(|page| self.trim(page)));
            return;
        }
        let live = self.of.keys().copied();
        let mut live: Vec<u64> = live.filter(|page| (first..end).contains(page)).collect();
        live.sort_unstable();
        ops.extend(live.into_iter().filter_map(|page| self.trim(page)));
    }
}

/// A trace being played; see [`Trace::replay`].
#[derive(Debug, Clone)]
pub struct Replay<'a> {
    trace: &'a Trace,
    next: usize,
    left: u32,
}

impl Replay<'_> {
    /// Operations in all repetitions together.
    pub fn len(&self) -> u64 {
        self.trace.ops.len() as u64 * u64::from(self.left) - self.next as u64
    }

    /// True if nothing is left to play.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Workload for Replay<'_> {
    fn pages(&self) -> u32 {
        self.trace.pages
    }

    fn fill(&mut self, out: &mut [Op]) -> usize {
        let mut done = 0;
        while done < out.len() && self.left > 0 {
            let rest = &self.trace.ops[self.next..];
            let n = rest.len().min(out.len() - done);
            out[done..done + n].copy_from_slice(&rest[..n]);
            done += n;
            self.next += n;
            if self.next == self.trace.ops.len() {
                self.next = 0;
                self.left -= 1;
            }
        }
        done
    }

    fn length(&self) -> Option<u64> {
        Some(self.len())
    }

    fn preload(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_repeats_and_ends() {
        let trace = Trace::new(vec![Op::write(3), Op::trim(1)], 0);
        assert_eq!(trace.pages(), 4);
        let mut replay = trace.replay(2);
        assert_eq!(replay.len(), 4);
        let mut out = [Op::write(0); 3];
        assert_eq!(replay.fill(&mut out), 3);
        assert_eq!(out, [Op::write(3), Op::trim(1), Op::write(3)]);
        assert_eq!(replay.fill(&mut out), 1);
        assert_eq!(replay.fill(&mut out), 0);
    }
}
