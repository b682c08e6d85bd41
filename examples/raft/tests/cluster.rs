//! Three nodes as processes, killed, restarted and cut off while clients read, write and swap. The
//! answers must be linearizable; with known bugs planted, the same test finds that they are not.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isobath_example_raft::bench::free_address;
use isobath_example_raft::linear::{self, Action, Operation, Value};
use isobath_example_raft::registers::{Answer, Request};
use isobath_example_raft::wire::{Call, Connection, Reply};
use openraft::BasicNode;
use tempfile::TempDir;

const NODES: [u64; 3] = [1, 2, 3];
const CLIENTS: usize = 5;
/// The first of them only read: they stay with a leader that answers, whether it still is one or not.
const READERS: u64 = 2;
const KEYS: u64 = 4;
const CALL_LIMIT: Duration = Duration::from_millis(400);
/// Beyond a run's end, until a node has installed a snapshot.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(10);
/// Until a cluster without faults answers.
const CALM_LIMIT: Duration = Duration::from_secs(15);

struct Cluster {
    directory: TempDir,
    addresses: BTreeMap<u64, String>,
    processes: BTreeMap<u64, Child>,
    fault: Option<&'static str>,
    /// A node that has ended by itself.
    ended: Option<u64>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for id in NODES {
            self.kill(id);
        }
    }
}

impl Cluster {
    async fn start(fault: Option<&'static str>) -> Cluster {
        let addresses = NODES.map(|id| (id, free_address().unwrap()));
        let mut cluster = Cluster {
            directory: TempDir::new().unwrap(),
            addresses: addresses.into(),
            processes: BTreeMap::new(),
            fault,
            ended: None,
        };
        NODES.iter().for_each(|&id| cluster.run(id));
        let nodes = cluster.addresses.iter();
        let nodes: BTreeMap<u64, BasicNode> =
            nodes.map(|(&id, at)| (id, BasicNode::new(at))).collect();
        let began = Instant::now();
        loop {
            let nodes = nodes.clone();
            if let Some(Reply::Done) = cluster.tell(1, Call::Initialize { nodes }).await {
                return cluster;
            }
            assert!(began.elapsed() < CALM_LIMIT, "no node listens");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn node_directory(&self, id: u64) -> PathBuf {
        self.directory.path().join(id.to_string())
    }

    fn run(&mut self, id: u64) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_raft-kv"));
        command
            .args(["serve", "--snapshot-every", "40", "--id", &id.to_string()])
            .args(["--address", &self.addresses[&id], "--directory"])
            .arg(self.node_directory(id))
            .stdout(Stdio::null());
        if let Some(fault) = self.fault {
            command.args(["--fault", fault]);
        }
        self.processes.insert(id, command.spawn().unwrap());
    }

    /// SIGKILL.
    fn kill(&mut self, id: u64) {
        if let Some(mut process) = self.processes.remove(&id) {
            if process.try_wait().unwrap().is_some() {
                self.ended = Some(id);
            }
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    async fn tell(&self, id: u64, call: Call) -> Option<Reply> {
        let mut connection = Connection::new(None, &self.addresses[&id]);
        connection.call(call, &[], CALL_LIMIT).await.ok()
    }

    /// Cuts `id` off from the others, or from none.
    async fn isolate(&self, id: u64, is_isolated: bool) {
        let others = NODES
            .into_iter()
            .filter(|&other| is_isolated && other != id);
        let from: BTreeSet<u64> = others.collect();
        self.tell(id, Call::Isolate { from }).await;
    }

    async fn leader(&self) -> Option<u64> {
        for id in NODES {
            if let Some(Reply::Status {
                leader: Some(leader),
                ..
            }) = self.tell(id, Call::Status).await
            {
                return Some(leader);
            }
        }
        None
    }

    /// Snapshots that a node has installed: the generation of its state.
    fn installed(&self, id: u64) -> u64 {
        let names = fs::read_dir(self.node_directory(id)).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let generations = names.filter_map(|name| {
            name.strip_prefix("state-")?
                .strip_suffix(".iso")?
                .parse()
                .ok()
        });
        generations.max().unwrap_or(0)
    }
}

/// What the clients have asked for and been answered, by key.
#[derive(Default)]
struct History {
    operations: Mutex<BTreeMap<u64, Vec<Operation>>>,
    last_value: AtomicU64,
    is_over: AtomicBool,
}

impl History {
    fn check(&self) -> Result<(), String> {
        for (key, operations) in self.operations.lock().unwrap().iter() {
            if let Err(found) = linear::check(operations) {
                return Err(story(*key, operations, found));
            }
        }
        Ok(())
    }

    /// Answered operations: reads, puts, swaps that were done.
    fn counts(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        for operation in self.operations.lock().unwrap().values().flatten() {
            match (operation.answer, operation.action) {
                (Some(_), Action::Get(_)) => counts[0] += 1,
                (Some(_), Action::Put(_)) => counts[1] += 1,
                (Some(_), Action::Swap { .. }) => counts[2] += 1,
                _ => {}
            }
        }
        counts
    }
}

/// The operation that fits no order, and those that were asked for around it.
fn story(key: u64, operations: &[Operation], found: Operation) -> String {
    let end = found.answer.unwrap_or(found.call);
    let second = 1_000_000_000;
    let near = |operation: &&Operation| {
        operation.call <= end && operation.answer.is_none_or(|at| at + second >= found.call)
    };
    let mut near: Vec<&Operation> = operations.iter().filter(near).collect();
    near.sort_by_key(|operation| operation.call);
    let lines = near.iter().map(|operation| format!("  {operation:?}\n"));
    format!(
        "key {key}: {found:?} fits no order with\n{}",
        lines.collect::<String>()
    )
}

struct Client {
    connections: BTreeMap<u64, Connection>,
    /// Whom it asks.
    node: u64,
    random: fastrand::Rng,
    history: Arc<History>,
    began: Instant,
    /// The last value that it knows of each key, for swaps.
    known: BTreeMap<u64, Option<Value>>,
}

impl Client {
    fn new(cluster: &Cluster, history: &Arc<History>, began: Instant, seed: u64) -> Client {
        let connections = cluster.addresses.iter();
        Client {
            connections: connections
                .map(|(&id, at)| (id, Connection::new(None, at)))
                .collect(),
            node: seed % 3 + 1,
            random: fastrand::Rng::with_seed(seed),
            history: Arc::clone(history),
            began,
            known: BTreeMap::new(),
        }
    }

    async fn run(mut self, only_reads: bool) {
        while !self.history.is_over.load(Ordering::Relaxed) {
            let key = self.random.u64(0..KEYS);
            let new = self.history.last_value.fetch_add(1, Ordering::Relaxed) + 1;
            let action = match self.random.u8(0..4) {
                _ if only_reads => Action::Get(None),
                0 => Action::Put(new),
                1 => {
                    let old = self.known.get(&key).copied().flatten();
                    Action::Swap { old, new }
                }
                _ => Action::Get(None),
            };
            self.ask(key, action).await;
            tokio::time::sleep(Duration::from_millis(self.random.u64(0..6))).await;
        }
    }

    /// Asks one node, and records what is known of it; whether there was an answer.
    async fn ask(&mut self, key: u64, action: Action) -> bool {
        let name = key.to_string();
        let call = match action {
            Action::Get(_) => Call::Get { key: name },
            Action::Put(value) => Call::Write(Request::Put {
                key: name,
                value: value.to_string(),
            }),
            Action::Swap { old, new, .. } => Call::Write(Request::Swap {
                key: name,
                old: old.map(|value| value.to_string()),
                new: new.to_string(),
            }),
        };
        let connection = self.connections.get_mut(&self.node).unwrap();
        let asked = self.began.elapsed().as_nanos() as u64;
        let reply = connection.call(call, &[], CALL_LIMIT).await;
        let answered = self.began.elapsed().as_nanos() as u64;
        let (action, answer) = match (reply, action) {
            (Ok(Reply::NotLeader(leader)), _) => {
                self.go_on(leader).await;
                return false;
            }
            (Ok(Reply::Got(value)), Action::Get(_)) => {
                let value = value.map(|value| value.parse().unwrap());
                self.known.insert(key, value);
                (Action::Get(value), Some(answered))
            }
            (Ok(Reply::Wrote(Answer::Done)), Action::Put(_) | Action::Swap { .. }) => {
                self.known.insert(key, action.written());
                (action, Some(answered))
            }
            (Ok(Reply::Wrote(Answer::Other(found))), Action::Swap { old, .. }) => {
                let found = found.map(|value| value.parse().unwrap());
                assert_ne!(found, old, "a swap that fits was refused");
                self.known.insert(key, found);
                (Action::Get(found), Some(answered))
            }
            // A read without an answer says nothing.
            (_, Action::Get(_)) => {
                self.go_on(None).await;
                return false;
            }
            (Ok(Reply::Unknown(_)) | Err(_), _) => {
                self.go_on(None).await;
                (action, None)
            }
            (reply, _) => panic!("{action:?} was answered {reply:?}"),
        };
        let operation = Operation {
            call: asked,
            answer,
            action,
        };
        self.history
            .operations
            .lock()
            .unwrap()
            .entry(key)
            .or_default()
            .push(operation);
        answer.is_some()
    }

    /// Turns to the leader, or to any node.
    async fn go_on(&mut self, leader: Option<u64>) {
        self.node = leader
            .filter(|&leader| leader != self.node)
            .unwrap_or(self.random.u64(1..=3));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Kills and isolates nodes until `end`, or until the answers or a node show a bug.
async fn disturb(
    cluster: &mut Cluster,
    random: &mut fastrand::Rng,
    end: Instant,
    history: &History,
) -> Result<(), String> {
    let pause = |random: &mut fastrand::Rng, from: u64, to: u64| {
        tokio::time::sleep(Duration::from_millis(random.u64(from..to)))
    };
    let mut round = 0;
    // A run without a bug goes on until a snapshot was sent.
    let is_over = |cluster: &Cluster| {
        let is_enough =
            cluster.fault.is_some() || NODES.iter().any(|&id| cluster.installed(id) > 0);
        Instant::now() >= end && (is_enough || Instant::now() >= end + SNAPSHOT_LIMIT)
    };
    while !is_over(cluster) {
        pause(random, 300, 700).await;
        // Each kind in turn, so that a run of any length has them all.
        match round % 4 {
            0 => {
                let leader = cluster.leader().await.unwrap_or(1);
                cluster.isolate(leader, true).await;
                pause(random, 1_800, 2_600).await;
                cluster.isolate(leader, false).await;
            }
            1 => {
                NODES.iter().for_each(|&id| cluster.kill(id));
                NODES.iter().for_each(|&id| cluster.run(id));
            }
            2 => {
                let id = random.u64(1..=3);
                cluster.kill(id);
                pause(random, 200, 1_500).await;
                cluster.run(id);
            }
            _ => {
                let id = random.u64(1..=3);
                cluster.isolate(id, true).await;
                let killed = (id + random.u64(0..2)) % 3 + 1;
                pause(random, 300, 600).await;
                cluster.kill(killed);
                cluster.run(killed);
                pause(random, 300, 600).await;
                cluster.isolate(id, false).await;
            }
        }
        round += 1;
        history.check()?;
        if let Some(id) = cluster.ended {
            return Err(format!("node {id} has ended by itself"));
        }
    }
    Ok(())
}

/// A run of `limit`; ends early if the answers are found not to be linearizable.
async fn run(
    fault: Option<&'static str>,
    seed: u64,
    limit: Duration,
) -> (Cluster, Arc<History>, Result<(), String>) {
    let mut cluster = Cluster::start(fault).await;
    let history = Arc::new(History::default());
    let began = Instant::now();
    let clients = (0..CLIENTS as u64).map(|number| {
        let client = Client::new(&cluster, &history, began, seed * 100 + number);
        tokio::spawn(client.run(number < READERS))
    });
    let clients: Vec<_> = clients.collect();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut found = disturb(&mut cluster, &mut random, began + limit, &history).await;
    history.is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    // Everything is up and together: each key is read once more.
    let mut last = Client::new(&cluster, &history, began, seed);
    let calm = Instant::now();
    for key in 0..KEYS {
        while !last.ask(key, Action::Get(None)).await {
            if calm.elapsed() > CALM_LIMIT {
                found = found.and(Err("the cluster does not come back".to_owned()));
                return (cluster, history, found);
            }
        }
    }
    if found.is_ok() {
        found = history.check();
    }
    (cluster, history, found)
}

fn seed() -> u64 {
    let given = std::env::var("ISOBATH_RAFT_SEED").ok();
    given.map_or(1, |seed| seed.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_linearizable_while_nodes_are_killed_and_cut_off() {
    let (cluster, history, found) = run(None, seed(), Duration::from_secs(15)).await;
    let counts = history.counts();
    let installed = NODES.map(|id| cluster.installed(id));
    println!("reads, puts, swaps: {counts:?}; snapshots installed: {installed:?}");
    found.unwrap();
    assert!(
        counts.iter().all(|&count| count > 50),
        "too little was answered: {counts:?}"
    );
    assert!(
        installed.iter().sum::<u64>() > 0,
        "no node has installed a snapshot"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_a_leader_that_is_none_any_more_are_found() {
    let (_cluster, history, found) =
        run(Some("stale-reads"), seed(), Duration::from_secs(24)).await;
    println!("{:?}, {found:?}", history.counts());
    assert!(found.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_are_acknowledged_before_they_are_on_the_drive_are_found() {
    let (_cluster, history, found) = run(
        Some("early-acknowledgement"),
        seed(),
        Duration::from_secs(24),
    )
    .await;
    println!("{:?}, {found:?}", history.counts());
    assert!(found.is_err());
}
