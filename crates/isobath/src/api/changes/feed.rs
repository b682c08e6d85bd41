//! Where a stream reads the log, and what else it needs of the store: in the writer's process, or
//! beside it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use isobath_io::{IoErrorKind, Volume};

use super::{BATCH_BYTES, LOOK_AGAIN, LOOK_EVERY, Names};
use crate::api::store::WeakStore;
use crate::api::transaction::{Snapshot, TransactionRange};
use crate::api::tree::Tree;
use crate::api::{catalog, reader};
use crate::btree::TreeId;
use crate::canary::{self, Canary};
use crate::checkpoint::{self, Superblock, log_area};
use crate::engine::{Engine, Runtime, WorkerState};
use crate::error::{Error, OpenError, StorageError};
use crate::extent::{self, Extent};
use crate::log::record::{Body, decode};
use crate::log::{LogArea, LogEntry, Reader};
use crate::page::Lsn;
use crate::recovery::unflushed_chunks::UnflushedChunks;
use crate::recovery::{self, unknown_record};
use crate::runtime::{Urgency, clock, park_within};
use crate::types::{CATALOG, LogPosition, dropped_by};
use crate::{Options, Store};

/// Attempts to find a position in a log that a writer goes on with.
const ATTEMPTS: usize = 10;

/// A state of the store, from which trees are read.
pub(super) struct State {
    snapshot: Snapshot,
    /// It has what the log says before this, and nothing else.
    pub(super) reached: Lsn,
    pub(super) trees: BTreeMap<Arc<str>, Tree>,
    /// Beside a writer: the store, opened for reading.
    store: Option<Store>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("reached", &self.reached)
            .finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn records(
        &self,
        tree: &str,
        lower: Bound<Vec<u8>>,
    ) -> Result<TransactionRange<'_>, Error> {
        let tree = self.trees.get(tree).ok_or_else(|| Error::NoSuchTree {
            name: tree.to_owned(),
        })?;
        self.snapshot.range(tree, (lower, Bound::Unbounded))
    }
}

/// What opens a store for reading beside its writer.
#[derive(Clone)]
pub(super) struct Readers {
    paths: Vec<PathBuf>,
    volume: Arc<dyn Fn() -> Result<Volume, OpenError> + Send + Sync>,
    options: Box<Options>,
}

impl Readers {
    pub(super) fn new(
        paths: Vec<PathBuf>,
        volume: impl Fn() -> Result<Volume, OpenError> + Send + Sync + 'static,
        options: Box<Options>,
    ) -> Readers {
        Readers {
            paths,
            volume: Arc::new(volume),
            options,
        }
    }

    fn open(&self) -> Result<Store, OpenError> {
        reader::open(&*self.volume, &self.paths, &self.options)
    }
}

enum Source {
    /// The store that this process writes. The stream does not keep it open.
    Own {
        runtime: Arc<Runtime>,
        store: WeakStore,
        /// It is closed, which was so before the last look at the log's durable end.
        is_closed: bool,
    },
    /// A store that another process may write.
    Beside {
        readers: Readers,
        /// Opened for the values of a batch: where they are.
        reader: Option<(Store, Lsn)>,
        /// Its writer has closed it, and all of its log was read.
        is_closed: bool,
        /// The newest end of the log that a look has found, and when.
        found: (Lsn, Instant),
        /// How long the next wait is.
        pause: Duration,
    },
}

/// The log of a store.
pub(super) struct Feed {
    source: Source,
    pub(super) volume: Volume,
    pub(super) store_id: [u8; 16],
    /// The area that has the log at `at`.
    pub(super) area: Arc<LogArea>,
    /// The area that the log has now, if that is another one.
    newest: Arc<LogArea>,
    /// What is read next, and the open epoch of what was read before.
    pub(super) at: Lsn,
    pub(super) epoch: u32,
    /// In the writer's process: up to where the log was durable at the last look.
    durable: Lsn,
}

fn overrun(from: Lsn, oldest: u64) -> Error {
    Error::ChangesOverrun {
        from: from.0,
        oldest,
    }
}

/// The engine of a store that is written here and keeps a log.
fn logging(store: &Store) -> Result<&Arc<Engine>, Error> {
    let runtime = store.runtime();
    runtime.check_open()?;
    let engine = runtime.engine()?;
    match (engine.shared.config.read_only, engine.log.is_on()) {
        (true, _) => Err(Error::ReadOnly),
        (false, true) => Ok(engine),
        (false, false) => Err(Error::ChangesNeedLog),
    }
}

/// As [`Store::log_position`].
pub(super) fn end_of(store: &Store) -> Result<LogPosition, Error> {
    let engine = logging(store)?;
    let volume = engine.shared.volume()?;
    Ok(LogPosition {
        store: recovery::read_superblock(&volume, store.paths())?.store_id,
        lsn: engine.log.durable().0,
    })
}

fn names_of(runtime: &Runtime) -> Result<Names, Error> {
    let trees = runtime.run(Urgency::Ordinary, catalog::list_visible)?;
    let named = trees
        .into_iter()
        .map(|(name, tree)| (tree.id, (name.into(), tree.root)));
    Ok(named.collect())
}

/// Opens a stream, again if a writer has overtaken the opening and not the position: the log that
/// the opening reads begins before that.
pub(super) fn not_overtaken<T>(open: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..ATTEMPTS {
        match open() {
            Err(Error::ChangesOverrun { from, oldest }) if from >= oldest => {}
            other => return other,
        }
    }
    open()
}

impl Feed {
    pub(super) fn of_store(
        store: &Store,
        from: Option<LogPosition>,
    ) -> Result<(Feed, Names), Error> {
        let engine = logging(store)?;
        let runtime = Arc::clone(store.runtime());
        // Before the names: what is made and dropped from then on is behind its log's start.
        let superblock = recovery::read_superblock(&engine.shared.volume()?, store.paths())?;
        let names = names_of(&runtime)?;
        // Behind the drop of each tree that is not listed any more.
        runtime.run(Urgency::Ordinary, |local: &WorkerState| {
            local.engine.log_tasks.wait_all_durable(&local.worker)
        })?;
        let (volume, end) = (engine.shared.volume()?, engine.log.durable());
        let source = Source::Own {
            runtime,
            store: store.downgrade(),
            is_closed: false,
        };
        Feed::at_position(source, volume, &superblock, from, end, names)
    }

    pub(super) fn beside(
        readers: Readers,
        from: Option<LogPosition>,
    ) -> Result<(Feed, Names), Error> {
        let (volume, paths) = ((readers.volume)()?, &readers.paths);
        let mut superblock = recovery::read_superblock(&volume, paths)?;
        if !superblock.is_logged() {
            return Err(Error::ChangesNeedLog);
        }
        let given = readers.options.log_path.as_deref();
        checkpoint::open_log(&volume, &mut superblock, paths, given)?;
        let store = readers.open()?;
        let names = names_of(store.runtime())?;
        let end = reached(&store)?;
        store.close()?;
        let source = Source::Beside {
            readers,
            reader: None,
            is_closed: false,
            found: (Lsn(0), clock::now()),
            pause: LOOK_AGAIN,
        };
        Feed::at_position(source, volume, &superblock, from, end, names)
    }

    /// At `from`, or at `end`, which is not behind the state that `names` are of. The log up to
    /// there completes the names: it has those of the trees that were dropped since `from`.
    fn at_position(
        source: Source,
        volume: Volume,
        superblock: &Superblock,
        from: Option<LogPosition>,
        end: Lsn,
        mut names: Names,
    ) -> Result<(Feed, Names), Error> {
        let store_id = superblock.store_id;
        if let Some(from) = from.filter(|from| from.store != store_id) {
            return Err(Error::PositionOfOtherStore {
                position: from.to_string(),
                store: LogPosition {
                    store: store_id,
                    lsn: end.0,
                }
                .to_string(),
            });
        }
        let from = from.map_or(end, |from| Lsn(from.lsn));
        let area = Arc::new(log_area(superblock).ok_or(Error::ChangesNeedLog)?);
        let mut feed = Feed {
            source,
            volume,
            store_id,
            newest: Arc::clone(&area),
            area,
            at: from,
            epoch: 0,
            durable: Lsn(0),
        };
        feed.find(superblock, from, end, &mut names)?;
        Ok((feed, names))
    }

    /// Goes to `from`. `superblock` is older than `names`.
    fn find(
        &mut self,
        superblock: &Superblock,
        from: Lsn,
        end: Lsn,
        names: &mut Names,
    ) -> Result<(), Error> {
        let log_start = Lsn(superblock.log_start);
        let newest = Arc::new(log_area(&self.superblock()?).ok_or(Error::ChangesNeedLog)?);
        self.newest = Arc::clone(&newest);
        if newest.base() <= from.min(log_start).0 {
            self.area = newest;
        }
        if from.0 < self.area.base() {
            return Err(overrun(from, superblock.log_start));
        }
        let no_position = || Error::BadOption {
            option: "from",
            reason: format!(
                "the log has no transaction that begins or ends at {}: it is not a position that this store has told, or it lost its newest changes since",
                from.0
            ),
        };
        if from > end.max(Lsn(superblock.log_start)) {
            return Err(no_position());
        }
        // From the place of a superblock on, the epochs say what is older than a crash.
        (self.at, self.epoch) = match from < log_start {
            true => (from, 0),
            false => (log_start, superblock.log_epoch),
        };
        // What is durable by `from` may not have been visible when the catalog was read.
        self.pass(from, |body| note_structure(body, names))?;
        if self.at != from {
            // A writer may have used the log's space again in the meantime.
            let log_start = self.superblock()?.log_start;
            return match log_start > self.at.0 || self.area != self.newest {
                true => Err(overrun(from, log_start)),
                false => Err(no_position()),
            };
        }
        let found = (self.at, self.epoch);
        // Bound: each round but the last ends where an opening left a gap, or the log was moved.
        for _ in 0..ATTEMPTS {
            self.pass(end, |body| note_drops(body, names))?;
            if self.at >= end {
                break;
            }
            self.judge_end(self.at, end).map_err(|error| match error {
                Error::ChangesOverrun { oldest, .. } => overrun(from, oldest),
                error => error,
            })?;
        }
        (self.at, self.epoch) = found;
        Ok(())
    }

    /// Reads up to `end`, or to where there is no record.
    fn pass(&mut self, end: Lsn, mut each: impl FnMut(&Body<'_>)) -> Result<(), Error> {
        let mut log = Reader::new(
            &self.volume,
            &self.area,
            &self.store_id,
            self.at,
            self.epoch,
        );
        while let Some(entry) = next_below(&mut log, end)? {
            let body = decode(entry.kind, entry.body);
            each(&body.ok_or(unknown_record(entry.lsn, entry.kind))?);
        }
        (self.at, self.epoch) = (log.position(), log.end().open_epoch);
        Ok(())
    }

    /// The newest superblock, of this store.
    fn superblock(&self) -> Result<Superblock, Error> {
        let paths = match &self.source {
            Source::Own { .. } => &[][..],
            Source::Beside { readers, .. } => &readers.paths,
        };
        let superblock = recovery::read_superblock(&self.volume, paths)?;
        match superblock.store_id == self.store_id {
            true => Ok(superblock),
            false => {
                let at = |store, lsn| LogPosition { store, lsn }.to_string();
                Err(Error::PositionOfOtherStore {
                    position: at(self.store_id, self.at.0),
                    store: at(superblock.store_id, superblock.log_start),
                })
            }
        }
    }

    /// Refuses once nothing more can come: called when all was read up to the last
    /// [`Feed::durable_end`].
    pub(super) fn check_open(&self) -> Result<(), Error> {
        match &self.source {
            Source::Own {
                is_closed: true, ..
            } => Err(Error::Closed),
            // It would wait for the closing, and that for its task.
            Source::Own { runtime, .. } if runtime.is_closing_around_this() => Err(Error::Closed),
            Source::Own { runtime, .. } => Ok(runtime.engine()?.shared.not_poisoned()?),
            Source::Beside {
                readers, is_closed, ..
            } => match self.volume.displaced() {
                // One that was closed and then taken away was read whole; not so if another store
                // has its place.
                Some(error) if !is_closed || readers.paths.iter().all(|path| path.exists()) => {
                    Err(StorageError::from(error).into())
                }
                _ if *is_closed => Err(Error::Closed),
                _ => Ok(()),
            },
        }
    }

    /// Waits until the next look, for `left` at most. In the writer's process that is when the log
    /// is durable beyond where the last look has found it, or never is again: its thread wakes this
    /// one by `waker`.
    pub(super) fn wait_for_news(&mut self, waker: Waker, left: Duration) {
        let runtime = match &mut self.source {
            Source::Own { runtime, .. } => runtime,
            Source::Beside { pause, .. } => {
                park_within(left.min(*pause));
                *pause = (2 * *pause).min(LOOK_EVERY);
                return;
            }
        };
        let Ok(engine) = runtime.engine() else {
            return;
        };
        let (seen, streams) = (self.durable, engine.log_tasks.streams());
        let has_news = || {
            let shared = &engine.shared;
            let is_over = shared.is_poisoned() || shared.volume().is_err();
            engine.log.durable() != seen || is_over || runtime.is_closing_around_this()
        };
        // What is durable and was not read, because the log was moved just now, is read then.
        let longest = match seen > self.at {
            true => left.min(LOOK_AGAIN),
            false => left,
        };
        if let Some(ticket) = streams.enter(seen.0 + 1, waker, has_news) {
            park_within(longest);
            streams.leave(ticket);
        }
    }

    /// Up to where the log may be read now; not before `at`. `is_last` where no
    /// later look is certain.
    pub(super) fn durable_end(&mut self, is_last: bool) -> Result<Lsn, Error> {
        match &mut self.source {
            Source::Own {
                runtime, is_closed, ..
            } => {
                let engine = runtime.engine()?;
                // Before the end is read: closing makes more of the log durable.
                *is_closed = engine.shared.volume().is_err();
                let end = match canary::is_on(Canary::StreamUndurable) {
                    true => engine.log.contiguous_lsn(),
                    false => engine.log.durable(),
                };
                self.durable = end;
                if end <= self.at {
                    return Ok(self.at);
                }
                let area = engine.log.area().ok_or(StorageError::Closed)?;
                Ok(self.follow(area).min(end))
            }
            Source::Beside { .. } => self.end_beside(is_last),
        }
    }

    /// Takes the log's present area, if that has the log at `at`; the end of what the one in use
    /// has.
    fn follow(&mut self, area: Arc<LogArea>) -> Lsn {
        let base = area.base();
        if *area != *self.newest {
            self.newest = Arc::clone(&area);
        }
        if base <= self.at.0 {
            self.area = area;
            return Lsn(u64::MAX);
        }
        Lsn(base)
    }

    /// Beside a writer: how far the log can be read that is on the drive, with all chunks that it
    /// names. The order, after which no power cut takes back what is read up to there:
    ///
    /// 1. The records are read, and the chunks that they name are found.
    /// 2. A record says up to where the log was durable when it was made. Up to there nothing is to
    ///    be done: beside a writer that goes on this is all but the newest flush.
    /// 3. What no record follows is given out once the volume was flushed, which begins after 1.
    ///    That waits for a moment in which the writer has written no more, or for the last look.
    fn end_beside(&mut self, is_last: bool) -> Result<Lsn, Error> {
        let superblock = self.superblock()?;
        self.volume.refresh_len()?;
        let area = log_area(&superblock).ok_or(Error::ChangesNeedLog)?;
        let limit = self.follow(Arc::new(area));
        let (end, has_ended, durable) = self.read_beside(&superblock, limit)?;
        let Source::Beside {
            is_closed,
            found,
            pause,
            ..
        } = &mut self.source
        else {
            return Ok(self.at);
        };
        let is_clean = superblock.clean && end == self.at && has_ended;
        *is_closed = is_clean && self.at.0 >= superblock.log_start;
        if end <= self.at {
            return Ok(self.at);
        }
        *pause = LOOK_AGAIN;
        if found.0 != end {
            *found = (end, clock::now());
        }
        let goes_on = !is_last && clock::now() - found.1 < LOOK_AGAIN;
        if end <= durable || goes_on {
            return Ok(end.min(durable).max(self.at));
        }
        if !canary::is_on(Canary::StreamUnflushed) {
            self.volume.sync().map_err(StorageError::Io)?;
        }
        Ok(end)
    }

    /// The end of the log up to `limit`, or of a part of it, with all chunks that it names; whether
    /// no record follows; and up to where it is known to be durable.
    fn read_beside(
        &mut self,
        superblock: &Superblock,
        limit: Lsn,
    ) -> Result<(Lsn, bool, Lsn), Error> {
        let (volume, area) = (self.volume.clone(), Arc::clone(&self.area));
        let mut log = Reader::new(&volume, &area, &self.store_id, self.at, self.epoch);
        log = log.begin_small();
        let mut chunks = UnflushedChunks::default();
        let full = limit.min(Lsn(self.at.0 + 2 * BATCH_BYTES));
        let mut has_ended = false;
        while log.position() < full && !has_ended {
            match next_below(&mut log, full)? {
                Some(entry) => {
                    let body = decode(entry.kind, entry.body);
                    let body = body.ok_or(unknown_record(entry.lsn, entry.kind))?;
                    chunks.note(entry.lsn, &body);
                }
                None => has_ended = true,
            }
        }
        let position = log.position();
        let missing = chunks.first_missing_in_part(&volume, superblock, &log);
        let end = missing.map_err(StorageError::Io)?.unwrap_or(position);
        let durable = log.known_durable().max(Lsn(superblock.log_durable));
        // Behind what was read now the next look judges.
        if has_ended && position == self.at && position < full {
            self.judge_end(position, Lsn(superblock.log_durable))?;
        }
        Ok((end, has_ended, durable))
    }

    /// No record was found at `at`, although the log was durable up to `durable`, unless that is
    /// not behind it.
    ///
    /// # Errors
    ///
    /// [`Error::ChangesOverrun`] if the log has used the place again; [`Error::LogCorrupt`].
    pub(super) fn judge_end(&mut self, at: Lsn, durable: Lsn) -> Result<(), Error> {
        let newest = self.superblock()?;
        if log_area(&newest).is_some_and(|area| area != *self.newest) {
            // It was moved in the meantime; the next look finds out.
            return Ok(());
        }
        if newest.log_start > at.0 {
            // An opening has left a gap where the one before had logged nothing.
            if newest.log_durable <= at.0 && self.at == at {
                self.at = Lsn(newest.log_start);
                return Ok(());
            }
            return Err(overrun(at, newest.log_start));
        }
        match durable > at {
            true => Err(StorageError::LogCorrupt {
                position: at.0,
                durable: durable.0,
            }
            .into()),
            false => Ok(()),
        }
    }

    /// Opens a state of the store that has everything which was read.
    pub(super) fn state(&mut self) -> Result<State, Error> {
        match &self.source {
            Source::Own { runtime, .. } => {
                let snapshot = Snapshot::open(runtime)?;
                let reached = Lsn(snapshot.lsn());
                // What it shows may not be durable yet, and not asked to be.
                runtime.run(Urgency::Ordinary, |local: &WorkerState| {
                    let last = Lsn(reached.0.saturating_sub(1));
                    local.engine.log_tasks.wait_durable(&local.worker, last)
                })?;
                Ok(State {
                    snapshot,
                    reached,
                    trees: BTreeMap::new(),
                    store: None,
                })
            }
            Source::Beside { readers, .. } => {
                let store = readers.open()?;
                let snapshot = store.snapshot()?;
                Ok(State {
                    reached: reached(&store)?,
                    snapshot,
                    trees: BTreeMap::new(),
                    store: Some(store),
                })
            }
        }
    }

    /// The tree of this number in `state`, if it is there still.
    pub(super) fn tree(
        &self,
        state: &State,
        name: &str,
        id: TreeId,
    ) -> Result<Option<Tree>, Error> {
        let tree = match (&self.source, &state.store) {
            (Source::Own { store, .. }, _) => store.upgrade()?.tree(name),
            (Source::Beside { .. }, Some(store)) => store.tree(name),
            (Source::Beside { .. }, None) => return Ok(None),
        };
        match tree {
            Ok(tree) => Ok(Some(tree).filter(|tree| tree.state.tree.id == id)),
            Err(Error::NoSuchTree { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The bytes of a large value that the commit at `lsn` names; `None` if it is gone.
    pub(super) fn value(&mut self, lsn: Lsn, extent: Extent) -> Result<Option<Vec<u8>>, Error> {
        let read = |runtime: &Runtime| {
            runtime.run(Urgency::Ordinary, |local| {
                extent::read_if_there(local, extent)
            })
        };
        let (readers, reader) = match &mut self.source {
            Source::Own { runtime, .. } => return Ok(read(runtime)?),
            Source::Beside {
                readers, reader, ..
            } => (readers, reader),
        };
        let mut attempts = 0;
        loop {
            if reader.as_ref().is_none_or(|(_, reached)| *reached <= lsn) {
                let store = readers.open()?;
                let reached = reached(&store)?;
                *reader = Some((store, reached));
            }
            let Some((store, _)) = reader.as_ref().filter(|(_, reached)| *reached > lsn) else {
                return Err(overrun(lsn, lsn.0));
            };
            attempts += 1;
            match read(store.runtime()) {
                Err(StorageError::ReaderOverrun { .. }) if attempts < ATTEMPTS => *reader = None,
                other => return Ok(other?),
            }
        }
    }

    /// Lets go of what was opened for the values of a batch.
    pub(super) fn batch_ends(&mut self) {
        if let Source::Beside { reader, .. } = &mut self.source {
            *reader = None;
        }
    }
}

/// The next record below `end`; `None` as well where the volume ends before: a writer that has
/// closed has shortened it, and the newest superblock says where the log is.
fn next_below<'l>(log: &'l mut Reader<'_>, end: Lsn) -> Result<Option<LogEntry<'l>>, StorageError> {
    match log.next_below(end).map_err(StorageError::from) {
        Err(StorageError::Io(error)) if error.kind() == IoErrorKind::OutOfRange => Ok(None),
        next => next,
    }
}

/// Up to where the log is in a store that was opened for reading.
fn reached(store: &Store) -> Result<Lsn, Error> {
    let reached = store.runtime().engine()?.opening.reached();
    Ok(reached.ok_or(StorageError::Closed)?)
}

/// Names the trees that exist after a commit.
fn note_structure(body: &Body<'_>, names: &mut Names) {
    let Body::Commit { operations, .. } = body else {
        return;
    };
    let in_catalog = operations.iter().filter(|each| each.tree == CATALOG);
    for (key, value) in in_catalog.filter_map(|each| Some((each.key, each.value?))) {
        if let Some(id) = dropped_by(key) {
            names.remove(&id);
        } else if let Some((name, tree)) = catalog::named_by(key, value.bytes) {
            let name = String::from_utf8_lossy(name).into();
            names.insert(tree.id, (name, tree.root));
        }
    }
}

/// Names the trees that a commit drops: no state since then has them.
fn note_drops(body: &Body<'_>, names: &mut Names) {
    let Body::Commit { operations, .. } = body else {
        return;
    };
    let in_catalog = || {
        let ours = operations.iter();
        ours.filter(|operation| operation.tree == CATALOG)
    };
    for operation in in_catalog() {
        let Some(value) = operation.value else {
            continue;
        };
        let Some(id) = dropped_by(operation.key) else {
            continue;
        };
        let removed = in_catalog().filter(|operation| operation.value.is_none());
        for name in removed.filter_map(|operation| catalog::name_in(operation.key)) {
            if let Some(root) = catalog::root_in(value.bytes) {
                let name = String::from_utf8_lossy(name).into();
                names.entry(id).or_insert((name, root));
            }
        }
    }
}
