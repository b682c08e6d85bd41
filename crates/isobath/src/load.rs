//! Loading records in any order: they are sorted first, so that pages are written once.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;

use crate::sort::{Sorted, Sorter};
use crate::tree::{Tree, check_key, check_value};
use crate::{Error, PAGE_SIZE, Record, TaskHandle, Watch, bulk, transaction};

/// Bytes that are sorted in memory: a quarter of the pool, between these.
const SORTED_BYTES: std::ops::RangeInclusive<u64> = 16 << 20..=512 << 20;
/// Records, and bytes of these, that one commit inserts into a tree that has records already.
const COMMIT_RECORDS: usize = 256;
const COMMIT_BYTES: usize = 64 << 10;
/// Commits of each worker that are in flight.
const COMMITS_PER_WORKER: usize = 4;
/// Records between two reports of progress.
const REPORTED: u64 = 4096;

/// Takes records in any order and stores them sorted, from [`Tree::loader`].
///
/// Up to a quarter of the buffer pool's size, and 16 to 512 MiB, is sorted in memory; what is more waits in a
/// temporary file beside the store (in the system's directory for temporary files, for a store in memory) that
/// takes as much room as the records. Dropping it before [`Loader::finish`] leaves the tree as it is.
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
    /// many there are now of those. Much faster than inserting them one by one, as every page is written once.
    ///
    /// Where all keys lie above those of the tree, or it is empty, they appear together at the end, as those of
    /// [`Tree::bulk_load`]. Elsewhere they are inserted by key, some hundred in a commit: where that fails,
    /// a first part of them is stored, and loading them all again completes it.
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
    /// As for [`Tree::insert`]; [`Error::Sort`] where there is no room for the temporary file.
    pub fn load<K, V, I>(&self, records: I) -> Result<u64, Error>
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
    /// [`Error::ReadOnly`], [`Error::Poisoned`], [`Error::TreeDropped`], [`Error::Closed`].
    pub fn loader(&self) -> Result<Loader, Error> {
        self.alive()?;
        let engine = &self.runtime.engine;
        engine.writable()?;
        let pool = u64::from(engine.pool.frames.count()) * PAGE_SIZE as u64;
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
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], after which others can be pushed; [`Error::Sort`].
    pub fn push(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_key(key)?;
        check_value(value.len() as u64)?;
        self.pushed += 1;
        self.sorter.push(key, value)
    }

    /// Stores all records and returns how many there are, those of the same key counted once. `watch` is told
    /// how many of those that were pushed have been passed.
    ///
    /// # Errors
    ///
    /// As for [`Tree::load`]; [`Error::Interrupted`] where `watch` says so.
    pub fn finish(mut self, watch: Watch<'_>) -> Result<u64, Error> {
        self.sorter.sort()?;
        let Some(first) = self.records(watch)?.next().transpose()? else {
            return Ok(0);
        };
        // A tree that has only lower keys. Where it has changed meanwhile, the load is refused.
        if self.tree.last()?.is_none_or(|last| last.0 < first.0) {
            match bulk::load(&self.tree, self.records(watch)?) {
                Err(Error::LoadOrder { .. }) => {}
                other => return other,
            }
        }
        self.insert_all(watch)
    }

    /// The records, sorted; `watch` may end them.
    fn records<'l>(
        &'l self,
        watch: &'l mut (dyn FnMut(&'static str, u64, u64) -> ControlFlow<()> + Send),
    ) -> Result<impl Iterator<Item = Result<Record, Error>> + 'l, Error> {
        let sorted: Sorted<'_> = self.sorter.records()?;
        let mut passed = 0;
        Ok(sorted.map(move |record| {
            passed += 1;
            if passed % REPORTED == 0 && watch("storing", passed, self.pushed).is_break() {
                return Err(Error::Interrupted);
            }
            record.map_err(|error| self.sorter.failed(error))
        }))
    }

    /// Inserts the records by key, those that lie close to each other together.
    fn insert_all(&self, watch: Watch<'_>) -> Result<u64, Error> {
        let most = COMMITS_PER_WORKER * self.tree.runtime.engine.config.workers;
        let mut in_flight: VecDeque<TaskHandle<Result<(), Error>>> = VecDeque::new();
        let mut stored = 0;
        let mut batch: Vec<Record> = Vec::new();
        let mut bytes = 0;
        let mut records = self.records(watch)?;
        loop {
            let record = records.next().transpose()?;
            let is_last = record.is_none();
            if let Some((key, value)) = record {
                bytes += key.len() + value.len();
                batch.push((key, value));
            }
            if batch.len() < COMMIT_RECORDS && bytes < COMMIT_BYTES && !is_last {
                continue;
            }
            stored += batch.len() as u64;
            bytes = 0;
            let (tree, commit) = (self.tree.clone(), std::mem::take(&mut batch));
            let work = move || transaction::insert_together(&tree, &commit);
            in_flight.push_back(self.tree.runtime.spawn(None, work));
            while in_flight.len() > if is_last { 0 } else { most } {
                if let Some(oldest) = in_flight.pop_front() {
                    crate::sched::block_on(oldest.flat())?;
                }
            }
            if is_last {
                return Ok(stored);
            }
        }
    }
}
