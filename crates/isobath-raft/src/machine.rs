//! The state machine and its snapshots.
//!
//! A snapshot is a chain of backup files of the state's store: a full one, then incremental ones.
//! Log and vote are in another store, because a snapshot must not carry the vote of its node.
//!
//! **Building.** A backup holds what was applied when it ended, while openraft has to know exactly
//! which entry that was. So a build takes two: the first while entries are applied, of whatever
//! time; the second while none is, which copies only what changed during the first. Each adds to
//! the chain of the last build. A chain of [`MAX_PIECES`] files, or whose incremental backups are
//! longer than its full one, is begun anew, and so is one that came from another node.
//!
//! **Sending.** Names of files are unique. The receiver says which it has of a chain
//! ([`StateMachine::receive`]): a follower that has an earlier snapshot of the same chain gets only
//! what was added.
//!
//! **Installing** is atomic. In this order:
//!
//! 1. [`SnapshotReceiver::finish`] has synced the chain's files and restored them into a new store.
//!    What is corrupt, or came with the id of another snapshot, is refused there, before openraft
//!    hears of it.
//! 2. The files have their names, and the store is `state-N+1.iso`.
//! 3. A synced commit in the log's store makes the record *current* name both.
//! 4. The old store and files are removed.
//!
//! A crash before 3 leaves the old state, and one after it the new one; opening removes the other's
//! files. Until 3 purges of the log wait ([`arrivals`](crate::arrivals)).

use std::fmt::{self, Debug};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use isobath::{BackupOptions, Durability, Options, Store, TransactionOptions, Tree};
use openraft::storage::RaftStateMachine;
use openraft::{
    Entry, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot,
    SnapshotMeta, StorageError, StoredMembership,
};
use serde::{Deserialize, Serialize};

use crate::arrivals::Arrivals;
use crate::directory::{Directory, remove};
use crate::record::{encode, read};
use crate::snapshot::{Piece, SnapshotFiles, SnapshotReceiver, restore};
use crate::state::{Applied, State};
use crate::{Application, Error, Types, cut};

/// Most files of a snapshot.
const MAX_PIECES: usize = 16;
const CURRENT: &str = "current";

/// The state, and the snapshot, that this node has.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(bound = "")]
struct Current<C: Types> {
    /// Of the state's store: snapshots that were installed.
    generation: u64,
    snapshot: Option<Chain<C>>,
}

impl<C: Types> Current<C> {
    fn pieces(&self) -> &[Piece] {
        self.snapshot.as_ref().map_or(&[], |chain| &chain.pieces)
    }

    /// The last entry of the snapshot.
    fn covered(&self) -> Option<u64> {
        let meta = &self.snapshot.as_ref()?.meta;
        meta.last_log_id.as_ref().map(|id| id.index)
    }
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(bound = "")]
struct Chain<C: Types> {
    meta: SnapshotMeta<C::NodeId, C::Node>,
    /// In the order of restoring.
    pieces: Vec<Piece>,
    /// The generation of the store that it is a backup of; `None` if another node's.
    built_from: Option<u64>,
}

impl<C: Types> Chain<C> {
    /// Whether a backup of this generation of the state can add to it.
    fn goes_on(&self, generation: u64) -> bool {
        let full = self.pieces.first().map_or(0, |piece| piece.bytes);
        let added: u64 = self.pieces.iter().skip(1).map(|piece| piece.bytes).sum();
        let is_short = self.pieces.len() + 2 <= MAX_PIECES && added <= full;
        self.built_from == Some(generation) && is_short
    }
}

struct Shared<C: Types, A> {
    directory: Directory,
    options: Options,
    log: Store,
    /// The tree with the record *current*.
    marks: Tree,
    arrivals: Arrivals,
    /// Held while a snapshot is built or installed. Locked before the others.
    changing: Mutex<()>,
    /// What the record *current* says. Locked for moments only: nothing waits for a build.
    current: Mutex<Current<C>>,
    /// Held while entries are applied, and while the state is replaced.
    applying: Mutex<()>,
    /// Locked for moments only.
    state: RwLock<Arc<State<A>>>,
}

/// The state machine, for [`openraft::Raft::new`]: an [`Application`] in a store, and the snapshots
/// of it. Clones share it.
pub struct StateMachine<C: Types, A> {
    shared: Arc<Shared<C, A>>,
}

impl<C: Types, A> Clone for StateMachine<C, A> {
    fn clone(&self) -> Self {
        StateMachine {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<C: Types, A> Debug for StateMachine<C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateMachine")
            .field("directory", &self.shared.directory)
            .finish_non_exhaustive()
    }
}

/// Does `work` on a thread where blocking is allowed.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await?
}

/// Locks. What a thread that panicked has left is whole: these locks guard no half-made changes.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<C: Types, A: Application<C>> StateMachine<C, A> {
    pub(crate) fn open(
        directory: Directory,
        log: Store,
        arrivals: Arrivals,
        options: &Options,
    ) -> Result<StateMachine<C, A>, Error> {
        let marks = log.open_or_create_tree("snapshot")?;
        let current: Current<C> = read(&marks, CURRENT)?.unwrap_or_default();
        directory.sweep(current.generation, current.pieces())?;
        arrivals.cover(current.covered());
        // Once there is a snapshot, the log may not reach back to an empty state.
        let is_new = current.generation == 0 && current.snapshot.is_none();
        let state = State::open(&directory.state(current.generation), options, is_new)?;
        let shared = Shared {
            directory,
            options: options.clone(),
            log,
            marks,
            arrivals,
            changing: Mutex::new(()),
            current: Mutex::new(current),
            applying: Mutex::new(()),
            state: RwLock::new(Arc::new(state)),
        };
        Ok(StateMachine {
            shared: Arc::new(shared),
        })
    }

    /// Index of the last entry applied.
    pub(crate) fn applied(&self) -> Result<Option<u64>, Error> {
        let applied = self.shared.state().applied::<C>()?;
        Ok(applied.last.map(|id| id.index))
    }

    /// The application as of the last entry applied, for reading. Ask for it anew for each read: a
    /// snapshot that is installed replaces it.
    #[must_use]
    pub fn application(&self) -> Arc<A> {
        Arc::clone(&self.shared.state().application)
    }

    /// Begins to receive a snapshot of these files, in the order that
    /// [`SnapshotFiles::pieces`] gives. Blocks the thread for a few files' opening.
    ///
    /// # Errors
    ///
    /// [`Error::Snapshot`] if a name is no name of a snapshot's file; [`Error::File`].
    pub fn receive(&self, pieces: &[Piece]) -> Result<SnapshotReceiver<C>, Error> {
        let shared = &self.shared;
        SnapshotReceiver::new(&shared.directory, &shared.options, &shared.arrivals, pieces)
    }

    async fn with_shared<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared<C, A>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = Arc::clone(&self.shared);
        blocking(move || work(&shared)).await
    }
}

impl<C: Types, A: Application<C>> Shared<C, A> {
    fn state(&self) -> Arc<State<A>> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn apply(&self, entries: &[Entry<C>]) -> Result<Vec<C::R>, Error> {
        let _applying = locked(&self.applying);
        self.state().apply(entries)
    }

    /// Makes `next` the record *current*, durably.
    fn become_current(&self, next: &Current<C>) -> Result<(), Error> {
        self.directory.sync()?;
        cut::at("synced");
        let bytes = encode(CURRENT, next)?;
        let synced = TransactionOptions::new().durability(Durability::Synced);
        let insert = |txn: &mut isobath::Transaction| txn.insert(&self.marks, CURRENT, &bytes);
        Ok(self.log.transact::<(), isobath::Error>(synced, insert)?)
    }

    fn snapshot(&self, chain: &Chain<C>) -> Result<Snapshot<C>, Error> {
        let files = self.directory.files(&chain.pieces)?;
        Ok(Snapshot {
            meta: chain.meta.clone(),
            snapshot: Box::new(files),
        })
    }

    fn current_snapshot(&self) -> Result<Option<Snapshot<C>>, Error> {
        // Files are removed only after `current` names others: these are opened before.
        let current = locked(&self.current);
        let chain = current.snapshot.as_ref();
        chain.map(|chain| self.snapshot(chain)).transpose()
    }

    /// Adds a backup of the state to the chain `pieces`.
    fn back_up(&self, state: &State<A>, pieces: &mut Vec<Piece>) -> Result<(), Error> {
        let index = state.applied::<C>()?.last.map_or(0, |id| id.index);
        let name = Directory::new_name(index);
        let mut options = BackupOptions::new();
        if let Some(base) = pieces.last() {
            options = options.since(self.directory.piece(&base.name));
        }
        let mut watch = |_: &'static str, _, _| ControlFlow::Continue(());
        let made = state
            .store
            .backup(&self.directory.piece(&name), &options, &mut watch)?;
        pieces.push(Piece {
            name,
            bytes: made.file_bytes,
        });
        Ok(())
    }

    fn build(&self) -> Result<Snapshot<C>, Error> {
        let _changing = locked(&self.changing);
        let current = locked(&self.current).clone();
        let state = self.state();
        let old = current.snapshot.as_ref();
        let going_on = old.filter(|chain| chain.goes_on(current.generation));
        let mut pieces = going_on.map_or_else(Vec::new, |chain| chain.pieces.clone());
        self.back_up(&state, &mut pieces)?;
        let applied: Applied<C> = {
            let _applying = locked(&self.applying);
            self.back_up(&state, &mut pieces)?;
            state.applied()?
        };
        let id = pieces
            .last()
            .map_or_else(String::new, |piece| piece.name.clone());
        let chain = Chain {
            meta: SnapshotMeta {
                last_log_id: applied.last,
                last_membership: applied.membership,
                snapshot_id: id,
            },
            pieces,
            built_from: Some(current.generation),
        };
        let snapshot = self.snapshot(&chain)?;
        let next = Current {
            generation: current.generation,
            snapshot: Some(chain),
        };
        self.replace(next)?;
        Ok(snapshot)
    }

    /// Makes `next` current, and removes the files of which that was the last use.
    fn replace(&self, next: Current<C>) -> Result<(), Error> {
        self.become_current(&next)?;
        cut::at("current");
        self.arrivals.cover(next.covered());
        let kept = next.pieces().to_vec();
        let old = std::mem::replace(&mut *locked(&self.current), next);
        for piece in old.pieces() {
            if !kept.contains(piece) {
                remove(&self.directory.piece(&piece.name))?;
            }
        }
        Ok(())
    }

    fn install(
        &self,
        meta: SnapshotMeta<C::NodeId, C::Node>,
        files: &SnapshotFiles,
    ) -> Result<(), Error> {
        let _changing = locked(&self.changing);
        self.arrivals.begin();
        cut::at("begun");
        self.directory.adopt(files)?;
        cut::at("adopted");
        let pieces = files.pieces();
        let generation = locked(&self.current).generation + 1;
        let state = self.restore(generation, &meta, files)?;
        cut::at("restored");
        let next = Current {
            generation,
            snapshot: Some(Chain {
                meta,
                pieces,
                built_from: None,
            }),
        };
        let _applying = locked(&self.applying);
        self.replace(next)?;
        self.arrivals.end();
        cut::at("replaced");
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
        // Readers that still have the old store go on with the file that has no name.
        remove(&self.directory.state(generation - 1))?;
        cut::at("removed");
        Ok(())
    }

    /// The store that was made of a snapshot, under its new name.
    fn restore(
        &self,
        generation: u64,
        meta: &SnapshotMeta<C::NodeId, C::Node>,
        files: &SnapshotFiles,
    ) -> Result<State<A>, Error> {
        let path = self.directory.state(generation);
        // An attempt that failed has left it.
        remove(&path)?;
        let is_moved = files.move_store(&path)?;
        cut::at("moved");
        if !is_moved {
            let paths = files.files.iter();
            let paths: Vec<PathBuf> = paths
                .map(|(piece, _)| self.directory.piece(&piece.name))
                .collect();
            restore(&paths, &path, &self.options)?;
        }
        let state: State<A> = State::open(&path, &self.options, false)?;
        state.applied::<C>()?.check(meta)?;
        Ok(state)
    }
}

impl<C: Types, A: Application<C>> RaftSnapshotBuilder<C> for StateMachine<C, A> {
    async fn build_snapshot(&mut self) -> Result<Snapshot<C>, StorageError<C::NodeId>> {
        let built = self.with_shared(Shared::build).await;
        built.map_err(Error::during(
            ErrorSubject::Snapshot(None),
            ErrorVerb::Write,
        ))
    }
}

impl<C: Types, A: Application<C>> RaftStateMachine<C> for StateMachine<C, A> {
    type SnapshotBuilder = StateMachine<C, A>;

    async fn applied_state(
        &mut self,
    ) -> Result<
        (
            Option<LogId<C::NodeId>>,
            StoredMembership<C::NodeId, C::Node>,
        ),
        StorageError<C::NodeId>,
    > {
        let applied = self
            .with_shared(|shared| shared.state().applied::<C>())
            .await;
        let failed = Error::during(ErrorSubject::StateMachine, ErrorVerb::Read);
        let applied = applied.map_err(failed)?;
        Ok((applied.last, applied.membership))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<C::R>, StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = Entry<C>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry<C>> = entries.into_iter().collect();
        let applied = self.with_shared(move |shared| shared.apply(&entries)).await;
        applied.map_err(Error::during(ErrorSubject::StateMachine, ErrorVerb::Write))
    }

    async fn get_snapshot_builder(&mut self) -> StateMachine<C, A> {
        self.clone()
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> Result<Box<SnapshotFiles>, StorageError<C::NodeId>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<C::NodeId, C::Node>,
        snapshot: Box<SnapshotFiles>,
    ) -> Result<(), StorageError<C::NodeId>> {
        let subject = ErrorSubject::Snapshot(Some(meta.signature()));
        let meta = meta.clone();
        let installed = self.with_shared(move |shared| shared.install(meta, &snapshot));
        installed
            .await
            .map_err(Error::during(subject, ErrorVerb::Write))
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<Snapshot<C>>, StorageError<C::NodeId>> {
        let current = self.with_shared(Shared::current_snapshot).await;
        current.map_err(Error::during(ErrorSubject::Snapshot(None), ErrorVerb::Read))
    }
}
