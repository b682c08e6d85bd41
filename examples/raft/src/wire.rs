//! What nodes and clients say to each other: JSON, and behind it bytes of a snapshot's file, each
//! with its length in front.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use isobath_raft::Piece;
use openraft::error::{Fatal, RaftError};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, SnapshotMeta, Vote};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::registers::{Answer, Request, Types};

/// Most bytes of a message's part.
const MAX_BYTES: u32 = 64 << 20;

/// A call, and the node that makes it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope {
    /// `None` if a client calls.
    pub from: Option<u64>,
    /// What it asks for.
    pub call: Call,
}

/// What is asked for.
#[derive(Debug, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "openraft's own, and those of the variants' names"
)]
pub enum Call {
    /// openraft's.
    Append(AppendEntriesRequest<Types>),
    /// openraft's.
    Vote(VoteRequest<u64>),
    /// Begins to send a snapshot of these files.
    Offer { pieces: Vec<Piece> },
    /// A part of a file that is missing; its bytes are behind it.
    Part { name: String, offset: u64 },
    /// Installs what was sent on this connection.
    Install {
        vote: Vote<u64>,
        meta: SnapshotMeta<u64, BasicNode>,
    },
    /// A client's change.
    Write(Request),
    /// A client's read.
    Get { key: String },
    /// Makes this and the other nodes a cluster.
    Initialize { nodes: BTreeMap<u64, BasicNode> },
    /// Cuts this node off from these others, both ways.
    Isolate { from: BTreeSet<u64> },
    /// What the node knows.
    Status,
}

/// The answers.
#[derive(Debug, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "openraft's own, and those of the variants' names"
)]
pub enum Reply {
    /// openraft's.
    Append(Result<AppendEntriesResponse<u64>, RaftError<u64>>),
    /// openraft's.
    Vote(Result<VoteResponse<u64>, RaftError<u64>>),
    /// The files of a snapshot that the receiver lacks.
    Missing(Vec<Piece>),
    /// openraft's.
    Installed(Result<SnapshotResponse<u64>, Fatal<u64>>),
    /// The change is committed.
    Wrote(Answer),
    /// The key's value.
    Got(Option<String>),
    /// Nothing was done: ask that one, if it is known.
    NotLeader(Option<u64>),
    /// It is done.
    Done,
    /// It may be done or not, now or later.
    Unknown(String),
    /// What the node knows.
    Status {
        leader: Option<u64>,
        term: u64,
        last: u64,
        applied: u64,
        snapshot: u64,
        purged: u64,
    },
}

/// Reads a message and the bytes behind it.
///
/// # Errors
///
/// What the connection fails with, and [`io::ErrorKind::InvalidData`].
pub async fn read<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<(T, Vec<u8>)> {
    let lengths = (stream.read_u32_le().await?, stream.read_u32_le().await?);
    if lengths.0 > MAX_BYTES || lengths.1 > MAX_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; lengths.0 as usize];
    stream.read_exact(&mut message).await?;
    let mut bytes = vec![0; lengths.1 as usize];
    stream.read_exact(&mut bytes).await?;
    Ok((serde_json::from_slice(&message)?, bytes))
}

/// Writes a message and bytes behind it.
///
/// # Errors
///
/// What the connection fails with, and [`io::ErrorKind::InvalidData`].
pub async fn write(
    stream: &mut TcpStream,
    message: &impl Serialize,
    bytes: &[u8],
) -> io::Result<()> {
    let message = serde_json::to_vec(message)?;
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(io::Error::other);
    let mut frame = Vec::with_capacity(8 + message.len() + bytes.len());
    frame.extend_from_slice(&length(&message)?.to_le_bytes());
    frame.extend_from_slice(&length(bytes)?.to_le_bytes());
    frame.extend_from_slice(&message);
    frame.extend_from_slice(bytes);
    stream.write_all(&frame).await
}

/// A connection to a node, made when it is used. A call that fails or is given up closes it, so
/// that no answer belongs to an earlier call.
#[derive(Debug)]
pub struct Connection {
    from: Option<u64>,
    address: String,
    stream: Option<TcpStream>,
}

impl Connection {
    /// A connection of the node `from`, or of a client.
    #[must_use]
    pub fn new(from: Option<u64>, address: &str) -> Connection {
        Connection {
            from,
            address: address.to_owned(),
            stream: None,
        }
    }

    /// Makes a call and waits for its answer for at most `limit`.
    ///
    /// # Errors
    ///
    /// What the connection fails with, and [`io::ErrorKind::TimedOut`].
    pub async fn call(&mut self, call: Call, bytes: &[u8], limit: Duration) -> io::Result<Reply> {
        let envelope = Envelope {
            from: self.from,
            call,
        };
        let answered = async {
            let mut stream = match self.stream.take() {
                Some(stream) => stream,
                None => connect(&self.address).await?,
            };
            write(&mut stream, &envelope, bytes).await?;
            let (reply, _) = read(&mut stream).await?;
            io::Result::Ok((stream, reply))
        };
        let answered = tokio::time::timeout(limit, answered).await;
        let (stream, reply) = answered.map_err(|_| io::ErrorKind::TimedOut)??;
        self.stream = Some(stream);
        Ok(reply)
    }
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
