//! The committed changes of a store as a stream, read from its write-ahead log.
//!
//! Only what is durable is read, so no crash takes back what the stream has given out. The order:
//!
//! 1. The writer makes a record durable, with the chunks that it names. [`Feed`] learns up to
//!    where: in the writer's process from the log itself; beside it from later records, which say
//!    how far the log was durable before them. What no later record follows it flushes itself.
//! 2. The record is read. Its checksum has the store's identity and its position: what lies there
//!    is that record, whatever the writer has done since.
//! 3. Where no record is read before the known end, the newest superblock, read after that, says
//!    why: the log begins behind that place, and the stream has fallen behind; or it is corrupt.
//!
//! The log has small changes by key. Two things it does not have: the bytes of a large value that
//! was replaced since, and the records of trees that a load or a large transaction has changed.
//! Then several transactions become one ([`Group`]): up to the one that replaces the value, or up
//! to a snapshot that is opened now, from which these trees are read.

mod feed;
mod group;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use isobath_io::Volume;

use crate::api::catalog::named_by;
use crate::api::transaction::TransactionRange;
use crate::btree::{TreeId, ValueKind};
use crate::canary::{self, Canary};
use crate::error::{Error, OpenError, StorageError};
use crate::extent::Extent;
use crate::log::record::{Body, Operation, decode};
use crate::log::{HEADER_BYTES, Reader};
use crate::page::{Lsn, PageId};
use crate::paths::StorePaths;
use crate::recovery::unknown_record;
use crate::runtime::{self, WaitQueue, clock};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::types::{CATALOG, LogPosition, dropped_by, replaced_by};
use crate::{Options, Store};
use feed::{Feed, Readers, State};
use group::Group;

/// Transactions that are read ahead, and bytes of the log.
const BATCH: usize = 1000;
const BATCH_BYTES: u64 = 1 << 20;
/// Time between two looks, beside a writer, at a log that has nothing new: three blocks of the
/// volume. It doubles from look to look.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// One change of a [`Committed`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A key got a value.
    Put {
        /// The tree's name.
        tree: Arc<str>,
        /// The key.
        key: Vec<u8>,
        /// Its new value, whole.
        value: Vec<u8>,
    },
    /// A key has no value any more; it may not have had one.
    Remove {
        /// The tree's name.
        tree: Arc<str>,
        /// The key.
        key: Vec<u8>,
    },
    /// A tree was created, without records.
    Create {
        /// Its name.
        tree: Arc<str>,
    },
    /// A tree was dropped.
    Drop {
        /// Its name.
        tree: Arc<str>,
    },
    /// The records of a tree from this key on are others, which [`Committed::records`] gives: the
    /// log does not have them. Comes behind all other changes.
    Replace {
        /// The tree's name.
        tree: Arc<str>,
        /// The least key that is concerned; empty for the whole tree.
        from: Vec<u8>,
    },
}

/// The changes of one transaction, or of several that follow one another, to be applied as one.
#[derive(Debug)]
#[non_exhaustive]
pub struct Committed {
    /// The position behind them, from which a stream goes on.
    pub position: LogPosition,
    /// The changes, in order.
    pub changes: Vec<Change>,
    /// The store has no trees but those of `changes`, all of which are [`Change::Replace`]: what
    /// came before is not known.
    pub is_whole: bool,
    state: Option<State>,
}

impl Committed {
    /// The records of a tree that is in `changes` with [`Change::Replace`], from the key given
    /// there on, in order. They are read from the store as it was at `position`, which is kept
    /// while this value lives.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTree`] for another tree. The iterator as for
    /// [`Transaction::get`](crate::Transaction::get): after [`Error::SnapshotTooOld`],
    /// [`Error::TreeDropped`] and [`Error::ReaderOverrun`] open the stream again, at the position
    /// before this one.
    pub fn records(&self, tree: &str) -> Result<TransactionRange<'_>, Error> {
        self.records_within(tree, None)
    }

    /// As [`Committed::records`], of the records behind the key `last` alone.
    ///
    /// # Errors
    ///
    /// As for [`Committed::records`].
    pub fn records_behind(
        &self,
        tree: &str,
        last: impl AsRef<[u8]>,
    ) -> Result<TransactionRange<'_>, Error> {
        self.records_within(tree, Some(last.as_ref()))
    }

    fn records_within(
        &self,
        tree: &str,
        last: Option<&[u8]>,
    ) -> Result<TransactionRange<'_>, Error> {
        let from = self.changes.iter().find_map(|change| match change {
            Change::Replace { tree: name, from } if &**name == tree => Some(&from[..]),
            _ => None,
        });
        let lower = match (from, last) {
            (Some(from), Some(last)) if last >= from => Bound::Excluded(last.to_vec()),
            (from, _) => Bound::Included(from.unwrap_or_default().to_vec()),
        };
        match (&self.state, from) {
            (Some(state), Some(_)) => state.records(tree, lower),
            _ => Err(Error::NoSuchTree {
                name: tree.to_owned(),
            }),
        }
    }
}

/// Trees by the numbers that the log gives them.
type Names = BTreeMap<TreeId, (Arc<str>, PageId)>;

/// Ends the waiting of a [`Changes`], from any thread.
#[derive(Clone)]
pub struct ChangesStop(Arc<Stop>);

struct Stop {
    is_stopped: AtomicBool,
    /// The stream, where it waits.
    waiter: WaitQueue<Waker>,
}

impl ChangesStop {
    fn new() -> ChangesStop {
        ChangesStop(Arc::new(Stop {
            is_stopped: AtomicBool::new(false),
            waiter: WaitQueue::new(),
        }))
    }

    /// From now on the stream answers `None` where it would wait.
    pub fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::SeqCst);
        self.0.waiter.wake_all();
    }

    /// Whether it was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for ChangesStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChangesStop")
            .field(&self.is_stopped())
            .finish()
    }
}

/// The committed changes of a store, in order: from [`Store::changes`] and
/// [`Store::changes_beside`].
///
/// Nothing of the store waits for a stream. The log keeps what it has not used the space of again:
/// at most as many bytes as it has. A [`Committed`] that reads trees has a snapshot, which keeps
/// old versions in the store as long as it, or a stream that has it read ahead, exists: drop them
/// when they are not read on. A stream that falls behind further ends with
/// [`Error::ChangesOverrun`]. After any error it answers the same again; open another one at the
/// last position.
///
/// In the writer's process a stream of a closed store reads the rest of the log, and so keeps the
/// files in use until it is dropped.
pub struct Changes {
    feed: Feed,
    names: Names,
    group: Option<Group>,
    ready: VecDeque<Committed>,
    position: Lsn,
    failed: Option<Error>,
    stop: ChangesStop,
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes")
            .field("position", &self.position)
            .field("read_to", &self.feed.at)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// The changes that are committed from the position `from` on, as a stream; of none, the stream
    /// begins with all trees as they are now.
    ///
    /// ```
    /// # fn main() -> Result<(), isobath::Error> {
    /// use std::time::Duration;
    /// use isobath::{Change, Options, Store};
    ///
    /// let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// let fruit = store.create_tree("fruit")?;
    /// let mut changes = store.changes(Some(store.log_position()?))?;
    /// fruit.insert("apple", "red")?;
    /// let committed = changes.next_within(Duration::from_secs(5))?.expect("a commit");
    /// let Change::Put { tree, key, .. } = &committed.changes[0] else { panic!() };
    /// assert_eq!((&**tree, &key[..]), ("fruit", &b"apple"[..]));
    /// # drop(changes);
    /// # store.close()
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::ChangesOverrun`], [`Error::ChangesNeedLog`], [`Error::PositionOfOtherStore`];
    /// [`Error::BadOption`] if `from` is no position between two transactions;
    /// [`Error::ReadOnly`] for a store that is open for reading, see [`Store::changes_beside`].
    pub fn changes(&self, from: Option<LogPosition>) -> Result<Changes, Error> {
        let (feed, names) = feed::not_overtaken(|| Feed::of_store(self, from))?;
        Ok(Changes::new(feed, names, from.is_none()))
    }

    /// As [`Store::changes`], of the store on `paths`, which another process may write. Where that
    /// closes the store, the stream gives all that is left and then [`Error::Closed`]. `options` as
    /// for [`Store::open`], for reading.
    ///
    /// # Errors
    ///
    /// As for [`Store::changes`] and [`Store::open`].
    pub fn changes_beside(
        paths: impl StorePaths,
        options: &Options,
        from: Option<LogPosition>,
    ) -> Result<Changes, Error> {
        let options = options.clone().read_only(true);
        let (paths, volume_options) = (paths.store_paths(), options.volume_options());
        let opened = paths.clone();
        let volume = move || Ok(Volume::open(&opened, &volume_options)?);
        Changes::beside(paths, volume, options, from)
    }

    /// As [`Store::changes_beside`], of the store on `volume`.
    #[cfg(any(test, feature = "simulation"))]
    #[doc(hidden)]
    pub fn changes_beside_on_volume(
        volume: Volume,
        options: &Options,
        from: Option<LogPosition>,
    ) -> Result<Changes, Error> {
        let options = options.clone().read_only(true);
        Changes::beside(Vec::new(), move || Ok(volume.clone()), options, from)
    }

    /// The position in the log behind all that is committed and durable.
    ///
    /// # Errors
    ///
    /// [`Error::ChangesNeedLog`], [`Error::ReadOnly`], [`Error::Closed`], or a failed read.
    pub fn log_position(&self) -> Result<LogPosition, Error> {
        feed::end_of(self)
    }
}

impl Changes {
    fn beside(
        paths: Vec<PathBuf>,
        volume: impl Fn() -> Result<Volume, OpenError> + Send + Sync + 'static,
        options: Options,
        from: Option<LogPosition>,
    ) -> Result<Changes, Error> {
        let readers = Readers::new(paths, volume, Box::new(options));
        let (feed, names) = feed::not_overtaken(|| Feed::beside(readers.clone(), from))?;
        Ok(Changes::new(feed, names, from.is_none()))
    }

    fn new(feed: Feed, names: Names, is_whole: bool) -> Changes {
        let group = is_whole.then(|| Group::of_all(&names, feed.at));
        Changes {
            position: feed.at,
            feed,
            names,
            group,
            ready: VecDeque::new(),
            failed: None,
            stop: ChangesStop::new(),
        }
    }

    /// Everything before this was given out, or concerns no tree. An application that notes its
    /// position notes this one when nothing was changed for long, too: the log goes on for other
    /// reasons. A stream that was opened without a position counts only from its first transaction
    /// on, which has everything before.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        LogPosition {
            store: self.feed.store_id,
            lsn: self.position.0,
        }
    }

    /// A handle that ends the waiting of this stream.
    #[must_use]
    pub fn stop_handle(&self) -> ChangesStop {
        self.stop.clone()
    }

    /// The next transaction, once it is durable; `None` after `timeout`, or once the stream was
    /// stopped. A `timeout` of zero waits for nothing, but reads all that is there. Waits in a task
    /// as tasks do, but reading the log blocks its thread. Commits of a store that does not make
    /// them durable ([`Durability::None`](crate::Durability::None)) come once its log is written
    /// for other reasons, such as a checkpoint.
    ///
    /// # Errors
    ///
    /// [`Error::ChangesOverrun`], [`Error::Poisoned`] and [`Error::Closed`] once all before that
    /// was given out, or a failed read. In the writer's process a stream that has fallen behind
    /// answers [`Error::Closed`] before the first transaction that needs more than the closed
    /// store's log: a large value, or a tree that a load or a large transaction has changed. A
    /// stream of the opened store goes on at the position. In one of the store's own tasks a stream
    /// that waits answers [`Error::Closed`] as soon as closing begins, which waits for the task.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Committed>, Error> {
        let next = self.next_or_none(timeout);
        next.inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn next_or_none(&mut self, timeout: Duration) -> Result<Option<Committed>, Error> {
        let began = clock::now();
        loop {
            if let Some(next) = self.ready.pop_front() {
                if !canary::is_on(Canary::StreamTwice) || next.position.lsn % 3 > 0 {
                    self.position = Lsn(next.position.lsn);
                }
                return Ok(Some(next));
            }
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            let before = self.feed.at;
            // What was read before the error comes first.
            self.failed = self.fill(timeout.is_zero()).err();
            if !self.ready.is_empty() || self.failed.is_some() {
                continue;
            }
            if self.feed.at != before {
                let is_late = !timeout.is_zero() && clock::now() - began >= timeout;
                if is_late || self.stop.is_stopped() {
                    return Ok(None);
                }
                continue;
            }
            if self.group.is_none() {
                self.position = self.feed.at;
            }
            self.feed.check_open()?;
            let left = timeout.saturating_sub(clock::now() - began);
            if left.is_zero() || self.stop.is_stopped() {
                return Ok(None);
            }
            self.rest(left);
        }
    }

    /// Waits until a look may find something new, for `left` at most. In the writer's process the
    /// thread that makes more of the log durable, that poisons the store or that closes it wakes
    /// this one; beside a writer a look has to be taken now and then.
    fn rest(&mut self, left: Duration) {
        let waker = runtime::waker();
        let is_stopped = || self.stop.is_stopped();
        let stopping = self.stop.0.waiter.enter(0, waker.clone(), is_stopped);
        if let Some(ticket) = stopping {
            self.feed.wait_for_news(waker, left);
            self.stop.0.waiter.leave(ticket);
        }
    }

    /// Reads on, as far as the log is durable, and makes ready what is complete. `is_last` where no
    /// later look is certain.
    fn fill(&mut self, is_last: bool) -> Result<(), Error> {
        let end = self.feed.durable_end(is_last)?;
        let (volume, area) = (self.feed.volume.clone(), Arc::clone(&self.feed.area));
        let (id, at, epoch) = (self.feed.store_id, self.feed.at, self.feed.epoch);
        let mut log = Reader::new(&volume, &area, &id, at, epoch).begin_small();
        let (mut is_full, mut bytes) = (false, 0);
        while at < end && !is_full {
            let Some(entry) = log.next_below(end).map_err(StorageError::from)? else {
                break;
            };
            let next = Lsn(entry.lsn.0 + (HEADER_BYTES + entry.body.len()) as u64);
            let body = decode(entry.kind, entry.body);
            let body = body.ok_or(unknown_record(entry.lsn, entry.kind))?;
            self.take(entry.lsn, &body)?;
            bytes += self.complete(next)?;
            let much = bytes as u64 >= BATCH_BYTES || next.0 - at.0 >= BATCH_BYTES;
            is_full = much || self.ready.len() >= BATCH;
        }
        self.feed.at = log.position();
        self.feed.epoch = log.end().open_epoch;
        if self.feed.at < end && !is_full {
            self.feed.judge_end(self.feed.at, end)?;
        }
        if let Some(group) = &mut self.group
            && group.needs_state()
        {
            group.state = Some(self.feed.state()?);
        }
        let at = self.feed.at;
        self.complete(at)?;
        self.feed.batch_ends();
        Ok(())
    }

    /// Makes the group ready if what was read up to `next` completes it; the bytes of its changes.
    fn complete(&mut self, next: Lsn) -> Result<usize, Error> {
        let Some(group) = self.group.take() else {
            return Ok(0);
        };
        if !group.is_complete(next) {
            self.group = Some(group);
            return Ok(0);
        }
        let bytes = group.bytes();
        let position = LogPosition {
            store: self.feed.store_id,
            lsn: next.0,
        };
        match group.close(&self.names, |state, name, id| {
            self.feed.tree(state, name, id)
        }) {
            Ok(Ok((changes, is_whole, state))) => {
                let done = Committed {
                    position,
                    changes,
                    is_whole,
                    state,
                };
                match canary::is_on(Canary::StreamOutOfOrder) {
                    true => self.ready.push_front(done),
                    false => self.ready.push_back(done),
                }
                Ok(bytes)
            }
            // A tree was dropped since: the group goes on at least up to there.
            Ok(Err(group)) => {
                self.group = Some(group);
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes what the record at `lsn` says of trees.
    fn take(&mut self, lsn: Lsn, body: &Body<'_>) -> Result<(), Error> {
        match body {
            Body::Commit { operations, .. } => {
                let skips = canary::is_on(Canary::StreamSkips) && lsn.0.is_multiple_of(5);
                let wanted = operations.len() - usize::from(skips && operations.len() > 1);
                for operation in &operations[..wanted] {
                    match operation.tree.id == CATALOG.id {
                        true => self.take_structure(lsn, operation),
                        false => self.take_change(lsn, operation)?,
                    }
                }
            }
            Body::Structure {
                tree,
                images,
                loaded: Some(lower),
                ..
            } if !images.is_empty() => {
                if self.names.contains_key(tree) {
                    self.group
                        .get_or_insert_default()
                        .replace(*tree, lower, lsn);
                }
            }
            Body::Structure { .. } | Body::Mapping { .. } | Body::Free { .. } => {}
        }
        Ok(())
    }

    /// A change of the catalog: a tree is named, or begins to be dropped, or a large transaction
    /// has changed it.
    fn take_structure(&mut self, lsn: Lsn, operation: &Operation<'_>) {
        let replaced = replaced_by(operation.key);
        if let Some(id) = replaced.filter(|id| self.names.contains_key(id)) {
            self.group.get_or_insert_default().replace(id, &[], lsn);
        }
        let Some(value) = operation.value else { return };
        if let Some(id) = dropped_by(operation.key) {
            if let Some((tree, _)) = self.names.remove(&id) {
                self.group.get_or_insert_default().drop_tree(id, tree);
            }
        } else if let Some((name, tree)) = named_by(operation.key, value.bytes) {
            let name: Arc<str> = String::from_utf8_lossy(name).into();
            self.names.insert(tree.id, (Arc::clone(&name), tree.root));
            self.group
                .get_or_insert_default()
                .create_tree(tree.id, name);
        }
    }

    fn take_change(&mut self, lsn: Lsn, operation: &Operation<'_>) -> Result<(), Error> {
        let id = operation.tree.id;
        // The engine's own trees have no names.
        let Some((name, _)) = self.names.get(&id) else {
            return Ok(());
        };
        let group = self.group.get_or_insert_default();
        if group.leaves_out(id, operation.key, lsn) {
            return Ok(());
        }
        let value = match operation.value {
            None => {
                group.remove(id, name, operation.key);
                if group.is_large() {
                    group.replace_all(lsn);
                }
                return Ok(());
            }
            Some(value) if value.kind == ValueKind::Inline => Some(value.bytes.to_vec()),
            Some(value) => {
                let extent = Extent::decode(value.bytes);
                let extent = extent.ok_or(StorageError::Structure {
                    page: 0,
                    reason: "the descriptor of a large value makes no sense",
                })?;
                if extent.length > group::MAX_BYTES as u64 {
                    group.replace(id, &[], lsn);
                    return Ok(());
                }
                self.feed.value(lsn, extent)?
            }
        };
        group.put(id, name, operation.key, value);
        if group.is_large() {
            group.replace_all(lsn);
        }
        Ok(())
    }
}
