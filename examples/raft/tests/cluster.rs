//! Three nodes as processes, killed, restarted and cut off while clients read, write and swap. The
//! answers must be linearizable; with known bugs planted, they are found not to be.
//!
//! Nothing is judged by time: each step waits for what it needs. [`HANG`] only ends a test that
//! will not end.

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
/// The first of them only read: they stay with a leader that answers, whether it still is one or
/// not.
const READERS: u64 = 2;
const KEYS: u64 = 4;
const CALL_LIMIT: Duration = Duration::from_secs(1);
/// A step that takes longer will never end.
const HANG: Duration = Duration::from_secs(60);
const ROUNDS: usize = 8;
/// Answers that each step waits for.
const ANSWERS: u64 = 30;
/// Answered reads, puts and swaps of a run, each.
const ANSWERS_OF_A_KIND: usize = 50;
/// How often an acknowledged write may survive by luck.
const ATTEMPTS: usize = 20;

/// The clusters run one after another: they share the machine with nothing of this test's.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// What a run shows.
#[derive(Debug)]
#[allow(dead_code, reason = "failing tests show the fields")]
enum Verdict {
    Linearizable,
    /// Answers that fit no order.
    Violation(String),
    /// A node that has ended by itself.
    NodeEnded(u64),
}

/// Ends a wait that hangs.
struct Patience(Instant, &'static str);

impl Patience {
    fn with(what: &'static str) -> Patience {
        Patience(Instant::now(), what)
    }

    async fn pause(&self) {
        assert!(self.0.elapsed() < HANG, "{} does not end", self.1);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What a node says of itself.
#[derive(Debug)]
struct Status {
    leader: Option<u64>,
    last: u64,
    purged: u64,
}

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
        self.kill(&NODES);
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
        let patience = Patience::with("the start");
        while cluster.leader().await.is_none() {
            // Refused if it was done without an answer.
            let nodes = nodes.clone();
            cluster.tell(1, Call::Initialize { nodes }).await;
            patience.pause().await;
        }
        cluster.wait_until_equal().await;
        cluster
    }

    /// Waits until all nodes follow one leader and have the same entries.
    async fn wait_until_equal(&mut self) {
        let patience = Patience::with("getting to the same entries");
        while self.find_ended().is_none() {
            let mut known = BTreeSet::new();
            for id in NODES {
                let status = self.status(id).await;
                known.insert(status.map(|status| (status.leader, status.last)));
            }
            if known.len() == 1 && known.iter().flatten().any(|(leader, _)| leader.is_some()) {
                return;
            }
            patience.pause().await;
        }
    }

    fn node_directory(&self, id: u64) -> PathBuf {
        self.directory.path().join(id.to_string())
    }

    fn run(&mut self, id: u64) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_raft-kv"));
        command
            .args(["serve", "--snapshot-every", "40", "--pool-mib", "8"])
            .args(["--id", &id.to_string()])
            .args(["--address", &self.addresses[&id], "--directory"])
            .arg(self.node_directory(id))
            .stdout(Stdio::null());
        if let Some(fault) = self.fault {
            command.args(["--fault", fault]);
        }
        self.processes.insert(id, command.spawn().unwrap());
    }

    /// SIGKILL, to all before the first is waited for.
    fn kill(&mut self, ids: &[u64]) {
        self.find_ended();
        let killed = ids.iter().filter_map(|id| self.processes.remove(id));
        let mut killed: Vec<Child> = killed.collect();
        killed
            .iter_mut()
            .for_each(|process| process.kill().unwrap());
        for mut process in killed {
            process.wait().unwrap();
        }
    }

    fn find_ended(&mut self) -> Option<u64> {
        for (&id, process) in &mut self.processes {
            if process.try_wait().unwrap().is_some() {
                self.ended = Some(id);
            }
        }
        self.ended
    }

    fn judge(&mut self, history: &History) -> Verdict {
        match (history.check(), self.find_ended()) {
            (Err(found), _) => Verdict::Violation(found),
            (Ok(()), Some(id)) => Verdict::NodeEnded(id),
            (Ok(()), None) => Verdict::Linearizable,
        }
    }

    async fn tell(&self, id: u64, call: Call) -> Option<Reply> {
        let mut connection = Connection::new(None, &self.addresses[&id]);
        connection.call(call, &[], CALL_LIMIT).await.ok()
    }

    /// Cuts `id` off from the others, or from none. Tries until it is done, or the node has ended.
    async fn isolate(&mut self, id: u64, is_isolated: bool) {
        let others = NODES.into_iter();
        let others = others.filter(|&other| is_isolated && other != id);
        let from: BTreeSet<u64> = others.collect();
        let patience = Patience::with("cutting off or healing");
        while self.find_ended().is_none() {
            let from = from.clone();
            if let Some(Reply::Done) = self.tell(id, Call::Isolate { from }).await {
                return;
            }
            patience.pause().await;
        }
    }

    async fn status(&self, id: u64) -> Option<Status> {
        match self.tell(id, Call::Status).await {
            Some(Reply::Status {
                leader,
                last,
                purged,
                ..
            }) => Some(Status {
                leader,
                last,
                purged,
            }),
            _ => None,
        }
    }

    /// A node that takes itself for the leader.
    async fn leader(&self) -> Option<u64> {
        for id in NODES {
            let status = self.status(id).await;
            if status.is_some_and(|status| status.leader == Some(id)) {
                return Some(id);
            }
        }
        None
    }

    async fn wait_for_leader(&mut self) -> u64 {
        let patience = Patience::with("an election");
        loop {
            match (self.leader().await, self.find_ended()) {
                (Some(id), _) | (None, Some(id)) => return id,
                (None, None) => patience.pause().await,
            }
        }
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
    answers: AtomicU64,
    is_over: AtomicBool,
}

impl History {
    fn check(&self) -> Result<(), String> {
        let all = self.operations.lock().unwrap().clone();
        for (key, operations) in all {
            if let Err(found) = linear::check(&operations) {
                return Err(story(key, &operations, found));
            }
        }
        Ok(())
    }

    fn new_value(&self) -> Value {
        self.last_value.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Waits for some more answers, or for a node that has ended.
    async fn progress(&self, cluster: &mut Cluster) {
        let enough = self.answers.load(Ordering::Relaxed) + ANSWERS;
        let patience = Patience::with("waiting for answers");
        while self.answers.load(Ordering::Relaxed) < enough && cluster.find_ended().is_none() {
            patience.pause().await;
        }
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
            let new = self.history.new_value();
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
        if answer.is_some() {
            self.history.answers.fetch_add(1, Ordering::Relaxed);
        }
        answer.is_some()
    }

    /// Asks the nodes but `not` until one answers, or has ended. Each try puts a new value.
    async fn ask_until(&mut self, cluster: &mut Cluster, is_put: bool, not: Option<u64>) {
        let patience = Patience::with("asking until there is an answer");
        while cluster.find_ended().is_none() {
            if Some(self.node) == not {
                self.node = self.node % 3 + 1;
            }
            let action = match is_put {
                true => Action::Put(self.history.new_value()),
                false => Action::Get(None),
            };
            if self.ask(0, action).await {
                return;
            }
            patience.pause().await;
        }
    }

    /// Turns to the leader, or to any node.
    async fn go_on(&mut self, leader: Option<u64>) {
        self.node = leader
            .filter(|&leader| leader != self.node)
            .unwrap_or(self.random.u64(1..=3));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One way to disturb a cluster, of four.
async fn disturb(
    kind: usize,
    cluster: &mut Cluster,
    random: &mut fastrand::Rng,
    history: &History,
) {
    let id = random.u64(1..=3);
    match kind {
        0 => {
            let leader = cluster.wait_for_leader().await;
            cluster.isolate(leader, true).await;
            history.progress(cluster).await;
            cluster.isolate(leader, false).await;
        }
        1 => {
            cluster.kill(&NODES);
            NODES.iter().for_each(|&id| cluster.run(id));
        }
        2 => {
            cluster.kill(&[id]);
            history.progress(cluster).await;
            cluster.run(id);
        }
        _ => {
            cluster.isolate(id, true).await;
            let killed = (id + random.u64(0..2)) % 3 + 1;
            cluster.kill(&[killed]);
            cluster.run(killed);
            history.progress(cluster).await;
            cluster.isolate(id, false).await;
        }
    }
    history.progress(cluster).await;
}

/// Cuts a follower off until the leader has purged what it lacks; then it gets a snapshot.
async fn send_a_snapshot(cluster: &mut Cluster) {
    let leader = cluster.wait_for_leader().await;
    let follower = leader % 3 + 1;
    let before = cluster.installed(follower);
    cluster.isolate(follower, true).await;
    let patience = Patience::with("a purge that passes a follower");
    while cluster.find_ended().is_none() {
        let last = cluster.status(follower).await.map(|status| status.last);
        let leader = cluster.wait_for_leader().await;
        let purged = cluster.status(leader).await.map(|status| status.purged);
        if leader != follower && last.is_some() && last < purged {
            break;
        }
        patience.pause().await;
    }
    cluster.isolate(follower, false).await;
    let patience = Patience::with("installing a snapshot");
    while cluster.installed(follower) == before && cluster.find_ended().is_none() {
        patience.pause().await;
    }
}

fn seed() -> u64 {
    let given = std::env::var("ISOBATH_RAFT_SEED").ok();
    given.map_or(1, |seed| seed.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_linearizable_while_nodes_are_killed_and_cut_off() {
    let _one = ONE_AT_A_TIME.lock().await;
    let (seed, began) = (seed(), Instant::now());
    let mut cluster = Cluster::start(None).await;
    let history = Arc::new(History::default());
    let clients = (0..CLIENTS as u64).map(|number| {
        let client = Client::new(&cluster, &history, began, seed * 100 + number);
        tokio::spawn(client.run(number < READERS))
    });
    let clients: Vec<_> = clients.collect();
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..ROUNDS {
        // Each kind in turn, so that a run has them all.
        disturb(round % 4, &mut cluster, &mut random, &history).await;
        if !matches!(cluster.judge(&history), Verdict::Linearizable) {
            break;
        }
    }
    send_a_snapshot(&mut cluster).await;
    while history
        .counts()
        .iter()
        .any(|&count| count < ANSWERS_OF_A_KIND)
        && cluster.find_ended().is_none()
    {
        history.progress(&mut cluster).await;
    }
    history.is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    // Everything is up and together: each key is read once more.
    let mut last = Client::new(&cluster, &history, began, seed);
    let patience = Patience::with("the last reads");
    for key in 0..KEYS {
        while cluster.find_ended().is_none() && !last.ask(key, Action::Get(None)).await {
            patience.pause().await;
        }
    }
    let verdict = cluster.judge(&history);
    let installed = NODES.map(|id| cluster.installed(id));
    println!(
        "reads, puts, swaps: {:?}; snapshots installed: {installed:?}; {:?}",
        history.counts(),
        began.elapsed()
    );
    assert!(matches!(verdict, Verdict::Linearizable), "{verdict:?}");
}

/// A leader is cut off, another takes a write, and the first is asked for the value.
async fn read_from_an_old_leader(fault: Option<&'static str>) -> Verdict {
    let _one = ONE_AT_A_TIME.lock().await;
    let mut cluster = Cluster::start(fault).await;
    let history = Arc::new(History::default());
    let mut client = Client::new(&cluster, &history, Instant::now(), 0);
    client.ask_until(&mut cluster, true, None).await;
    cluster.wait_until_equal().await;
    let old = cluster.wait_for_leader().await;
    cluster.isolate(old, true).await;
    client.ask_until(&mut cluster, true, Some(old)).await;
    client.node = old;
    client.ask(0, Action::Get(None)).await;
    cluster.judge(&history)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_a_leader_that_is_none_any_more_are_found() {
    let verdict = read_from_an_old_leader(Some("stale-reads")).await;
    assert!(matches!(verdict, Verdict::Violation(_)), "{verdict:?}");
    // The same without the bug: the scenario itself is no violation.
    let verdict = read_from_an_old_leader(None).await;
    assert!(matches!(verdict, Verdict::Linearizable), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_are_acknowledged_before_they_are_on_the_drive_are_found() {
    let _one = ONE_AT_A_TIME.lock().await;
    // Who the members are is on the drive before: a cluster that lost that would never answer.
    let mut cluster = Cluster::start(None).await;
    cluster.kill(&NODES);
    cluster.fault = Some("early-acknowledgement");
    NODES.iter().for_each(|&id| cluster.run(id));
    let history = Arc::new(History::default());
    let mut client = Client::new(&cluster, &history, Instant::now(), 0);
    let mut verdict = Verdict::Linearizable;
    for attempt in 1..=ATTEMPTS {
        client.ask_until(&mut cluster, true, None).await;
        cluster.kill(&NODES);
        NODES.iter().for_each(|&id| cluster.run(id));
        client.ask_until(&mut cluster, false, None).await;
        verdict = cluster.judge(&history);
        if !matches!(verdict, Verdict::Linearizable) {
            println!("attempt {attempt}: {verdict:?}");
            return;
        }
    }
    panic!("{ATTEMPTS} acknowledged writes were there after a crash: {verdict:?}");
}
