//! Sorting more records than memory holds: sorted runs in a temporary file, merged as they are
//! read.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Record;
use crate::error::{Error, LoadError, TransactionError};
use crate::page::{get_u32, get_u64};

/// Runs that are merged at a time: each needs a buffer.
const MERGED_RUNS: usize = 128;
/// Bytes that are read or written at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes of a record's number and lengths in a run.
pub(crate) const HEAD_BYTES: usize = 16;

/// Called with the numbers of two records with one key, of which the second one stays.
pub(crate) type OnReplaced = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Collects records in any order and gives them back by key, of each key the last one.
pub(crate) struct Sorter {
    buffer: Buffer,
    limit: usize,
    directory: PathBuf,
    spilled: Option<Spilled>,
    on_replaced: Option<OnReplaced>,
}

/// The records that are in memory.
#[derive(Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// A record's place in the buffer.
#[derive(Clone, Copy)]
struct Entry {
    /// The key's first 8 bytes, which decide most comparisons.
    prefix: u64,
    /// The caller's number of the record.
    number: u64,
    at: usize,
    key: u32,
    value: u32,
}

/// Sorted runs, one behind the other in a file without a name.
struct Spilled {
    file: Arc<File>,
    end: u64,
    runs: Vec<Run>,
}

/// Bytes of the file that are one sorted run.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Buffer {
    fn size(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Entry>()
    }

    fn push(&mut self, number: u64, key: &[u8], value: &[u8]) {
        let mut prefix = [0; 8];
        let known = key.len().min(8);
        prefix[..known].copy_from_slice(&key[..known]);
        self.entries.push(Entry {
            prefix: prefix
                .iter()
                .fold(0, |number, &b| number << 8 | u64::from(b)),
            number,
            at: self.bytes.len(),
            key: key.len() as u32,
            value: value.len() as u32,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        // Positions tell which of two records with one key is newer, so each record has its own.
        if key.is_empty() && value.is_empty() {
            self.bytes.push(0);
        }
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.at..entry.at + entry.key as usize]
    }

    fn value(&self, entry: &Entry) -> &[u8] {
        let at = entry.at + entry.key as usize;
        &self.bytes[at..at + entry.value as usize]
    }

    /// Orders the entries by key and keeps the last of each.
    fn sort(&mut self, on_replaced: Option<&OnReplaced>) {
        let mut entries = std::mem::take(&mut self.entries);
        // Those of a key by age, the newest first, so that the first one is kept.
        entries.sort_unstable_by(|a, b| {
            let by_prefix = a.prefix.cmp(&b.prefix);
            by_prefix
                .then_with(|| self.key(a).cmp(self.key(b)))
                .then_with(|| b.at.cmp(&a.at))
        });
        entries.dedup_by(|older, newest| {
            let is_replaced = self.key(older) == self.key(newest);
            if let Some(told) = on_replaced.filter(|_| is_replaced) {
                told(older.number, newest.number);
            }
            is_replaced
        });
        self.entries = entries;
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }
}

impl Sorter {
    /// Keeps up to `limit` bytes in memory, and the rest in a temporary file in `directory`.
    pub(crate) fn new(limit: usize, directory: PathBuf) -> Sorter {
        Sorter {
            buffer: Buffer::default(),
            limit,
            directory,
            spilled: None,
            on_replaced: None,
        }
    }

    /// Before the first record is pushed. It is called again for each time that the records are
    /// read.
    pub(crate) fn on_replaced(&mut self, told: OnReplaced) {
        self.on_replaced = Some(told);
    }

    /// Before the first record is pushed.
    pub(crate) fn set_directory(&mut self, directory: PathBuf) {
        self.directory = directory;
    }

    /// The error of reading a record back.
    pub(crate) fn failed(&self, error: io::Error) -> SortError {
        failed(&self.directory)(error)
    }

    pub(crate) fn push(&mut self, number: u64, key: &[u8], value: &[u8]) -> Result<(), SortError> {
        self.buffer.push(number, key, value);
        if self.buffer.size() >= self.limit {
            self.spill()?;
        }
        Ok(())
    }

    /// Nothing can be pushed after this.
    pub(crate) fn sort(&mut self) -> Result<(), SortError> {
        if self.spilled.is_none() {
            self.buffer.sort(self.on_replaced.as_ref());
            return Ok(());
        }
        if !self.buffer.entries.is_empty() {
            self.spill()?;
        }
        self.buffer = Buffer::default();
        Ok(())
    }

    /// The records by key. [`Sorter::sort`] was called before.
    pub(crate) fn records(&self) -> Result<Sorted<'_>, SortError> {
        match &self.spilled {
            None => Ok(Sorted::InMemory(&self.buffer, 0)),
            Some(spilled) => {
                let merge = Merge::new(&spilled.file, &spilled.runs, self.on_replaced.clone());
                Ok(Sorted::Merged(merge.map_err(failed(&self.directory))?))
            }
        }
    }

    fn spill(&mut self) -> Result<(), SortError> {
        self.buffer.sort(self.on_replaced.as_ref());
        let failed = failed(&self.directory);
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            none => none.insert(Spilled {
                file: Arc::new(tempfile::tempfile_in(&self.directory).map_err(&failed)?),
                end: 0,
                runs: Vec::new(),
            }),
        };
        let buffer = &self.buffer;
        let records = buffer
            .entries
            .iter()
            .map(|entry| Ok((entry.number, buffer.key(entry), buffer.value(entry))));
        spilled.append(records).map_err(&failed)?;
        self.buffer.clear();
        if spilled.runs.len() >= MERGED_RUNS {
            let on_replaced = self.on_replaced.clone();
            spilled
                .merge_all(&self.directory, on_replaced)
                .map_err(&failed)?;
        }
        Ok(())
    }
}

/// Temporary files cannot be written or read back.
#[derive(Debug)]
pub(crate) struct SortError {
    directory: PathBuf,
    source: Arc<io::Error>,
}

macro_rules! become_sort {
    ($( $Kind:ident )*) => {$(
        impl From<SortError> for $Kind {
            fn from(SortError { directory, source }: SortError) -> $Kind {
                $Kind::Sort { directory, source }
            }
        }
    )*};
}

become_sort!(Error LoadError TransactionError);

pub(crate) fn failed(directory: &Path) -> impl Fn(io::Error) -> SortError {
    move |error| SortError {
        directory: directory.to_path_buf(),
        source: Arc::new(error),
    }
}

impl Spilled {
    /// Writes sorted records as one more run.
    fn append<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        records: impl Iterator<Item = io::Result<(u64, K, V)>>,
    ) -> io::Result<()> {
        let start = self.end;
        self.end = write_run(&self.file, start, records)?;
        let end = self.end;
        self.runs.push(Run { start, end });
        Ok(())
    }

    /// Makes one run of all, in a new file.
    fn merge_all(&mut self, directory: &Path, told: Option<OnReplaced>) -> io::Result<()> {
        let mut merged = Spilled {
            file: Arc::new(tempfile::tempfile_in(directory)?),
            end: 0,
            runs: Vec::new(),
        };
        let mut all = Merge::new(&self.file, &self.runs, told)?;
        let records = std::iter::from_fn(|| all.step().transpose());
        merged.append(records.map(|head| head.map(|head| (head.number, head.key, head.value))))?;
        *self = merged;
        Ok(())
    }
}

/// Writes sorted records into `file` from `start` on; returns their end.
fn write_run<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    file: &File,
    start: u64,
    records: impl Iterator<Item = io::Result<(u64, K, V)>>,
) -> io::Result<u64> {
    let mut to = RunWriter::new(file, start);
    for record in records {
        let (number, key, value) = record?;
        to.push(number, &[key.as_ref()], &[value.as_ref()])?;
    }
    to.finish()
}

/// Writes one run, record by record.
pub(crate) struct RunWriter<'f> {
    to: BufWriter<At<'f>>,
}

impl<'f> RunWriter<'f> {
    pub(crate) fn new(file: &'f File, start: u64) -> RunWriter<'f> {
        RunWriter {
            to: BufWriter::with_capacity(BUFFER_BYTES, At { file, at: start }),
        }
    }

    /// Writes a record, whose key and value are these pieces put together; returns how many bytes
    /// it takes.
    pub(crate) fn push(
        &mut self,
        number: u64,
        key: &[&[u8]],
        value: &[&[u8]],
    ) -> io::Result<usize> {
        let length = |pieces: &[&[u8]]| pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let (key_len, value_len) = (length(key), length(value));
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&number.to_le_bytes());
        head[8..12].copy_from_slice(&(key_len as u32).to_le_bytes());
        head[12..].copy_from_slice(&(value_len as u32).to_le_bytes());
        self.to.write_all(&head)?;
        for piece in key.iter().chain(value) {
            self.to.write_all(piece)?;
        }
        Ok(HEAD_BYTES + key_len + value_len)
    }

    /// Where the run ends.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        self.to.flush()?;
        Ok(self.to.get_ref().at)
    }
}

/// Writes to a file from a position on.
struct At<'f> {
    file: &'f File,
    at: u64,
}

impl Write for At<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(bytes, self.at)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The records of a [`Sorter`], by key.
pub(crate) enum Sorted<'s> {
    /// All are in memory; the index of the next one.
    InMemory(&'s Buffer, usize),
    Merged(Merge),
}

impl Iterator for Sorted<'_> {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<io::Result<Record>> {
        match self {
            Sorted::InMemory(buffer, next) => {
                let entry = buffer.entries.get(*next)?;
                *next += 1;
                Some(Ok((
                    buffer.key(entry).to_vec(),
                    buffer.value(entry).to_vec(),
                )))
            }
            Sorted::Merged(merge) => merge.next(),
        }
    }
}

/// Several sorted runs, read as one.
pub(crate) struct Merge {
    readers: Vec<Reader>,
    heads: BinaryHeap<Head>,
    on_replaced: Option<OnReplaced>,
}

/// The next record of a run.
struct Head {
    number: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    run: usize,
}

impl Ord for Head {
    /// The heap gives the greatest: that is the lowest key, and of equal ones that of the newest
    /// run.
    fn cmp(&self, other: &Head) -> Ordering {
        let by_key = other.key.cmp(&self.key);
        by_key.then_with(|| self.run.cmp(&other.run))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Head) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

impl Merge {
    pub(crate) fn new(
        file: &Arc<File>,
        runs: &[Run],
        told: Option<OnReplaced>,
    ) -> io::Result<Merge> {
        let readers = runs.iter().map(|&run| Reader::new(file, run)).collect();
        let mut merge = Merge {
            readers,
            heads: BinaryHeap::with_capacity(runs.len()),
            on_replaced: told,
        };
        (0..runs.len()).try_for_each(|run| merge.refill(run))?;
        Ok(merge)
    }

    fn refill(&mut self, run: usize) -> io::Result<()> {
        self.heads.extend(self.readers[run].next(run)?);
        Ok(())
    }

    fn step(&mut self) -> io::Result<Option<Head>> {
        self.step_past(&mut |_| {})
    }

    /// The next record; `passed` receives the values that older runs have of its key.
    pub(crate) fn next_past(
        &mut self,
        passed: &mut dyn FnMut(&[u8]),
    ) -> io::Result<Option<Record>> {
        let head = self.step_past(passed)?;
        Ok(head.map(|head| (head.key, head.value)))
    }

    fn step_past(&mut self, passed: &mut dyn FnMut(&[u8])) -> io::Result<Option<Head>> {
        let Some(head) = self.heads.pop() else {
            return Ok(None);
        };
        self.refill(head.run)?;
        // Older records of the same key.
        while self.heads.peek().is_some_and(|next| next.key == head.key) {
            if let Some(older) = self.heads.pop() {
                if let Some(told) = &self.on_replaced {
                    told(older.number, head.number);
                }
                passed(&older.value);
                self.refill(older.run)?;
            }
        }
        Ok(Some(head))
    }
}

impl Iterator for Merge {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<io::Result<Record>> {
        let next = self.step().transpose()?;
        Some(next.map(|head| (head.key, head.value)))
    }
}

/// Reads one run from its start.
struct Reader {
    file: Arc<File>,
    /// The rest of the run, still in the file.
    rest: Run,
    buffer: Vec<u8>,
    /// How much of the buffer was handed out.
    taken: usize,
}

impl Reader {
    fn new(file: &Arc<File>, run: Run) -> Reader {
        Reader {
            file: Arc::clone(file),
            rest: run,
            buffer: Vec::new(),
            taken: 0,
        }
    }

    /// The next record; `run` is the number of the run.
    fn next(&mut self, run: usize) -> io::Result<Option<Head>> {
        if self.taken == self.buffer.len() && self.rest.start == self.rest.end {
            return Ok(None);
        }
        let head = self.take(HEAD_BYTES)?;
        let (number, key, value) = (get_u64(head, 0), get_u32(head, 8), get_u32(head, 12));
        let record = self.take(key as usize + value as usize)?;
        let (key, value) = record.split_at(key as usize);
        Ok(Some(Head {
            number,
            key: key.to_vec(),
            value: value.to_vec(),
            run,
        }))
    }

    /// The next `length` bytes.
    fn take(&mut self, length: usize) -> io::Result<&[u8]> {
        let there = self.buffer.len() - self.taken;
        if there < length {
            self.buffer.drain(..self.taken);
            self.taken = 0;
            let left = (self.rest.end - self.rest.start) as usize;
            let more = (length - there).max(BUFFER_BYTES).min(left);
            self.buffer.resize(there + more, 0);
            self.file
                .read_exact_at(&mut self.buffer[there..], self.rest.start)?;
            self.rest.start += more as u64;
            if self.buffer.len() < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.taken += length;
        Ok(&self.buffer[self.taken - length..self.taken])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn sorted(records: &[Record], limit: usize) -> (Vec<Record>, usize) {
        let mut sorter = Sorter::new(limit, std::env::temp_dir());
        for (number, (key, value)) in (0..).zip(records) {
            sorter.push(number, key, value).unwrap();
        }
        sorter.sort().unwrap();
        let twice = sorter.records().unwrap().count();
        let records: Vec<Record> = sorter.records().unwrap().map(Result::unwrap).collect();
        assert_eq!(twice, records.len());
        let runs = sorter
            .spilled
            .as_ref()
            .map_or(0, |spilled| spilled.runs.len());
        (records, runs)
    }

    proptest! {
        #[test]
        fn records_come_by_key_and_the_last_one_wins(
            keys in prop::collection::vec((prop::collection::vec(0u8..3, 0..11), 0usize..9), 0..300),
            limit in prop::sample::select(vec![1, 100, 1000, 1 << 20]),
        ) {
            // Some values have no bytes.
            let records: Vec<Record> = keys
                .into_iter()
                .enumerate()
                .map(|(n, (key, length))| (key, format!("{n:08}").into_bytes()[..length.min(8)].to_vec()))
                .collect();
            let model: BTreeMap<_, _> = records.iter().cloned().collect();
            let (ours, runs) = sorted(&records, limit);
            prop_assert_eq!(ours, model.into_iter().collect::<Vec<_>>());
            prop_assert!(runs <= MERGED_RUNS);
        }
    }

    #[test]
    fn of_records_without_bytes_the_last_one_wins() {
        let record = |value: &str| (Vec::new(), value.as_bytes().to_vec());
        for limit in [1 << 20, 1] {
            for values in [["", "", "x"], ["x", "", ""], ["", "x", ""]] {
                let records: Vec<Record> = values.iter().map(|value| record(value)).collect();
                let (ours, _) = sorted(&records, limit);
                assert_eq!(ours, [record(values[2])], "{values:?}, limit {limit}");
            }
        }
    }

    #[test]
    fn replaced_records_are_reported_whether_they_meet_in_memory_or_in_runs() {
        for limit in [1 << 20, 1] {
            let told = Arc::new(crate::sync::Mutex::new(Vec::new()));
            let mut sorter = Sorter::new(limit, std::env::temp_dir());
            let to = Arc::clone(&told);
            sorter.on_replaced(Arc::new(move |old, new| to.lock().push((old, new))));
            for (number, key) in [(3, "b"), (4, "a"), (5, "b"), (9, "c"), (10, "b")] {
                sorter.push(number, key.as_bytes(), b"").unwrap();
            }
            sorter.sort().unwrap();
            assert_eq!(sorter.records().unwrap().count(), 3);
            let mut told = told.lock().clone();
            told.sort_unstable();
            assert_eq!(told, [(3, 10), (5, 10)], "limit {limit}");
        }
    }

    #[test]
    fn values_larger_than_all_buffers_are_sorted_too() {
        let value = |n: u8| vec![n; 3 * BUFFER_BYTES + usize::from(n)];
        let records: Vec<Record> = (0..6).rev().map(|n| (vec![n], value(n))).collect();
        let (ours, runs) = sorted(&records, BUFFER_BYTES);
        assert_eq!((ours.len(), runs), (6, 6));
        assert!(ours.iter().zip(0..).all(|(r, n)| *r == (vec![n], value(n))));
    }

    #[test]
    fn a_missing_directory_is_named() {
        let mut sorter = Sorter::new(1, "/nowhere/at/all".into());
        let error = Error::from(sorter.push(0, b"k", b"v").unwrap_err());
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
