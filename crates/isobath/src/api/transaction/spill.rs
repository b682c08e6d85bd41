//! The writes of a transaction that do not fit into memory: sorted runs in a temporary file without a name.
//!
//! Of several runs that have a key the newest counts. Runs of about one size are merged, eight at a time, so that a key is looked
//! for in few of them; those before a savepoint stay as they are, so that going back to it cuts off the ones behind.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::write_set::Write;
use crate::Error;
use crate::btree::Direction;
use crate::extent::{DESCRIPTOR_BYTES, Extent};
use crate::page::get_u32;
use crate::runtime::yield_task;
use crate::sort::{HEAD_BYTES, Merge, Run, failed, write_run};
use crate::txn::versions::Bounds;

/// Runs of one size that are merged into one.
const MERGED: usize = 8;
/// Runs that are read side by side: each has a buffer.
const READ_TOGETHER: usize = 64;
/// Most runs, which only savepoints can make so many.
pub(super) const MAX_RUNS: usize = 1024;
/// Bytes of a run between two keys that memory keeps.
const BLOCK_BYTES: u64 = 16 << 10;
/// Bytes of writes that a scan reads ahead, of all runs together; of each run it reads one at least.
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

/// The tree and the key of a place.
pub(super) fn parts(place: &[u8]) -> (usize, &[u8]) {
    let (tree, key) = place.split_at(TREE_BYTES.min(place.len()));
    let tree = tree
        .iter()
        .fold(0, |tree, byte| tree << 8 | usize::from(*byte));
    (tree, key)
}

fn encode(write: &Write) -> Vec<u8> {
    match write {
        Write::Removed => vec![REMOVED],
        Write::Inline(value) => [&[INLINE], &value[..]].concat(),
        Write::Extent(extent) => [&[EXTENT], &extent.encode()[..]].concat(),
    }
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

fn extent_of(bytes: &[u8]) -> Option<Extent> {
    (bytes.len() == DESCRIPTOR_BYTES + 1 && bytes[0] == EXTENT)
        .then(|| Extent::decode(&bytes[1..]))
        .flatten()
}

/// One sorted run.
struct Sorted {
    run: Run,
    /// How often what it has was merged.
    tier: u8,
    /// The first place of each block, and where the block begins.
    blocks: Vec<(Vec<u8>, u64)>,
    /// Whether it has large values.
    has_extents: bool,
    /// The trees that it has changes of, ascending.
    trees: Vec<usize>,
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
}

impl Spilled {
    pub(super) fn new(directory: PathBuf) -> Result<Spilled, Error> {
        let file = tempfile::tempfile_in(&directory).map_err(failed(&directory))?;
        Ok(Spilled {
            directory,
            file: Arc::new(file),
            runs: Vec::new(),
            written: 0,
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

    /// Where in the file a run of up to `bytes` bytes has room: between others, if that is so.
    fn room(&self, bytes: u64) -> u64 {
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

    /// Adds a run of `writes`, which are in order; nothing where there are none.
    pub(super) fn add<'w>(
        &mut self,
        writes: impl Iterator<Item = (Vec<u8>, &'w Write)> + Clone,
    ) -> Result<(), Error> {
        let bytes = writes
            .clone()
            .map(|(place, write)| record_bytes(place.len(), write));
        let start = self.room(bytes.sum());
        let records = writes.map(|(place, write)| Ok((place, encode(write))));
        let sorted = self
            .write(start, 0, records)
            .map_err(failed(&self.directory))?;
        self.written += bytes_of(&sorted);
        self.runs.extend(sorted);
        Ok(())
    }

    fn write(
        &self,
        start: u64,
        tier: u8,
        records: impl Iterator<Item = io::Result<(Vec<u8>, Vec<u8>)>>,
    ) -> io::Result<Option<Sorted>> {
        let mut sorted = Sorted {
            run: Run { start, end: start },
            tier,
            blocks: Vec::new(),
            has_extents: false,
            trees: Vec::new(),
        };
        let mut at = start;
        let noted = records.map(|record| {
            let (place, value) = record?;
            let is_new = sorted.blocks.last().is_none_or(|b| at - b.1 >= BLOCK_BYTES);
            if is_new {
                sorted.blocks.push((place.clone(), at));
                // A transaction holds nothing that others wait for while it spills or merges. A thread of its own is preempted anyway:
                // were it to give its time away, versions that its snapshot needs would be gone before it commits.
                yield_task();
            }
            let tree = parts(&place).0;
            if sorted.trees.last() != Some(&tree) {
                sorted.trees.push(tree);
            }
            sorted.has_extents |= value[0] == EXTENT;
            at += (HEAD_BYTES + place.len() + value.len()) as u64;
            Ok((0, place, value))
        });
        let end = write_run(&self.file, start, noted)?;
        sorted.run.end = end;
        Ok((end > start).then_some(sorted))
    }

    /// Merges runs of one size; not the first `kept`. Large values that are shadowed go to `dead`.
    pub(super) fn merge(&mut self, kept: usize, dead: &mut Vec<Extent>) -> Result<(), Error> {
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

    fn merge_from(&mut self, from: usize, to: usize, dead: &mut Vec<Extent>) -> Result<(), Error> {
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
        let merged = self.write(self.room(bytes), tier, records);
        let merged = merged.map_err(&failed)?;
        self.written += bytes_of(&merged);
        dead.append(&mut shadowed);
        self.runs.splice(from..to, merged);
        Ok(())
    }

    /// All writes by tree and key, of each key the newest. The runs are as many as before, or fewer.
    pub(super) fn sorted(&mut self, dead: &mut Vec<Extent>) -> Result<Merge, Error> {
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
    pub(super) fn failed(&self, error: io::Error) -> Error {
        failed(&self.directory)(error)
    }

    /// The next write of a merge, with its tree and key; large values that newer writes shadow go to `dead`.
    pub(super) fn next_of(
        &self,
        merge: &mut Merge,
        dead: &mut Vec<Extent>,
    ) -> Result<Option<(Vec<u8>, Write)>, Error> {
        let next = merge.next_past(&mut |value| dead.extend(extent_of(value)));
        let next = next.and_then(|next| {
            next.map(|(place, value)| Ok((place, decode(&value)?)))
                .transpose()
        });
        next.map_err(|error| self.failed(error))
    }

    /// Cuts off all runs but the first `kept`; their large values go to `dead`. One that cannot be read keeps its space until
    /// the store is closed.
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
    pub(super) fn get(&self, tree: usize, key: &[u8]) -> Result<Option<Write>, Error> {
        let wanted = place(tree, key);
        for sorted in self.runs.iter().rev() {
            let behind = sorted.blocks.partition_point(|block| block.0 <= wanted);
            if behind == 0 {
                continue;
            }
            let block = self.block(sorted, behind - 1).map_err(|e| self.failed(e))?;
            if let Ok(at) = block.binary_search_by(|(place, _)| place.cmp(&wanted)) {
                return decode(&block[at].1)
                    .map(Some)
                    .map_err(|error| self.failed(error));
            }
        }
        Ok(None)
    }

    /// The records of one block.
    fn block(&self, sorted: &Sorted, at: usize) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let start = sorted.blocks[at].1;
        let end = sorted.blocks.get(at + 1).map_or(sorted.run.end, |b| b.1);
        let mut bytes = vec![0; (end - start) as usize];
        self.file.read_exact_at(&mut bytes, start)?;
        let mut records = Vec::new();
        let mut rest = &bytes[..];
        while rest.len() >= HEAD_BYTES {
            let (key, value) = (get_u32(rest, 8) as usize, get_u32(rest, 12) as usize);
            let record = rest.get(HEAD_BYTES..HEAD_BYTES + key + value);
            let (key, value) = record.ok_or(io::ErrorKind::InvalidData)?.split_at(key);
            records.push((key.to_vec(), value.to_vec()));
            rest = &rest[HEAD_BYTES + key.len() + value.len()..];
        }
        Ok(records)
    }

    /// Up to `max` writes of each run within `bounds`, from where `direction` begins, as lists from the oldest run to the newest one, each by
    /// ascending keys; and the last key up to which none is missing, where some may be. The lists have some [`AHEAD_BYTES`] at most.
    pub(super) fn within(
        &self,
        tree: usize,
        bounds: Bounds<'_>,
        direction: Direction,
        max: usize,
    ) -> Result<(Vec<Writes>, Option<Vec<u8>>), Error> {
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

    /// Up to `max` writes of a run, in the order of `direction`, with about `max_bytes` bytes; whether there are more.
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
        let lower = match bounds.0 {
            Bound::Included(key) | Bound::Excluded(key) => place(tree, key),
            Bound::Unbounded => place(tree, &[]),
        };
        let upper = match bounds.1 {
            Bound::Included(key) | Bound::Excluded(key) => Some(place(tree, key)),
            Bound::Unbounded => None,
        };
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
            let mut records = self.block(sorted, at)?;
            if direction == Direction::Reverse {
                records.reverse();
            }
            for (place, value) in records {
                let (of, key) = parts(&place);
                if of == tree && is_in(key) {
                    if list.len() == max || bytes >= max_bytes {
                        return Ok((list, true));
                    }
                    bytes += key.len() + value.len();
                    list.push((key.to_vec(), decode(&value)?));
                }
            }
        }
        Ok((list, false))
    }
}

#[cfg(test)]
impl Spilled {
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
