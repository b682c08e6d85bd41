//! A node: openraft over a storage, answering other nodes and clients.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use isobath::{Backend, Options};
use isobath_raft::{Error, LogStore, Piece, SnapshotReceiver, StateMachine};
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use openraft::{Config, Raft, Snapshot, SnapshotPolicy};
use tokio::net::{TcpListener, TcpStream};

use crate::network::{Isolation, Network};
use crate::registers::{Registers, Types};
use crate::wire::{self, Call, Envelope, Reply};

/// A known bug, which tests have to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A leader answers reads without asking the others whether it still is one.
    StaleReads,
    /// The storage acknowledges votes and entries before they are on the drive.
    EarlyAcknowledgement,
}

/// How a node runs.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its id in the cluster.
    pub id: u64,
    /// Where it listens.
    pub address: SocketAddr,
    /// Entries between snapshots; 0 for none.
    pub snapshot_every: u64,
    /// Bytes of each of Isobath's two pools.
    pub pool_bytes: u64,
    /// How Isobath reads and writes.
    pub backend: Backend,
    /// The bug that it has.
    pub fault: Option<Fault>,
}

/// How long a node waits for one that was killed to let go of its files.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

type Read = dyn Fn(&str) -> io::Result<Option<String>> + Send + Sync;
type Receive = dyn Fn(&[Piece]) -> Result<SnapshotReceiver<Types>, Error> + Send + Sync;

/// What a server needs of a storage, beside what openraft needs.
pub(crate) struct Storage<L, M> {
    pub(crate) log: L,
    pub(crate) machine: M,
    pub(crate) read: Box<Read>,
    pub(crate) receive: Box<Receive>,
}

struct Node {
    id: u64,
    raft: Raft<Types>,
    isolation: Isolation,
    reads_unconfirmed: bool,
    read: Box<Read>,
    receive: Box<Receive>,
}

/// Runs a node on Isobath until the process ends.
///
/// # Errors
///
/// What the storage cannot be opened for, and what listening fails with.
pub fn serve(directory: &Path, setup: &Setup) -> io::Result<()> {
    let options = Options::new()
        .pool_bytes(setup.pool_bytes)
        .workers(1)
        .open_timeout(OPEN_LIMIT)
        .backend(setup.backend);
    let opened = isobath_raft::open(directory, &options, &options);
    let (log, machine): (LogStore<Types>, StateMachine<Types, Registers>) =
        opened.map_err(io::Error::other)?;
    let log = match setup.fault {
        Some(Fault::EarlyAcknowledgement) => log.acknowledging_too_early(),
        _ => log,
    };
    let (reading, receiving) = (machine.clone(), machine.clone());
    serve_on(
        Storage {
            log,
            machine,
            read: Box::new(move |key| reading.application().get(key).map_err(io::Error::other)),
            receive: Box::new(move |pieces| receiving.receive(pieces)),
        },
        setup,
    )
}

/// Runs a node on any storage.
pub(crate) fn serve_on<L, M>(storage: Storage<L, M>, setup: &Setup) -> io::Result<()>
where
    L: RaftLogStorage<Types>,
    M: RaftStateMachine<Types>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(setup.address).await?;
        let node = Arc::new(start(storage, setup).await?);
        tokio::select! {
            ended = ended(&node.raft) => ended,
            failed = accept(&node, &listener) => failed,
        }
    })
}

/// Attends to connections, each in a task.
async fn accept(node: &Arc<Node>, listener: &TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let node = Arc::clone(node);
        tokio::spawn(async move {
            // The other side has closed the connection, or will try again.
            let _ = node.attend(stream).await;
        });
    }
}

/// Waits until openraft ends, as it does when the storage fails.
async fn ended(raft: &Raft<Types>) -> io::Result<()> {
    let mut metrics = raft.metrics();
    loop {
        metrics
            .borrow_and_update()
            .running_state
            .clone()
            .map_err(io::Error::other)?;
        metrics.changed().await.map_err(io::Error::other)?;
    }
}

async fn start<L, M>(storage: Storage<L, M>, setup: &Setup) -> io::Result<Node>
where
    L: RaftLogStorage<Types>,
    M: RaftStateMachine<Types>,
{
    let config = Config {
        heartbeat_interval: 300,
        election_timeout_min: 1_000,
        election_timeout_max: 2_000,
        snapshot_policy: match setup.snapshot_every {
            0 => SnapshotPolicy::Never,
            entries => SnapshotPolicy::LogsSinceLast(entries),
        },
        max_in_snapshot_log_to_keep: setup.snapshot_every / 4,
        replication_lag_threshold: setup.snapshot_every.max(1_000) / 2,
        ..Config::default()
    };
    let config = Arc::new(config.validate().map_err(io::Error::other)?);
    let isolation = Isolation::default();
    let network = Network {
        id: setup.id,
        isolation: isolation.clone(),
    };
    let raft = Raft::new(setup.id, config, network, storage.log, storage.machine).await;
    Ok(Node {
        id: setup.id,
        raft: raft.map_err(io::Error::other)?,
        isolation,
        reads_unconfirmed: setup.fault == Some(Fault::StaleReads),
        read: storage.read,
        receive: storage.receive,
    })
}

fn unknown(error: impl fmt::Display) -> Reply {
    Reply::Unknown(error.to_string())
}

impl Node {
    /// Answers calls on one connection, one after another.
    async fn attend(self: Arc<Node>, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut receiver = None;
        loop {
            let (envelope, bytes): (Envelope, _) = wire::read(&mut stream).await?;
            let is_cut_off = || envelope.from.is_some_and(|node| self.isolation.has(node));
            if is_cut_off() {
                return Ok(());
            }
            let reply = self.answer(envelope.call, &bytes, &mut receiver).await;
            if envelope.from.is_some_and(|node| self.isolation.has(node)) {
                return Ok(());
            }
            wire::write(&mut stream, &reply, &[]).await?;
        }
    }

    async fn answer(
        self: &Arc<Node>,
        call: Call,
        bytes: &[u8],
        receiver: &mut Option<SnapshotReceiver<Types>>,
    ) -> Reply {
        match call {
            Call::Append(rpc) => Reply::Append(self.raft.append_entries(rpc).await),
            Call::Vote(rpc) => Reply::Vote(self.raft.vote(rpc).await),
            Call::Offer { pieces } => match (self.receive)(&pieces) {
                Ok(begun) => Reply::Missing(receiver.insert(begun).missing()),
                Err(error) => unknown(error),
            },
            Call::Part { name, offset } => match receiver {
                Some(receiver) => match receiver.write_at(&name, offset, bytes) {
                    Ok(()) => Reply::Done,
                    Err(error) => unknown(error),
                },
                None => unknown("no snapshot is being received"),
            },
            Call::Install { vote, meta } => {
                let Some(receiver) = receiver.take() else {
                    return unknown("no snapshot is being received");
                };
                let expected = meta.clone();
                let finished = tokio::task::spawn_blocking(move || receiver.finish(&expected));
                match finished.await {
                    Ok(Ok(files)) => {
                        let snapshot = Box::new(files);
                        let snapshot = Snapshot { meta, snapshot };
                        Reply::Installed(self.raft.install_full_snapshot(vote, snapshot).await)
                    }
                    Ok(Err(error)) => {
                        eprintln!("node {}: {error}; the leader sends it again", self.id);
                        unknown(error)
                    }
                    Err(error) => unknown(error),
                }
            }
            Call::Write(request) => {
                // Refused before it is proposed: then it is certain that nothing is done.
                let leader = self.raft.current_leader().await;
                if leader != Some(self.id) {
                    return Reply::NotLeader(leader);
                }
                match self.raft.client_write(request).await {
                    Ok(response) => Reply::Wrote(response.data),
                    Err(error) => unknown(error),
                }
            }
            Call::Get { key } => self.get(key).await,
            Call::Initialize { nodes } => match self.raft.initialize(nodes).await {
                Ok(()) => Reply::Done,
                Err(error) => unknown(error),
            },
            Call::Isolate { from } => {
                self.isolation.set(from);
                Reply::Done
            }
            Call::Status => self.status(),
        }
    }

    async fn get(self: &Arc<Node>, key: String) -> Reply {
        let leader = self.raft.current_leader().await;
        if leader != Some(self.id) {
            return Reply::NotLeader(leader);
        }
        if !self.reads_unconfirmed
            && let Err(error) = self.raft.ensure_linearizable().await
        {
            return unknown(error);
        }
        let node = Arc::clone(self);
        match tokio::task::spawn_blocking(move || (node.read)(&key)).await {
            Ok(Ok(value)) => Reply::Got(value),
            Ok(Err(error)) => unknown(error),
            Err(error) => unknown(error),
        }
    }

    fn status(&self) -> Reply {
        let metrics = self.raft.metrics().borrow().clone();
        Reply::Status {
            leader: metrics.current_leader,
            term: metrics.current_term,
            last: metrics.last_log_index.unwrap_or(0),
            applied: metrics.last_applied.map_or(0, |id| id.index),
            snapshot: metrics.snapshot.map_or(0, |id| id.index),
            purged: metrics.purged.map_or(0, |id| id.index),
        }
    }
}
