//! The writes of a transaction that do not fit into memory: sorted runs in a temporary file without
//! a name.
//!
//! Of several runs that have a key the newest counts. Runs of about one size are merged, eight at a
//! time, so that a key is looked for in few of them; those before a savepoint stay as they are, so
//! that going back to it cuts off the ones behind.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::write_set::Write;
use crate::Record;
use crate::btree::{self, Direction, ValueKind};
use crate::extent::{DESCRIPTOR_BYTES, Extent};
use crate::page::get_u32;
use crate::runtime::yield_task;
use crate::sort::{HEAD_BYTES, Merge, Run, RunWriter, SortError, failed};
#[cfg(test)]
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::txn::versions::Bounds;

/// Runs of one size that are merged into one.
const MERGED: usize = 8;
/// Runs that are read side by side: each has a buffer.
const READ_TOGETHER: usize = 64;
/// Most runs, which only savepoints can make so many.
pub(super) const MAX_RUNS: usize = 1024;
/// Bytes of a run between two keys that memory keeps.
const BLOCK_BYTES: u64 = 16 << 10;
/// Writes that one filter of a run is for, its bits for each of them, and bytes of all filters of a
/// run: beyond that the older writes have none, and are looked for.
const FILTER_WRITES: usize = 1 << 15;
const FILTER_BITS: usize = 10;
const MAX_FILTER_BYTES: usize = 4 << 20;
/// Bits that a write sets in its block of a filter, and 64-bit words of a block, which is a line of
/// the cache.
const FILTER_PROBES: u32 = 6;
const FILTER_WORDS: usize = 8;
/// Bytes of writes that a scan reads ahead, of all runs together; of each run it reads one at
/// least.
const AHEAD_BYTES: usize = 4 << 20;
/// Bytes of a key's tree before the key.
const TREE_BYTES: usize = 4;

const REMOVED: u8 = 0;
const INLINE: u8 = 1;
const EXTENT: u8 = 2;

/// Keys and what they are going to have.
type Writes = Vec<(Vec<u8>, Write)>;

/// A tree, by its place in the write set, and a key of it, as runs order them.
pub(super) fn place(tree: usize, key: &[u8]) -> Vec<u8> {
    let mut place = Vec::with_capacity(TREE_BYTES + key.len());
    // The most significant byte first: runs are in the order of their bytes.
    place.extend(tree_bytes(tree));
    place.extend_from_slice(key);
    place
}

fn tree_bytes(tree: usize) -> impl Iterator<Item = u8> {
    (0..TREE_BYTES)
        .rev()
        .map(move |at| (tree >> (8 * at)) as u8)
}

/// The key of a place, and what its encoded write says that it is going to have.
pub(super) fn change_of((mut key, mut value): Record) -> btree::Change {
    key.drain(..TREE_BYTES.min(key.len()));
    let kind = value.first().copied().unwrap_or(REMOVED);
    value.drain(..1.min(value.len()));
    let value = match kind {
        REMOVED => None,
        INLINE => Some((ValueKind::Inline, value)),
        _ => Some((ValueKind::Extent, value)),
    };
    btree::Change { key, value }
}

/// The tree and the key of a place.
pub(super) fn parts(place: &[u8]) -> (usize, &[u8]) {
    let (tree, key) = place.split_at(TREE_BYTES.min(place.len()));
    let tree = tree
        .iter()
        .fold(0, |tree, byte| tree << 8 | usize::from(*byte));
    (tree, key)
}

/// The places of bounds, without regard to whether these belong to the range.
fn places(tree: usize, bounds: Bounds<'_>) -> (Vec<u8>, Option<Vec<u8>>) {
    let lower = match bounds.0 {
        Bound::Included(key) | Bound::Excluded(key) => place(tree, key),
        Bound::Unbounded => place(tree, &[]),
    };
    let upper = match bounds.1 {
        Bound::Included(key) | Bound::Excluded(key) => Some(place(tree, key)),
        Bound::Unbounded => None,
    };
    (lower, upper)
}

fn record_bytes(place: usize, write: &Write) -> u64 {
    let value = match write {
        Write::Removed => 0,
        Write::Inline(value) => value.len(),
        Write::Extent(_) => DESCRIPTOR_BYTES,
    };
    (HEAD_BYTES + place + 1 + value) as u64
}

pub(super) fn decode(bytes: &[u8]) -> io::Result<Write> {
    let (kind, value) = bytes.split_first().ok_or(io::ErrorKind::InvalidData)?;
    Ok(match *kind {
        REMOVED => Write::Removed,
        INLINE => Write::Inline(value.into()),
        _ => Write::Extent(Extent::decode(value).ok_or(io::ErrorKind::InvalidData)?),
    })
}

/// The records of a block: their places and what is encoded of their writes.
fn records(block: &[u8]) -> impl Iterator<Item = io::Result<(&[u8], &[u8])>> {
    let mut rest = block;
    std::iter::from_fn(move || {
        let head = rest.get(..HEAD_BYTES)?;
        let (key, value) = (get_u32(head, 8) as usize, get_u32(head, 12) as usize);
        let Some(record) = rest.get(HEAD_BYTES..HEAD_BYTES + key + value) else {
            rest = &[];
            return Some(Err(io::ErrorKind::InvalidData.into()));
        };
        rest = &rest[HEAD_BYTES + record.len()..];
        Some(Ok(record.split_at(key)))
    })
}

fn extent_of(bytes: &[u8]) -> Option<Extent> {
    (bytes.len() == DESCRIPTOR_BYTES + 1 && bytes[0] == EXTENT)
        .then(|| Extent::decode(&bytes[1..]))
        .flatten()
}

/// Spreads the 32 bits of a checksum over all of a hash.
fn hash(place: &[u8]) -> u64 {
    let hash = u64::from(crc32c::crc32c(place)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Which places a part of a run may have: all that it has, and few others.
struct Filter(Vec<[u64; FILTER_WORDS]>);

impl Filter {
    /// For up to `count` places.
    fn new(count: usize) -> Filter {
        let bytes = count * FILTER_BITS / 8;
        Filter(vec![[0; FILTER_WORDS]; bytes / (8 * FILTER_WORDS) + 1])
    }

    fn bytes(&self) -> usize {
        self.0.len() * 8 * FILTER_WORDS
    }

    /// The block of a place, given its hash, and its bits there.
    fn bits(&self, hash: u64) -> (usize, [u64; FILTER_WORDS]) {
        let block = ((hash >> 32) as usize * self.0.len()) >> 32;
        let mut bits = [0; FILTER_WORDS];
        let mut rest = hash.wrapping_mul(0x94d0_49bb_1331_11eb);
        for _ in 0..FILTER_PROBES {
            bits[rest as usize % FILTER_WORDS] |= 1 << ((rest >> 3) & 63);
            rest >>= 9;
        }
        (block, bits)
    }

    fn add(&mut self, hash: u64) {
        let (block, bits) = self.bits(hash);
        (self.0[block].iter_mut().zip(bits)).for_each(|(word, bits)| *word |= bits);
    }

    fn may_have(&self, place: &[u8]) -> bool {
        let (block, bits) = self.bits(hash(place));
        let mut words = self.0[block].iter().zip(bits);
        words.all(|(word, bits)| word & bits == bits)
    }
}

/// One sorted run.
struct Sorted {
    run: Run,
    /// Filters of its writes: each is for those from a place on, up to where the next one begins.
    filters: Vec<(Vec<u8>, Filter)>,
    /// Its last place.
    last: Vec<u8>,
    /// How often what it has was merged.
    tier: u8,
    /// The first place of each block, and where the block begins.
    blocks: Vec<(Vec<u8>, u64)>,
    /// Whether it has large values.
    has_extents: bool,
    /// The trees that it has changes of, ascending.
    trees: Vec<usize>,
}

impl Sorted {
    /// Its first place.
    fn first(&self) -> Option<&Vec<u8>> {
        self.blocks.first().map(|block| &block.0)
    }

    /// Whether it may have something of a place.
    fn may_have(&self, place: &[u8]) -> bool {
        let behind = self.filters.partition_point(|(from, _)| **from <= *place);
        match behind.checked_sub(1).and_then(|at| self.filters.get(at)) {
            Some((_, filter)) => filter.may_have(place),
            // Before all filters; the first ones may have been dropped.
            None => self.blocks.first().is_some_and(|block| *block.0 <= *place),
        }
    }

    fn limit_filters(&mut self) {
        let bytes = |(_, filter): &(Vec<u8>, Filter)| filter.bytes();
        let mut all: usize = self.filters.iter().map(bytes).sum();
        let mut dropped = 0;
        while all > MAX_FILTER_BYTES
            && let Some(filter) = self.filters.get(dropped)
        {
            all -= bytes(filter);
            dropped += 1;
        }
        self.filters.drain(..dropped);
    }
}

/// Writes a sorted run, and notes what is to be known of it.
struct SortedWriter<'f> {
    to: RunWriter<'f>,
    sorted: Sorted,
    at: u64,
    /// Hashes of the places since the last filter, and the first of these.
    hashes: Vec<u64>,
    first: Vec<u8>,
}

impl<'f> SortedWriter<'f> {
    fn new(file: &'f File, start: u64, tier: u8) -> SortedWriter<'f> {
        SortedWriter {
            to: RunWriter::new(file, start),
            sorted: Sorted {
                run: Run { start, end: start },
                filters: Vec::new(),
                last: Vec::new(),
                tier,
                blocks: Vec::new(),
                has_extents: false,
                trees: Vec::new(),
            },
            at: start,
            hashes: Vec::new(),
            first: Vec::new(),
        }
    }

    /// Adds a write; `value` is what is encoded of it.
    fn push(&mut self, place: &[u8], value: &[&[u8]]) -> io::Result<()> {
        let sorted = &mut self.sorted;
        let begins = |block: &(Vec<u8>, u64)| self.at - block.1 >= BLOCK_BYTES;
        if sorted.blocks.last().is_none_or(begins) {
            sorted.blocks.push((place.to_vec(), self.at));
            // A transaction holds nothing that others wait for while it spills or merges. A thread
            // of its own is preempted anyway: were it to give its time away, versions that its
            // snapshot needs would be gone before it commits.
            yield_task();
        }
        let tree = parts(place).0;
        if sorted.trees.last() != Some(&tree) {
            sorted.trees.push(tree);
        }
        sorted.has_extents |= value
            .first()
            .is_some_and(|kind| kind.first() == Some(&EXTENT));
        if self.hashes.is_empty() {
            self.first = place.to_vec();
        }
        self.hashes.push(hash(place));
        sorted.last.clear();
        sorted.last.extend_from_slice(place);
        self.at += self.to.push(0, &[place], value)? as u64;
        if self.hashes.len() == FILTER_WRITES {
            self.end_filter();
        }
        Ok(())
    }

    fn end_filter(&mut self) {
        let mut filter = Filter::new(self.hashes.len());
        self.hashes.drain(..).for_each(|hash| filter.add(hash));
        let first = std::mem::take(&mut self.first);
        self.sorted.filters.push((first, filter));
        self.sorted.limit_filters();
    }

    /// The run, unless it is empty.
    fn finish(mut self) -> io::Result<Option<Sorted>> {
        if self.sorted.blocks.is_empty() {
            return Ok(None);
        }
        self.end_filter();
        self.sorted.run.end = self.to.finish()?;
        Ok(Some(self.sorted))
    }
}

/// Writes what a merge gives as one run.
fn write_merged(
    file: &File,
    start: u64,
    tier: u8,
    records: impl Iterator<Item = io::Result<(Vec<u8>, Vec<u8>)>>,
) -> io::Result<Option<Sorted>> {
    let mut run = SortedWriter::new(file, start, tier);
    for record in records {
        let (place, value) = record?;
        run.push(&place, &[&value])?;
    }
    run.finish()
}

fn bytes_of(sorted: &Option<Sorted>) -> u64 {
    sorted
        .as_ref()
        .map_or(0, |sorted| sorted.run.end - sorted.run.start)
}

/// All runs of a transaction, oldest first.
pub(super) struct Spilled {
    directory: PathBuf,
    file: Arc<File>,
    runs: Vec<Sorted>,
    /// Bytes that were written and not told of.
    written: u64,
    #[cfg(test)]
    blocks_read: AtomicUsize,
}

impl Spilled {
    pub(super) fn new(directory: PathBuf) -> Result<Spilled, SortError> {
        let file = tempfile::tempfile_in(&directory).map_err(failed(&directory))?;
        Ok(Spilled {
            directory,
            file: Arc::new(file),
            runs: Vec::new(),
            written: 0,
            #[cfg(test)]
            blocks_read: AtomicUsize::new(0),
        })
    }

    /// Bytes that were written since this was asked last.
    pub(super) fn take_written(&mut self) -> u64 {
        std::mem::take(&mut self.written)
    }

    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The trees that there are changes of.
    pub(super) fn trees(&self) -> Vec<usize> {
        let mut trees: Vec<usize> = self
            .runs
            .iter()
            .flat_map(|run| &run.trees)
            .copied()
            .collect();
        trees.sort_unstable();
        trees.dedup();
        trees
    }

    /// Where in the file a run of up to `bytes` bytes has space: between others, if that is so.
    fn space_for(&self, bytes: u64) -> u64 {
        let mut taken: Vec<Run> = self.runs.iter().map(|sorted| sorted.run).collect();
        taken.sort_unstable_by_key(|run| run.start);
        let mut at = 0;
        for run in taken {
            if run.start >= at + bytes {
                break;
            }
            at = at.max(run.end);
        }
        at
    }

    /// Adds a run of `writes`, which are in order: their trees, keys, and what these are going to
    /// have; nothing where there are none.
    pub(super) fn add<'w>(
        &mut self,
        writes: impl Iterator<Item = (usize, &'w [u8], &'w Write)> + Clone,
    ) -> Result<(), SortError> {
        let sizes = writes
            .clone()
            .map(|(_, key, write)| record_bytes(TREE_BYTES + key.len(), write));
        let start = self.space_for(sizes.sum());
        let written = self.write_all(start, writes);
        let sorted = written.map_err(failed(&self.directory))?;
        self.written += bytes_of(&sorted);
        self.runs.extend(sorted);
        Ok(())
    }

    fn write_all<'w>(
        &self,
        start: u64,
        writes: impl Iterator<Item = (usize, &'w [u8], &'w Write)>,
    ) -> io::Result<Option<Sorted>> {
        let mut run = SortedWriter::new(&self.file, start, 0);
        let mut place = Vec::new();
        for (tree, key, write) in writes {
            place.clear();
            place.extend(tree_bytes(tree));
            place.extend_from_slice(key);
            match write {
                Write::Removed => run.push(&place, &[&[REMOVED]])?,
                Write::Inline(value) => run.push(&place, &[&[INLINE], value])?,
                Write::Extent(extent) => run.push(&place, &[&[EXTENT], &extent.encode()])?,
            }
        }
        run.finish()
    }

    /// Makes one run of the last two, where the last one goes on where the one before it ends. So
    /// writes in order make one run.
    pub(super) fn join(&mut self) {
        let [.., first, second] = &mut self.runs[..] else {
            return;
        };
        let second_starts = second.blocks.first().map(|block| &block.0);
        if first.run.end != second.run.start || second_starts.is_none_or(|at| *at <= first.last) {
            return;
        }
        first.run.end = second.run.end;
        first.blocks.append(&mut second.blocks);
        first.filters.append(&mut second.filters);
        first.last = std::mem::take(&mut second.last);
        first.has_extents |= second.has_extents;
        first.trees.append(&mut second.trees);
        first.trees.dedup();
        first.limit_filters();
        self.runs.pop();
    }

    /// Merges runs of one size; not the first `kept`. Large values that are shadowed go to `dead`.
    pub(super) fn merge(&mut self, kept: usize, dead: &mut Vec<Extent>) -> Result<(), SortError> {
        // Bound: each round leaves fewer runs.
        while self.runs.len() >= kept + MERGED {
            let from = self.runs.len() - MERGED;
            let tier = self.runs[from].tier;
            if self.runs[from..].iter().any(|run| run.tier != tier) {
                break;
            }
            self.merge_from(from, self.runs.len(), dead)?;
        }
        Ok(())
    }

    fn merge_from(
        &mut self,
        from: usize,
        to: usize,
        dead: &mut Vec<Extent>,
    ) -> Result<(), SortError> {
        let runs: Vec<Run> = self.runs[from..to]
            .iter()
            .map(|sorted| sorted.run)
            .collect();
        let tier = self.runs[from].tier + 1;
        let directory = self.directory.clone();
        let failed = failed(&directory);
        let mut merge = Merge::new(&self.file, &runs, None).map_err(&failed)?;
        let mut shadowed = Vec::new();
        let records = std::iter::from_fn(|| {
            let next = merge.next_past(&mut |value| shadowed.extend(extent_of(value)));
            next.transpose()
        });
        let bytes = runs.iter().map(|run| run.end - run.start).sum();
        let merged = write_merged(&self.file, self.space_for(bytes), tier, records);
        let merged = merged.map_err(&failed)?;
        self.written += bytes_of(&merged);
        dead.append(&mut shadowed);
        self.runs.splice(from..to, merged);
        Ok(())
    }

    /// All writes by tree and key, of each key the newest. The runs are as many as before, or
    /// fewer.
    pub(super) fn sorted(&mut self, dead: &mut Vec<Extent>) -> Result<Merge, SortError> {
        // Bound: each round leaves fewer runs.
        while self.runs.len() > READ_TOGETHER {
            let mut from = 0;
            while from < self.runs.len() {
                let to = self.runs.len().min(from + READ_TOGETHER);
                self.merge_from(from, to, dead)?;
                from += 1;
            }
        }
        let runs: Vec<Run> = self.runs.iter().map(|sorted| sorted.run).collect();
        Merge::new(&self.file, &runs, None).map_err(failed(&self.directory))
    }

    /// The error of reading a record back.
    pub(super) fn failed(&self, error: io::Error) -> SortError {
        failed(&self.directory)(error)
    }

    /// The next write of a merge: its place, and what is encoded of it; large values that newer
    /// writes shadow go to `dead`.
    pub(super) fn next_of(
        &self,
        merge: &mut Merge,
        dead: &mut Vec<Extent>,
    ) -> Result<Option<Record>, SortError> {
        let next = merge.next_past(&mut |value| dead.extend(extent_of(value)));
        next.map_err(|error| self.failed(error))
    }

    /// Cuts off all runs but the first `kept`; their large values go to `dead`. One that cannot be
    /// read keeps its space until the store is closed.
    pub(super) fn truncate(&mut self, kept: usize, dead: &mut Vec<Extent>) {
        for sorted in self.runs.drain(kept.min(self.runs.len())..) {
            if !sorted.has_extents {
                continue;
            }
            if let Ok(mut merge) = Merge::new(&self.file, &[sorted.run], None) {
                while let Ok(Some((_, value))) = merge.next_past(&mut |_| {}) {
                    dead.extend(extent_of(&value));
                }
            }
        }
    }

    /// What the runs have of `key`.
    pub(super) fn get(&self, tree: usize, key: &[u8]) -> Result<Option<Write>, SortError> {
        let wanted = place(tree, key);
        for sorted in self.runs.iter().rev() {
            if !sorted.may_have(&wanted) {
                continue;
            }
            let found = self.find(sorted, &wanted);
            if let Some(write) = found.map_err(|error| self.failed(error))? {
                return Ok(Some(write));
            }
        }
        Ok(None)
    }

    /// Whether a run may have something of `key`: where one has, this is true.
    pub(super) fn may_have(&self, tree: usize, key: &[u8]) -> bool {
        let wanted = place(tree, key);
        self.runs.iter().any(|run| run.may_have(&wanted))
    }

    /// Whether all runs lie before or behind `bounds`.
    pub(super) fn has_none_within(&self, tree: usize, bounds: Bounds<'_>) -> bool {
        let (lower, upper) = places(tree, bounds);
        let is_behind = |first: &Vec<u8>| upper.as_ref().is_some_and(|upper| first > upper);
        (self.runs.iter()).all(|run| run.last < lower || run.first().is_none_or(is_behind))
    }

    fn find(&self, sorted: &Sorted, wanted: &[u8]) -> io::Result<Option<Write>> {
        let behind = sorted.blocks.partition_point(|block| *block.0 <= *wanted);
        let Some(at) = behind.checked_sub(1) else {
            return Ok(None);
        };
        let bytes = self.block(sorted, at)?;
        // Bound: each round passes a record.
        for record in records(&bytes) {
            let (place, value) = record?;
            if place >= wanted {
                return (place == wanted).then(|| decode(value)).transpose();
            }
        }
        Ok(None)
    }

    /// The bytes of one block.
    fn block(&self, sorted: &Sorted, at: usize) -> io::Result<Vec<u8>> {
        #[cfg(test)]
        self.blocks_read.fetch_add(1, Ordering::Relaxed);
        let start = sorted.blocks[at].1;
        let end = sorted.blocks.get(at + 1).map_or(sorted.run.end, |b| b.1);
        let mut bytes = vec![0; (end - start) as usize];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }

    /// Up to `max` writes of each run within `bounds`, from where `direction` begins, as lists from
    /// the oldest run to the newest one, each by ascending keys; and the last key up to which none
    /// is missing, where some may be. The lists have some [`AHEAD_BYTES`] at most.
    pub(super) fn within(
        &self,
        tree: usize,
        bounds: Bounds<'_>,
        direction: Direction,
        max: usize,
    ) -> Result<(Vec<Writes>, Option<Vec<u8>>), SortError> {
        let mut cut: Option<Vec<u8>> = None;
        let mut lists = Vec::with_capacity(self.runs.len());
        let max_bytes = AHEAD_BYTES / self.runs.len().max(1);
        for sorted in &self.runs {
            let (mut list, is_cut) = self
                .of_run(sorted, tree, bounds, direction, (max, max_bytes))
                .map_err(|error| self.failed(error))?;
            if is_cut && let Some((last, _)) = list.last() {
                cut = Some(match (cut, direction) {
                    (None, _) => last.clone(),
                    (Some(cut), Direction::Forward) => cut.min(last.clone()),
                    (Some(cut), Direction::Reverse) => cut.max(last.clone()),
                });
            }
            if direction == Direction::Reverse {
                list.reverse();
            }
            lists.push(list);
        }
        Ok((lists, cut))
    }

    /// Up to `max` writes of a run, in the order of `direction`, with about `max_bytes` bytes;
    /// whether there are more.
    fn of_run(
        &self,
        sorted: &Sorted,
        tree: usize,
        bounds: Bounds<'_>,
        direction: Direction,
        (max, max_bytes): (usize, usize),
    ) -> io::Result<(Writes, bool)> {
        let is_in = |key: &[u8]| {
            (match bounds.0 {
                Bound::Included(lower) => key >= lower,
                Bound::Excluded(lower) => key > lower,
                Bound::Unbounded => true,
            }) && (match bounds.1 {
                Bound::Included(upper) => key <= upper,
                Bound::Excluded(upper) => key < upper,
                Bound::Unbounded => true,
            })
        };
        let (lower, upper) = places(tree, bounds);
        // The blocks that may have some.
        let first = sorted.blocks.partition_point(|block| block.0 <= lower);
        let first = first.saturating_sub(1);
        let end = sorted.blocks.partition_point(|block| match &upper {
            Some(upper) => block.0 <= *upper,
            None => parts(&block.0).0 <= tree,
        });
        let mut list = Vec::new();
        let mut bytes = 0;
        let mut blocks: Vec<usize> = (first..end.max(first)).collect();
        if direction == Direction::Reverse {
            blocks.reverse();
        }
        for at in blocks {
            let block = self.block(sorted, at)?;
            let mut records = records(&block).collect::<io::Result<Vec<_>>>()?;
            if direction == Direction::Reverse {
                records.reverse();
            }
            for (place, value) in records {
                let (of, key) = parts(place);
                if of == tree && is_in(key) {
                    if list.len() == max || bytes >= max_bytes {
                        return Ok((list, true));
                    }
                    bytes += key.len() + value.len();
                    list.push((key.to_vec(), decode(value)?));
                }
            }
        }
        Ok((list, false))
    }
}

#[cfg(test)]
impl Spilled {
    /// Blocks that were read one by one.
    pub(super) fn blocks_read(&self) -> usize {
        self.blocks_read.load(Ordering::Relaxed)
    }

    /// Has `file` take the place of the temporary file.
    pub(super) fn swap_file(&mut self, file: &mut Arc<File>) {
        std::mem::swap(&mut self.file, file);
    }

    /// Where the last run ends.
    pub(super) fn file_bytes(&self) -> u64 {
        self.runs
            .iter()
            .map(|sorted| sorted.run.end)
            .max()
            .unwrap_or(0)
    }
}
