//! Loading records in any order: they are sorted first, so that pages are written once.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use crate::api::tree::{Tree, check_key, check_value};
use crate::api::{bulk, transaction};
use crate::error::LoadError;
use crate::runtime::{Urgency, block_on};
use crate::sort::{Sorted, Sorter};
use crate::{PAGE_SIZE, Record, TaskHandle, Watch};

/// Bytes that are sorted in memory: a quarter of the pool, between these.
const SORTED_BYTES: std::ops::RangeInclusive<u64> = 16 << 20..=512 << 20;
/// Records, and bytes of these, that one commit inserts into a tree that has records already; fewer
/// with a small log.
const COMMIT_RECORDS: usize = 256;
const COMMIT_BYTES: usize = 64 << 10;
/// Commits of each worker that are in flight: half of its tasks, within these bounds. They share
/// flushes of the log.
const COMMITS_PER_WORKER: std::ops::RangeInclusive<usize> = 4..=32;
/// Records between two reports of progress.
const REPORTED: u64 = 4096;

/// Takes records in any order and stores them sorted, from [`Tree::loader`].
///
/// Up to a quarter of the buffer pool's size, and 16 to 512 MiB, is sorted in memory; what is more
/// waits in a temporary file beside the store (in the system's directory for temporary files, for a
/// store in memory) that takes as much space as the records. Dropping it before [`Loader::finish`]
/// leaves the tree as it is.
#[must_use = "nothing is stored before finish"]
pub struct Loader {
    tree: Tree,
    sorter: Sorter,
    pushed: u64,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("tree", &self.tree.name())
            .field("records", &self.pushed)
            .finish_non_exhaustive()
    }
}

impl Tree {
    /// Stores records in any order; of several with the same key the last one counts. Returns how
    /// many there are now of those. Much faster than inserting them one by one, as every page is
    /// written once.
    ///
    /// Where all keys lie above those of the tree, or it is empty, they appear together at the end,
    /// as those of [`Tree::bulk_load`]. Elsewhere they are inserted by key, some hundred in a
    /// commit: if that fails, a first part of them is stored, and loading them all again
    /// completes it.
    ///
    /// ```
    /// # fn main() -> Result<(), isobath::Error> {
    /// use isobath::{Options, Store};
    ///
    /// let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// let depths = store.create_tree("depths")?;
    /// let loaded = depths.load([("Erie", "64"), ("Baikal", "1642"), ("Erie", "19")])?;
    /// assert_eq!((loaded, depths.get("Erie")?), (2, Some(b"19".to_vec())));
    /// # store.close()
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Any [`LoadError`] but [`LoadError::Interrupted`]; [`LoadError::Sort`] if there is no
    /// space for the temporary file.
    pub fn load<K, V, I>(&self, records: I) -> Result<u64, LoadError>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
        I: IntoIterator<Item = (K, V)>,
    {
        let mut loader = self.loader()?;
        for (key, value) in records {
            loader.push(key, value)?;
        }
        loader.finish(&mut |_, _, _| ControlFlow::Continue(()))
    }

    /// Begins to load records that come one by one, in any order; see [`Tree::load`].
    ///
    /// # Errors
    ///
    /// [`LoadError::ReadOnly`], [`LoadError::TreeDropped`],
    /// [`StorageError::Poisoned`](crate::StorageError::Poisoned),
    /// [`StorageError::Closed`](crate::StorageError::Closed).
    pub fn loader(&self) -> Result<Loader, LoadError> {
        self.alive()?;
        let engine = self.runtime.engine()?;
        engine.shared.writable()?;
        let pool = u64::from(engine.buffer.pool.frames.count()) * PAGE_SIZE as u64;
        let limit = (pool / 4).clamp(*SORTED_BYTES.start(), *SORTED_BYTES.end());
        let directory = self.runtime.directory.clone();
        Ok(Loader {
            tree: self.clone(),
            sorter: Sorter::new(limit as usize, directory),
            pushed: 0,
        })
    }
}

impl Loader {
    /// Keeps temporary files in `directory`.
    pub fn temporary_files_in(mut self, directory: impl Into<PathBuf>) -> Loader {
        self.sorter.set_directory(directory.into());
        self
    }

    /// Takes one record.
    ///
    /// # Errors
    ///
    /// [`LoadError::KeyTooLong`], [`LoadError::ValueTooLong`], after which others can be pushed;
    /// [`LoadError::Sort`].
    pub fn push(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), LoadError> {
        self.push_numbered(self.pushed, key, value)
    }

    /// Takes one record that the caller calls `number`, such as the line that it comes from;
    /// without that they are counted from 0.
    ///
    /// # Errors
    ///
    /// As for [`Loader::push`].
    pub fn push_numbered(
        &mut self,
        number: u64,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), LoadError> {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_key(key)?;
        check_value(value.len() as u64)?;
        self.pushed += 1;
        Ok(self.sorter.push(number, key, value)?)
    }

    /// Calls `told` with the numbers of two records of the same key, of which the second one stays,
    /// once or more for each that is replaced; see [`Loader::push_numbered`].
    pub fn on_replaced(mut self, told: impl Fn(u64, u64) + Send + Sync + 'static) -> Loader {
        self.sorter.on_replaced(Arc::new(told));
        self
    }

    /// Stores all records and returns how many there are, those of the same key counted once.
    /// `watch` is called with how many of those that were pushed have been passed: in the stage
    /// `storing`, of which all or none are stored at the end, or in the stage `inserting`, where so
    /// many, in the order of their keys, are stored already whatever happens.
    ///
    /// # Errors
    ///
    /// As for [`Tree::load`]; [`LoadError::Interrupted`] if `watch` says so.
    pub fn finish(mut self, watch: Watch<'_>) -> Result<u64, LoadError> {
        self.sorter.sort()?;
        let Some(first) = self.records(watch)?.next().transpose()? else {
            return Ok(0);
        };
        // A tree that has only lower keys. If it has changed since, the load is refused.
        let last = transaction::last_key(&self.tree)?;
        if last.is_none_or(|last| last < first.0) {
            match bulk::load(&self.tree, self.records(watch)?) {
                Err(LoadError::LoadOrder { .. }) => {}
                other => return other,
            }
        }
        let mut stored = 0;
        let done = self.insert_all(watch, &mut stored);
        if done.is_err() {
            // How much is in, also if the caller had it stop.
            let _ = watch("inserting", stored, self.pushed);
        }
        done.map(|()| stored)
    }

    /// The records, sorted; `watch` may end them.
    fn records<'l>(
        &'l self,
        watch: &'l mut (dyn FnMut(&'static str, u64, u64) -> ControlFlow<()> + Send),
    ) -> Result<impl Iterator<Item = Result<Record, LoadError>> + 'l, LoadError> {
        let sorted: Sorted<'_> = self.sorter.records()?;
        let mut passed = 0;
        Ok(sorted.map(move |record| {
            passed += 1;
            if passed % REPORTED == 0 && watch("storing", passed, self.pushed).is_break() {
                return Err(LoadError::Interrupted);
            }
            record.map_err(|error| self.sorter.failed(error).into())
        }))
    }

    /// Inserts the records by key, those that lie close to each other together; `stored` counts
    /// those of commits before the first one that failed.
    fn insert_all(&self, watch: Watch<'_>, stored: &mut u64) -> Result<(), LoadError> {
        let engine = self.tree.runtime.engine()?;
        let config = &engine.shared.config;
        let per_worker =
            (config.tasks / 2).clamp(*COMMITS_PER_WORKER.start(), *COMMITS_PER_WORKER.end());
        let most = per_worker * config.workers;
        let mut in_flight = InFlight::default();
        let mut batch: Vec<Record> = Vec::new();
        let mut bytes = 0;
        let mut reported = 0;
        let mut records = self.sorter.records()?;
        let ended = loop {
            let record = match records.next().transpose() {
                Ok(record) => record,
                Err(error) => break Err(self.sorter.failed(error).into()),
            };
            let is_last = record.is_none();
            if let Some((key, value)) = record {
                bytes += key.len() + value.len();
                batch.push((key, value));
            }
            // Each of them may split a leaf.
            let max_records = COMMIT_RECORDS.min(engine.log.splits_per_commit());
            if batch.len() < max_records && bytes < COMMIT_BYTES && !is_last {
                continue;
            }
            bytes = 0;
            let (tree, commit) = (self.tree.clone(), std::mem::take(&mut batch));
            let records = commit.len() as u64;
            let work = move || transaction::insert_together(&tree, &commit);
            in_flight.push(
                records,
                self.tree.runtime.spawn(Urgency::Ordinary, None, work),
            );
            if is_last {
                break Ok(());
            }
            in_flight.wait(most, stored)?;
            if *stored - reported >= REPORTED {
                reported = *stored;
                if watch("inserting", *stored, self.pushed).is_break() {
                    break Err(LoadError::Interrupted);
                }
            }
        };
        in_flight.wait(0, stored)?;
        ended
    }
}

/// Commits that are under way, oldest first, with the records of each.
#[derive(Default)]
struct InFlight(VecDeque<(u64, TaskHandle<Result<(), LoadError>>)>);

impl InFlight {
    fn push(&mut self, records: u64, task: TaskHandle<Result<(), LoadError>>) {
        self.0.push_back((records, task));
    }

    /// Waits until at most `most` are left, and for all if one fails; counts the records of
    /// those before that.
    fn wait(&mut self, most: usize, stored: &mut u64) -> Result<(), LoadError> {
        let mut failed = None;
        while self.0.len() > most || failed.is_some() {
            let Some((records, task)) = self.0.pop_front() else {
                break;
            };
            match (block_on(task.flat()), &failed) {
                (Ok(()), None) => *stored += records,
                (Err(error), None) => failed = Some(error),
                _ => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
