//! The history of a store's clients, and whether any correct store could have answered so.
//!
//! A history is recorded while a store runs, under the simulator or in real
//! threads, and judged afterwards: [`check()`] is a pure function. Every write
//! has a number of its own, its *version*, which its value carries, so that
//! each read names the write that it saw.

mod absences;
mod check;
mod cycle;
mod versions;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub(crate) use check::check;

/// A record's name in histories, small and dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Key(pub(crate) u32);

/// The number of one write.
pub(crate) type Version = u64;

/// A transaction's isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Level {
    /// All its reads and writes at one instant between begin and end: an
    /// operation outside transactions.
    Single,
    /// Reads at one instant, writes at a later one, and no other transaction wrote the same records
    /// in between.
    Snapshot,
    /// As [`Level::Snapshot`], and its reads hold at the later instant too.
    Serializable,
}

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The commit was acknowledged.
    Committed,
    /// Rolled back, refused, or failed in a way that guarantees no effect.
    Aborted,
    /// No answer: the power went, or an error left it open.
    Unknown,
}

/// A read's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Seen {
    /// The value of this write.
    Version(Version),
    /// No value.
    Absent,
}

/// One read of a record that the transaction had not written itself.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Read {
    pub(crate) key: Key,
    pub(crate) seen: Seen,
}

/// The last write of a transaction to one record.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Write {
    pub(crate) key: Key,
    pub(crate) version: Version,
    /// Whether it leaves a value; else it removes the record.
    pub(crate) present: bool,
}

impl Write {
    pub(crate) fn put(key: Key, version: Version) -> Write {
        Write {
            key,
            version,
            present: true,
        }
    }

    pub(crate) fn removal(key: Key, version: Version) -> Write {
        Write {
            key,
            version,
            present: false,
        }
    }
}

/// One transaction, or one operation outside transactions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Transaction {
    pub(crate) level: Level,
    /// When it was asked for, in events of the history.
    pub(crate) begin: u64,
    /// When its commit was asked for; `u64::MAX` if it never was.
    pub(crate) asked: u64,
    /// When it was answered; `u64::MAX` if it never was.
    pub(crate) end: u64,
    pub(crate) outcome: Outcome,
    /// Its acknowledgement guarantees that no crash undoes it.
    pub(crate) durable: bool,
    pub(crate) reads: Vec<Read>,
    pub(crate) writes: Vec<Write>,
    /// Versions that it replaced itself: no other transaction may see them.
    pub(crate) replaced: Vec<(Key, Version)>,
    /// Its place in the order of commits, where the store says.
    pub(crate) stamp: Option<u64>,
}

impl Transaction {
    pub(crate) fn new(level: Level, begin: u64) -> Transaction {
        Transaction {
            level,
            begin,
            asked: if level == Level::Single {
                begin
            } else {
                u64::MAX
            },
            end: u64::MAX,
            outcome: Outcome::Unknown,
            durable: true,
            reads: Vec::new(),
            writes: Vec::new(),
            replaced: Vec::new(),
            stamp: None,
        }
    }
}

/// A store's first state, and its operations since.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// The records that had a value, with its version.
    pub(crate) initial: BTreeMap<Key, Version>,
    pub(crate) transactions: Vec<Transaction>,
    /// All records after everything, as the last reader found them: those with
    /// a value. After a crash, what recovery brought back.
    pub(crate) last: Option<BTreeMap<Key, Version>>,
    /// The store shows a commit once it is durable: what a reader saw lasts, and all readers see
    /// commits in one order. Else an operation outside transactions may be ahead of the newest
    /// snapshot, and ahead of the drive.
    pub(crate) shown_late: bool,
    /// Records that the last reader could not read.
    pub(crate) unreadable: BTreeSet<Key>,
    clock: u64,
}

impl History {
    pub(crate) fn starting_with(initial: BTreeMap<Key, Version>) -> History {
        History {
            initial,
            ..History::default()
        }
    }

    /// The same, of a store that shows a commit once it is durable, or does not.
    pub(crate) fn shown_late(self, shown_late: bool) -> History {
        History { shown_late, ..self }
    }

    /// The next instant.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The next instant, not before `now`.
    pub(crate) fn tick_at(&mut self, now: u64) -> u64 {
        self.clock = now.max(self.clock + 1);
        self.clock
    }

    /// Instants so far.
    pub(crate) fn now(&self) -> u64 {
        self.clock
    }

    /// The history as it was known at `instant`: what was not answered by then
    /// was not answered at all, and what had not asked to be committed was not.
    pub(crate) fn until(&self, instant: u64) -> History {
        let mut cut = self.clone();
        cut.transactions.retain(|t| t.begin <= instant);
        for transaction in &mut cut.transactions {
            if transaction.end > instant {
                transaction.end = u64::MAX;
                transaction.stamp = None;
                transaction.outcome = if transaction.asked > instant {
                    Outcome::Aborted
                } else {
                    Outcome::Unknown
                };
                // What it has read until then is not known apart from what it
                // read later.
                transaction.reads.clear();
            }
        }
        cut.clock = instant;
        cut
    }

    /// The history of a copy that was begun at `began` and complete at `ended`: what was
    /// acknowledged before is in it, and of what came since all up to some instant.
    pub(crate) fn copied(&self, began: u64, ended: u64) -> History {
        let mut copy = self.until(ended);
        copy.shown_late = false;
        for transaction in &mut copy.transactions {
            transaction.durable = transaction.end < began;
        }
        copy
    }
}

/// Answers that no correct store could have given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Anomaly {
    /// A read found a value that was never written there.
    Garbage,
    /// G1a: a read saw a write of a transaction that was rolled back.
    AbortedRead,
    /// G1b: a read saw a write that its own transaction replaced.
    IntermediateRead,
    /// G0: two transactions each wrote over the other.
    WriteCycle,
    /// G1c: transactions saw each other's writes in a circle.
    CircularInformation,
    /// Two transactions replaced the same version of a record.
    LostUpdate,
    /// G-single: a transaction saw one part of another one and missed a part.
    ReadSkew,
    /// Two snapshots disagree about the order of two commits (G-SI).
    LongFork,
    /// G2: serializable transactions that no order explains.
    WriteSkew,
    /// An operation did not see a write acknowledged before it began.
    Stale,
    /// The last state lacks a write that was acknowledged as durable.
    LostCommit,
    /// The last state has a part of a transaction, or one without what it was
    /// built on.
    PartialCommit,
}

/// An anomaly, with the story that shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) anomaly: Anomaly,
    pub(crate) story: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.anomaly {
            Anomaly::Garbage => "a read found what was never written",
            Anomaly::AbortedRead => "aborted read (G1a)",
            Anomaly::IntermediateRead => "intermediate read (G1b)",
            Anomaly::WriteCycle => "write cycle (G0)",
            Anomaly::CircularInformation => "circular information flow (G1c)",
            Anomaly::LostUpdate => "lost update",
            Anomaly::ReadSkew => "read skew (G-single)",
            Anomaly::LongFork => "long fork (G-SI)",
            Anomaly::WriteSkew => "not serializable (G2)",
            Anomaly::Stale => "stale read: an acknowledged write was not seen",
            Anomaly::LostCommit => "an acknowledged commit is lost",
            Anomaly::PartialCommit => "a commit survived in part, or without what came before it",
        };
        write!(out, "{name}: {}", self.story)
    }
}
