//! The judgement of a history.
//!
//! Each transaction has two instants, that of its snapshot and that of its
//! commit; an operation outside transactions has one. Everything that is known
//! says that one instant came before another: a reader that saw a write has its
//! snapshot after that commit, one that missed it before; of two transactions
//! that wrote the same record, the later one has its snapshot after the earlier
//! one's commit; what was acknowledged before an operation began came before
//! it. A history is possible exactly if these facts have no cycle (for snapshot
//! isolation: Adya, Liskov and O'Neil, "Generalized Isolation Level
//! Definitions", ICDE 2000; Cerone and Gotsman, "Analysing Snapshot Isolation",
//! PODC 2016). The kinds of edges on a cycle name the anomaly.

use std::fmt::Write as _;

use super::absences;
use super::cycle::Graph;
use super::versions::{LAST, Versions, Window, window_of};
use super::{Anomaly, Finding, History, Key, Level, Outcome, Read, Seen, Transaction, Version};

/// Most findings that are reported of one history.
const MAX_FINDINGS: usize = 20;

/// Why one instant came before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edge {
    /// A transaction's snapshot and its commit.
    Span,
    /// The clock on the wall.
    Time,
    /// Acknowledged as durable, so before the last state.
    Durable,
    /// Wrote the version that the other one replaced.
    WriteWrite(Key),
    /// The same, where the later one may not have begun before.
    FirstCommitter(Key),
    /// Wrote what the other one saw.
    WriteRead(Key),
    /// Did not see what the other one wrote.
    ReadWrite(Key),
}

/// A node of the graph.
#[derive(Debug, Clone, Copy)]
enum Node {
    Snapshot(usize),
    Commit(usize),
    Clock,
    Last,
}

struct Checker<'h> {
    history: &'h History,
    versions: Versions,
    graph: Graph<Edge>,
    /// Ends of transactions, in order: the clock.
    ends: Vec<u64>,
    findings: Vec<Finding>,
}

/// Everything in `history` that no correct store could have done.
pub(crate) fn check(history: &History) -> Vec<Finding> {
    let versions = Versions::of(history);
    let mut ends: Vec<u64> = history.transactions.iter().map(|t| t.end).collect();
    ends.retain(|&end| end != u64::MAX);
    ends.sort_unstable();
    let nodes = 2 * history.transactions.len() + 2 * ends.len() + 1;
    let mut checker = Checker {
        history,
        versions,
        graph: Graph::new(nodes),
        ends,
        findings: Vec::new(),
    };
    checker.clock();
    checker.spans();
    checker.writes();
    for reader in 0..history.transactions.len() {
        checker.reads(reader);
    }
    checker.last();
    checker.cycles();
    checker.findings.truncate(MAX_FINDINGS);
    checker.findings
}

impl Checker<'_> {
    fn transaction(&self, index: usize) -> &Transaction {
        &self.history.transactions[index]
    }

    fn snapshot(&self, index: usize) -> usize {
        2 * index
    }

    /// The instant of the writes; that of the reads too in an operation
    /// outside transactions, and where there are none.
    fn commit(&self, index: usize) -> usize {
        let transaction = self.transaction(index);
        let two = transaction.level != Level::Single && self.versions.happened[index];
        2 * index + usize::from(two)
    }

    fn clock_node(&self, at: usize) -> usize {
        2 * self.history.transactions.len() + at
    }

    /// The clock of operations outside transactions. If these may be ahead of the newest
    /// snapshot it is a second one, and they never go back.
    fn read_clock_node(&self, at: usize) -> usize {
        if self.history.shown_late {
            return self.clock_node(at);
        }
        self.clock_node(self.ends.len() + at)
    }

    fn last_node(&self) -> usize {
        self.clock_node(2 * self.ends.len())
    }

    fn find(&mut self, anomaly: Anomaly, story: String) {
        self.findings.push(Finding { anomaly, story });
    }

    /// Time: what had ended came before what was begun or asked for later.
    fn clock(&mut self) {
        for at in 1..self.ends.len() {
            let (from, to) = (self.clock_node(at - 1), self.clock_node(at));
            self.graph.add(from, to, Edge::Time);
            let (from, to) = (self.read_clock_node(at - 1), self.read_clock_node(at));
            self.graph.add(from, to, Edge::Time);
        }
        for at in 0..self.ends.len() {
            let (from, to) = (self.clock_node(at), self.read_clock_node(at));
            if from != to {
                self.graph.add(from, to, Edge::Time);
            }
        }
        for index in 0..self.history.transactions.len() {
            let (begin, asked, end, single, looks) = {
                let t = self.transaction(index);
                let single = t.level == Level::Single;
                let changes = self.versions.happened[index] && !t.writes.is_empty();
                (t.begin, t.asked, t.end, single, single && !changes)
            };
            let (snapshot, commit) = (self.snapshot(index), self.commit(index));
            self.after_time(begin, snapshot, single);
            if commit != snapshot {
                self.after_time(asked, commit, false);
            }
            if end != u64::MAX {
                let at = self.ends.partition_point(|&e| e < end);
                let node = if looks {
                    self.read_clock_node(at)
                } else {
                    self.clock_node(at)
                };
                self.graph.add(commit, node, Edge::Time);
            }
        }
    }

    /// `node` comes after everything that had ended before `instant`.
    fn after_time(&mut self, instant: u64, node: usize, single: bool) {
        let before = self.ends.partition_point(|&end| end < instant);
        if before > 0 {
            let clock = if single {
                self.read_clock_node(before - 1)
            } else {
                self.clock_node(before - 1)
            };
            self.graph.add(clock, node, Edge::Time);
        }
    }

    fn spans(&mut self) {
        for index in 0..self.history.transactions.len() {
            let (snapshot, commit) = (self.snapshot(index), self.commit(index));
            if snapshot != commit {
                self.graph.add(snapshot, commit, Edge::Span);
            }
        }
    }

    /// Each version before the ones that are known to follow it.
    fn writes(&mut self) {
        let mut edges = Vec::new();
        let mut lost = Vec::new();
        for (&key, chain) in &self.versions.chains {
            for (item, later) in chain.items.iter().zip(&chain.after) {
                for &next in later {
                    let (Some(from), Some(to)) = (item.writer, chain.items[next].writer) else {
                        continue;
                    };
                    let (edge, to) = if self.transaction(to).level == Level::Single {
                        (Edge::WriteWrite(key), self.commit(to))
                    } else {
                        (Edge::FirstCommitter(key), self.snapshot(to))
                    };
                    edges.push((self.commit(from), to, edge));
                }
                let updaters: Vec<usize> = later
                    .iter()
                    .filter_map(|&next| chain.items[next].writer)
                    .filter(|&writer| self.updates(writer, key, item.version))
                    .collect();
                if let [first, second, ..] = updaters[..] {
                    lost.push((key, item.version, first, second));
                }
            }
        }
        let inserts: Vec<(Key, Vec<usize>)> = self
            .versions
            .chains
            .iter()
            .map(|(&key, chain)| (key, absences::too_many(self.history, key, chain)))
            .filter(|(_, writers)| !writers.is_empty())
            .collect();
        for (from, to, edge) in edges {
            self.graph.add(from, to, edge);
        }
        for (key, writers) in inserts {
            let names: Vec<String> = writers.iter().map(|&writer| self.name(writer)).collect();
            let story = format!(
                "{} found no record {} and wrote it, which is more often than it can have been absent",
                names.join(", "),
                key.0
            );
            self.find(Anomaly::LostUpdate, story);
        }
        for (key, version, first, second) in lost {
            let story = format!(
                "both {} and {} replaced version {version} of record {}",
                self.name(first),
                self.name(second),
                key.0
            );
            self.find(Anomaly::LostUpdate, story);
        }
    }

    /// Whether a transaction read this version of the record before it wrote another.
    fn updates(&self, writer: usize, key: Key, version: Version) -> bool {
        let transaction = self.transaction(writer);
        let wanted = Seen::Version(version);
        transaction.level != Level::Single
            && transaction
                .reads
                .iter()
                .any(|read| read.key == key && read.seen == wanted)
    }

    fn reads(&mut self, reader: usize) {
        let transaction = self.transaction(reader);
        let window = window_of(transaction);
        let validated = transaction.level == Level::Serializable
            && self.versions.happened[reader]
            && !transaction.writes.is_empty();
        let node = self.snapshot(reader);
        let missed = if validated { self.commit(reader) } else { node };
        for read in transaction.reads.clone() {
            let who = || format!("{} read record {}", self.name(reader), read.key.0);
            if let Err((anomaly, what)) = self.plausible(read, window) {
                let story = format!("{}: {what}", who());
                self.find(anomaly, story);
                continue;
            }
            self.saw(read, window, node, missed, Some(reader));
        }
    }

    /// Checks one read alone.
    fn plausible(&self, read: Read, window: Window) -> Result<(), (Anomaly, String)> {
        let version = match read.seen {
            Seen::Absent => {
                return match self.versions.absence(read.key, window) {
                    Ok(_) => Ok(()),
                    Err(()) if window.begin == LAST.begin => Err((
                        Anomaly::Garbage,
                        "nothing there, though it was never removed".to_owned(),
                    )),
                    Err(()) => Err((
                        Anomaly::Stale,
                        "nothing there, though a value was certainly there".to_owned(),
                    )),
                };
            }
            Seen::Version(version) => version,
        };
        let Some(origin) = self.versions.origins.get(&version) else {
            let what = format!("version {version}, which was never written");
            return Err((Anomaly::Garbage, what));
        };
        if origin.key != read.key {
            let what = format!("version {version}, which is of record {}", origin.key.0);
            return Err((Anomaly::Garbage, what));
        }
        let Some(writer) = origin.writer else {
            return Ok(());
        };
        let what = format!("version {version} of {}", self.name(writer));
        if self.transaction(writer).outcome == Outcome::Aborted {
            return Err((Anomaly::AbortedRead, what));
        }
        if origin.replaced {
            return Err((Anomaly::IntermediateRead, what));
        }
        Ok(())
    }

    /// The reader comes after the write that it saw and before those after it.
    fn saw(
        &mut self,
        read: Read,
        window: Window,
        node: usize,
        missed: usize,
        reader: Option<usize>,
    ) {
        let index = match read.seen {
            Seen::Absent => self.versions.absence(read.key, window).ok().flatten(),
            Seen::Version(version) => self
                .versions
                .chains
                .get(&read.key)
                .and_then(|chain| chain.index_of(version)),
        };
        let Some(chain) = self.versions.chains.get(&read.key) else {
            return;
        };
        let Some(index) = index else {
            return;
        };
        let mut edges = Vec::new();
        if let Some(writer) = chain.items[index].writer.filter(|&w| Some(w) != reader) {
            edges.push((self.commit(writer), node, Edge::WriteRead(read.key)));
        }
        for &later in &chain.after[index] {
            let writer = chain.items[later].writer;
            if let Some(writer) = writer.filter(|&w| Some(w) != reader) {
                edges.push((missed, self.commit(writer), Edge::ReadWrite(read.key)));
            }
        }
        for (from, to, edge) in edges {
            self.graph.add(from, to, edge);
        }
    }

    /// The last state is a reader of everything, after all that is durable.
    fn last(&mut self) {
        let history = self.history;
        let Some(last) = &history.last else {
            return;
        };
        let node = self.last_node();
        for (index, transaction) in history.transactions.iter().enumerate() {
            let acknowledged = transaction.outcome == Outcome::Committed && transaction.durable;
            if acknowledged && !transaction.writes.is_empty() {
                self.graph.add(self.commit(index), node, Edge::Durable);
            }
        }
        for writer in self.shown_to_last() {
            self.graph.add(self.commit(writer), node, Edge::Durable);
        }
        let mut keys: Vec<Key> = self.versions.chains.keys().copied().collect();
        keys.extend(last.keys());
        keys.sort_unstable();
        keys.dedup();
        for key in keys.into_iter().filter(|k| !history.unreadable.contains(k)) {
            let seen = last.get(&key).map_or(Seen::Absent, |&v| Seen::Version(v));
            let read = Read { key, seen };
            match self.plausible(read, LAST) {
                Ok(()) => self.saw(read, LAST, node, node, None),
                Err((anomaly, what)) => {
                    let story = format!("the last state has of record {}: {what}", key.0);
                    self.find(anomaly, story);
                }
            }
        }
    }

    /// Commits that were to be durable before any reader saw them, and that a reader saw.
    fn shown_to_last(&self) -> Vec<usize> {
        if !self.history.shown_late {
            return Vec::new();
        }
        let readers = self.history.transactions.iter().enumerate();
        let mut shown: Vec<usize> = readers
            .flat_map(|(reader, t)| t.reads.iter().map(move |read| (reader, read.seen)))
            .filter_map(|(reader, seen)| match seen {
                Seen::Version(version) => {
                    let origin = self.versions.origins.get(&version)?;
                    origin.writer.filter(|&writer| writer != reader)
                }
                Seen::Absent => None,
            })
            .filter(|&writer| self.transaction(writer).durable)
            .collect();
        shown.sort_unstable();
        shown.dedup();
        shown
    }

    // ---- findings --------------------------------------------------------------

    fn cycles(&mut self) {
        for cycle in self.graph.cycles() {
            let anomaly = self.classify(&cycle);
            let story = self.story(&cycle);
            self.find(anomaly, story);
        }
    }

    fn node(&self, node: usize) -> Node {
        let transactions = self.history.transactions.len();
        if node < 2 * transactions {
            if node.is_multiple_of(2) {
                Node::Snapshot(node / 2)
            } else {
                Node::Commit(node / 2)
            }
        } else if node == self.last_node() {
            Node::Last
        } else {
            Node::Clock
        }
    }

    fn classify(&self, cycle: &[(usize, Edge, usize)]) -> Anomaly {
        let has = |test: &dyn Fn(Edge) -> bool| cycle.iter().any(|edge| test(edge.1));
        let missed: Vec<_> = cycle
            .iter()
            .filter(|edge| matches!(edge.1, Edge::ReadWrite(_)))
            .collect();
        if cycle.iter().any(|edge| edge.0 == self.last_node()) {
            let durable = has(&|edge| edge == Edge::Durable);
            return if durable {
                Anomaly::LostCommit
            } else {
                Anomaly::PartialCommit
            };
        }
        let reader = missed
            .first()
            .and_then(|edge| match (self.node(edge.0), edge.1) {
                (Node::Snapshot(reader) | Node::Commit(reader), Edge::ReadWrite(key)) => {
                    Some((reader, key))
                }
                _ => None,
            });
        match (missed.len(), reader) {
            (0, _) if has(&|edge| matches!(edge, Edge::WriteRead(_))) => {
                Anomaly::CircularInformation
            }
            (0, _) => Anomaly::WriteCycle,
            (1, Some((reader, key))) => {
                let writes = &self.transaction(reader).writes;
                if writes.iter().any(|write| write.key == key) {
                    Anomaly::LostUpdate
                } else if matches!(self.node(missed[0].0), Node::Commit(_)) {
                    // A serializable transaction's reads hold when it commits.
                    Anomaly::WriteSkew
                } else if has(&|edge| edge == Edge::Time) {
                    Anomaly::Stale
                } else {
                    Anomaly::ReadSkew
                }
            }
            _ => {
                let serializable = cycle.iter().any(|edge| match self.node(edge.0) {
                    Node::Snapshot(t) | Node::Commit(t) => {
                        self.transaction(t).level == Level::Serializable
                    }
                    Node::Clock | Node::Last => false,
                });
                if serializable {
                    Anomaly::WriteSkew
                } else {
                    Anomaly::LongFork
                }
            }
        }
    }

    fn name(&self, index: usize) -> String {
        let t = self.transaction(index);
        let kind = match t.level {
            Level::Single => "operation",
            Level::Snapshot => "transaction",
            Level::Serializable => "serializable transaction",
        };
        format!("{kind} {index} ({}..{})", t.begin, end(t.end))
    }

    fn story(&self, cycle: &[(usize, Edge, usize)]) -> String {
        let mut story = String::new();
        for &(from, edge, to) in cycle {
            let named = |node| match self.node(node) {
                Node::Snapshot(t) | Node::Commit(t) => self.name(t),
                Node::Last => "the last state".to_owned(),
                Node::Clock => String::new(),
            };
            let text = match edge {
                Edge::Span => continue,
                Edge::Time => match (self.node(from), self.node(to)) {
                    (Node::Clock, Node::Clock) => continue,
                    (Node::Clock, _) => format!("{} began or asked later", named(to)),
                    _ => format!("{} had ended", named(from)),
                },
                Edge::Durable => format!("{} is durable", named(from)),
                Edge::WriteWrite(k) | Edge::FirstCommitter(k) => {
                    format!("{} wrote record {} before {}", named(from), k.0, named(to))
                }
                Edge::WriteRead(k) => {
                    format!(
                        "{} wrote what {} saw of record {}",
                        named(from),
                        named(to),
                        k.0
                    )
                }
                Edge::ReadWrite(k) => {
                    format!(
                        "{} missed what {} wrote to record {}",
                        named(from),
                        named(to),
                        k.0
                    )
                }
            };
            // Writing to a string cannot fail.
            let _ = write!(story, "{}{text}", if story.is_empty() { "" } else { "; " });
        }
        story
    }
}

fn end(end: u64) -> String {
    if end == u64::MAX {
        "never answered".to_owned()
    } else {
        end.to_string()
    }
}
