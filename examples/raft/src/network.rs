//! openraft's requests to other nodes.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::error::{
    Fatal, NetworkError, RPCError, RaftError, RemoteError, ReplicationClosed, StreamingError,
    Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend, Snapshot, Vote};

use crate::registers::Types;
use crate::wire::{Call, Connection, Reply};

/// Bytes of a snapshot's file that go in one message.
const PART_BYTES: usize = 1 << 20;
/// Until an unreachable node is tried again.
const RETRY: Duration = Duration::from_millis(100);
const PART_LIMIT: Duration = Duration::from_secs(5);
/// Restoring a snapshot takes its time.
const INSTALL_LIMIT: Duration = Duration::from_secs(600);

/// The nodes that this one is cut off from.
#[derive(Debug, Clone, Default)]
pub struct Isolation(Arc<Mutex<BTreeSet<u64>>>);

impl Isolation {
    /// Cuts off from these nodes, and no others.
    pub fn set(&self, from: BTreeSet<u64>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = from;
    }

    /// Whether messages from and to this node are lost.
    #[must_use]
    pub fn has(&self, node: u64) -> bool {
        let isolated = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        isolated.contains(&node)
    }
}

/// Makes connections to other nodes.
#[derive(Debug, Clone)]
pub struct Network {
    /// This node.
    pub id: u64,
    /// Whom it cannot reach.
    pub isolation: Isolation,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        Peer {
            target,
            isolation: self.isolation.clone(),
            connection: Connection::new(Some(self.id), &node.addr),
        }
    }
}

/// Another node.
#[derive(Debug)]
pub struct Peer {
    target: u64,
    isolation: Isolation,
    connection: Connection,
}

type Failed<E> = RPCError<u64, BasicNode, E>;

impl Peer {
    async fn call(&mut self, call: Call, bytes: &[u8], limit: Duration) -> io::Result<Reply> {
        if self.isolation.has(self.target) {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        let reply = self.connection.call(call, bytes, limit).await?;
        if self.isolation.has(self.target) {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        Ok(reply)
    }

    /// Sends the files that the receiver lacks, then has it install all.
    async fn send(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<Types>,
    ) -> io::Result<Result<SnapshotResponse<u64>, Fatal<u64>>> {
        let pieces = snapshot.snapshot.pieces();
        let missing = match self.call(Call::Offer { pieces }, &[], PART_LIMIT).await? {
            Reply::Missing(missing) => missing,
            other => return Err(unexpected(&other)),
        };
        for piece in missing {
            let mut offset = 0;
            while offset < piece.bytes {
                let bytes = snapshot.snapshot.read_at(&piece.name, offset, PART_BYTES)?;
                let name = piece.name.clone();
                match self
                    .call(Call::Part { name, offset }, &bytes, PART_LIMIT)
                    .await?
                {
                    Reply::Done => offset += bytes.len() as u64,
                    other => return Err(unexpected(&other)),
                }
            }
        }
        let meta = snapshot.meta;
        match self
            .call(Call::Install { vote, meta }, &[], INSTALL_LIMIT)
            .await?
        {
            Reply::Installed(installed) => Ok(installed),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(reply: &Reply) -> io::Error {
    io::Error::other(format!("the node answered {reply:?}"))
}

fn unreachable<E: std::error::Error>(error: &io::Error) -> Failed<E> {
    RPCError::Unreachable(Unreachable::new(error))
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failed<RaftError<u64>>> {
        match self.call(Call::Append(rpc), &[], option.hard_ttl()).await {
            Ok(Reply::Append(Ok(response))) => Ok(response),
            Ok(Reply::Append(Err(error))) => Err(RemoteError::new(self.target, error).into()),
            Ok(other) => Err(NetworkError::new(&unexpected(&other)).into()),
            Err(error) => Err(unreachable(&error)),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, Failed<RaftError<u64>>> {
        match self.call(Call::Vote(rpc), &[], option.hard_ttl()).await {
            Ok(Reply::Vote(Ok(response))) => Ok(response),
            Ok(Reply::Vote(Err(error))) => Err(RemoteError::new(self.target, error).into()),
            Ok(other) => Err(NetworkError::new(&unexpected(&other)).into()),
            Err(error) => Err(unreachable(&error)),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Types, Fatal<u64>>> {
        let target = self.target;
        let sent = tokio::select! {
            closed = cancel => return Err(closed.into()),
            sent = self.send(vote, snapshot) => sent,
        };
        match sent {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(RemoteError::new(target, error).into()),
            Err(error) => Err(Unreachable::new(&error).into()),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(RETRY))
    }
}
