//! Writes per second of three nodes on this machine, beside what its drive syncs per second.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use openraft::BasicNode;

use crate::registers::Request;
use crate::server::Setup;
use crate::wire::{Call, Connection, Reply};

const NODES: u64 = 3;
/// Not measured, at the beginning of a run.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long syncs alone are measured, before and after each run.
const SYNCS: Duration = Duration::from_millis(1_500);
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Until a cluster has a leader.
const START_LIMIT: Duration = Duration::from_secs(30);
const BLOCK: [u8; 4096] = [1; 4096];

/// What is measured.
#[derive(Debug)]
pub struct Plan {
    /// Where the nodes' directories are made, and removed.
    pub directory: PathBuf,
    /// `isobath`, `isobath-pread` (with blocking calls instead of io_uring), `rocksdb`.
    pub engines: Vec<String>,
    /// Connections, each with one write under way.
    pub clients: u64,
    /// Measured seconds per run.
    pub seconds: u64,
    /// Runs of each engine, in turn.
    pub rounds: u64,
    /// Bytes of each value.
    pub value_bytes: u64,
}

/// Three servers on this machine; dropping it ends them.
struct Cluster {
    nodes: Vec<Child>,
    addresses: BTreeMap<u64, String>,
    leader: u64,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // It has ended by itself, then.
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

/// Runs a node on RocksDB until the process ends.
///
/// # Errors
///
/// What the storage cannot be opened for, and what listening fails with.
#[cfg(feature = "rocksdb")]
pub fn serve_rocksdb(directory: &Path, setup: &Setup) -> io::Result<()> {
    crate::server::serve_on(crate::rocksdb::open(directory)?, setup)
}

/// Says how to get RocksDB.
///
/// # Errors
///
/// Always.
#[cfg(not(feature = "rocksdb"))]
pub fn serve_rocksdb(_directory: &Path, _setup: &Setup) -> io::Result<()> {
    Err(io::Error::other(
        "RocksDB is not compiled in; build with --features isobath-example-raft/rocksdb",
    ))
}

/// An address that only this machine has, with a port that is free now. Each call takes an address
/// of its own, so that no outgoing connection takes the port while the node is down.
///
/// # Errors
///
/// What listening fails with.
pub fn free_address() -> io::Result<String> {
    let [a, b, c, ..] = RandomState::new().hash_one(0).to_le_bytes();
    let address = Ipv4Addr::new(127, a, b, c.clamp(2, 254));
    Ok(TcpListener::bind((address, 0))?.local_addr()?.to_string())
}

async fn start(engine: &str, directory: &Path) -> io::Result<Cluster> {
    let mut cluster = Cluster {
        nodes: Vec::new(),
        addresses: BTreeMap::new(),
        leader: 0,
    };
    for id in 1..=NODES {
        let address = free_address()?;
        let node = Command::new(std::env::current_exe()?)
            .args(["serve", "--engine", engine, "--snapshot-every", "0"])
            .args([
                "--id",
                &id.to_string(),
                "--address",
                &address,
                "--directory",
            ])
            .arg(directory.join(format!("node-{id}")))
            .spawn()?;
        cluster.nodes.push(node);
        cluster.addresses.insert(id, address);
    }
    let nodes = cluster
        .addresses
        .iter()
        .map(|(&id, address)| (id, BasicNode::new(address)));
    let nodes: BTreeMap<u64, BasicNode> = nodes.collect();
    let mut first = Connection::new(None, &cluster.addresses[&1]);
    let began = Instant::now();
    let mut is_initialized = false;
    while began.elapsed() < START_LIMIT {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let nodes = nodes.clone();
        if !is_initialized {
            let told = first
                .call(Call::Initialize { nodes }, &[], CALL_LIMIT)
                .await;
            is_initialized = matches!(told, Ok(Reply::Done));
        }
        let status = first.call(Call::Status, &[], CALL_LIMIT).await;
        if let Ok(Reply::Status {
            leader: Some(leader),
            ..
        }) = status
        {
            cluster.leader = leader;
            return Ok(cluster);
        }
    }
    Err(io::Error::other(format!(
        "three nodes on {engine} have found no leader"
    )))
}

/// One client's writes, one after another; how long each took.
async fn write(
    mut connection: Connection,
    client: u64,
    plan: (u64, Instant, Instant),
) -> io::Result<Vec<Duration>> {
    let (value_bytes, begin, end) = plan;
    let mut latencies = Vec::new();
    let mut number = 0_u64;
    while Instant::now() < end {
        number += 1;
        // Keys in no order, of one million.
        let key = (client * 7_919 + number).wrapping_mul(0x9E37_79B9_7F4A_7C15) % 1_000_000;
        let request = Request::Put {
            key: format!("{key:012}"),
            value: "v".repeat(usize::try_from(value_bytes).unwrap_or(0)),
        };
        let asked = Instant::now();
        match connection
            .call(Call::Write(request), &[], CALL_LIMIT)
            .await?
        {
            Reply::Wrote(_) if asked >= begin => latencies.push(asked.elapsed()),
            Reply::Wrote(_) => {}
            other => return Err(io::Error::other(format!("a write was answered {other:?}"))),
        }
    }
    Ok(latencies)
}

async fn run_once(engine: &str, plan: &Plan, directory: &Path) -> io::Result<Vec<Duration>> {
    let cluster = start(engine, directory).await?;
    let begin = Instant::now() + WARM_UP;
    let times = (
        plan.value_bytes,
        begin,
        begin + Duration::from_secs(plan.seconds),
    );
    let clients = (0..plan.clients).map(|client| {
        let connection = Connection::new(None, &cluster.addresses[&cluster.leader]);
        tokio::spawn(write(connection, client, times))
    });
    let clients: Vec<_> = clients.collect();
    let mut latencies = Vec::new();
    for client in clients {
        latencies.extend(client.await.map_err(io::Error::other)??);
    }
    latencies.sort_unstable();
    Ok(latencies)
}

/// Blocks of 4 KiB per second that are written one after another, each followed by `fdatasync`, to
/// a file whose space is there.
fn syncs_per_second(directory: &Path) -> io::Result<f64> {
    let path = directory.join("syncs");
    let file = File::create(&path)?;
    let blocks = 256;
    for block in 0..blocks {
        file.write_all_at(&BLOCK, block * 4096)?;
    }
    file.sync_all()?;
    let began = Instant::now();
    let mut syncs = 0;
    while began.elapsed() < SYNCS {
        file.write_all_at(&BLOCK, syncs % blocks * 4096)?;
        file.sync_data()?;
        syncs += 1;
    }
    let rate = syncs as f64 / began.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(rate)
}

/// Measures and prints a table.
///
/// # Errors
///
/// What starting servers and calling them fails with.
pub fn run(plan: &Plan) -> io::Result<()> {
    fs::create_dir_all(&plan.directory)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    println!("| round | engine | writes/s | p50 ms | p99 ms | drive: syncs/s before, after |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for round in 1..=plan.rounds {
        for engine in &plan.engines {
            let before = syncs_per_second(&plan.directory)?;
            let directory = plan.directory.join(format!("{engine}-{round}"));
            let measured = runtime.block_on(run_once(engine, plan, &directory));
            fs::remove_dir_all(&directory)?;
            let latencies = measured?;
            let at = |share: f64| {
                let at = (latencies.len() as f64 * share) as usize;
                latencies
                    .get(at)
                    .map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
            };
            let rate = latencies.len() as f64 / plan.seconds as f64;
            let (p50, p99) = (at(0.5), at(0.99));
            let after = syncs_per_second(&plan.directory)?;
            println!(
                "| {round} | {engine} | {rate:.0} | {p50:.2} | {p99:.2} | {before:.0}, {after:.0} |"
            );
        }
    }
    Ok(())
}
