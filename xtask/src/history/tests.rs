//! Histories made by hand: one for each anomaly, and a similar one without it.

use super::*;

const X: Key = Key(1);
const Y: Key = Key(2);

/// A transaction in shorthand.
struct T(Transaction);

fn t(level: Level, begin: u64, end: u64) -> T {
    let mut transaction = Transaction::new(level, begin);
    transaction.end = end;
    transaction.asked = if level == Level::Single {
        begin
    } else {
        end - 1
    };
    transaction.outcome = Outcome::Committed;
    T(transaction)
}

fn si(begin: u64, end: u64) -> T {
    t(Level::Snapshot, begin, end)
}

fn ser(begin: u64, end: u64) -> T {
    t(Level::Serializable, begin, end)
}

fn one(begin: u64, end: u64) -> T {
    t(Level::Single, begin, end)
}

impl T {
    fn r(mut self, key: Key, version: Version) -> T {
        let seen = if version == 0 {
            Seen::Absent
        } else {
            Seen::Version(version)
        };
        self.0.reads.push(Read { key, seen });
        self
    }

    fn w(mut self, key: Key, version: Version) -> T {
        let present = true;
        self.0.writes.push(Write {
            key,
            version,
            present,
        });
        self
    }

    fn d(mut self, key: Key, version: Version) -> T {
        let present = false;
        self.0.writes.push(Write {
            key,
            version,
            present,
        });
        self
    }

    fn stamp(mut self, stamp: u64) -> T {
        self.0.stamp = Some(stamp);
        self
    }

    fn aborted(mut self) -> T {
        self.0.outcome = Outcome::Aborted;
        self
    }

    fn unknown(mut self) -> T {
        self.0.outcome = Outcome::Unknown;
        self.0.end = u64::MAX;
        self
    }

    fn volatile(mut self) -> T {
        self.0.durable = false;
        self
    }
}

fn history<const N: usize>(transactions: [T; N]) -> History {
    History {
        initial: BTreeMap::from([(X, 1), (Y, 2)]),
        transactions: transactions.into_iter().map(|t| t.0).collect(),
        ..History::default()
    }
}

#[track_caller]
fn finds(history: &History, anomaly: Anomaly) {
    let found = check(history);
    assert!(
        found.iter().any(|f| f.anomaly == anomaly),
        "{anomaly:?} is not in {found:#?}"
    );
}

#[track_caller]
fn fine(history: &History) {
    assert_eq!(check(history), []);
}

fn last(mut history: History, records: &[(Key, Version)]) -> History {
    history.last = Some(records.iter().copied().collect());
    history
}

#[test]
fn an_empty_and_a_serial_history_are_fine() {
    fine(&history([]));
    fine(&last(
        history([
            si(1, 4).r(X, 1).w(X, 10),
            one(5, 6).r(X, 10),
            ser(7, 9).r(X, 10).r(Y, 2).w(Y, 11),
            one(10, 11).w(X, 12),
            si(12, 13).r(X, 12).r(Y, 11),
        ]),
        &[(X, 12), (Y, 11)],
    ));
}

#[test]
fn g0_write_cycle() {
    let stamped = history([
        one(1, 10).w(X, 10).stamp(5),
        one(1, 10).w(X, 20).stamp(7),
        si(2, 9).w(Y, 21).w(X, 40).stamp(6),
    ]);
    fine(&stamped);
    finds(
        &history([one(1, 3).w(X, 10).stamp(7), one(4, 9).w(X, 20).stamp(5)]),
        Anomaly::WriteCycle,
    );
}

#[test]
fn g1a_aborted_read() {
    finds(
        &history([si(1, 4).w(X, 10).aborted(), one(2, 3).r(X, 10)]),
        Anomaly::AbortedRead,
    );
    fine(&history([si(1, 4).w(X, 10).aborted(), one(2, 3).r(X, 1)]));
    let partial = last(history([si(1, 4).w(X, 10).aborted()]), &[(X, 10), (Y, 2)]);
    finds(&partial, Anomaly::AbortedRead);
}

#[test]
fn g1b_intermediate_read() {
    let mut writer = si(1, 9).w(X, 11);
    writer.0.replaced.push((X, 10));
    finds(
        &history([writer, one(2, 8).r(X, 10)]),
        Anomaly::IntermediateRead,
    );
}

#[test]
fn g1c_circular_information() {
    finds(
        &history([si(1, 9).w(X, 10).r(Y, 20), si(1, 9).w(Y, 20).r(X, 10)]),
        Anomaly::CircularInformation,
    );
    fine(&history([
        si(1, 9).w(X, 10).r(Y, 2),
        si(1, 9).w(Y, 20).r(X, 1),
    ]));
}

#[test]
fn garbage() {
    finds(&history([one(1, 2).r(X, 99)]), Anomaly::Garbage);
    // The version of another record.
    finds(&history([one(1, 2).r(X, 2)]), Anomaly::Garbage);
    // An absence without a removal.
    finds(
        &last(history([one(1, 2).r(X, 1)]), &[(Y, 2)]),
        Anomaly::Garbage,
    );
    finds(
        &last(history([]), &[(X, 1), (Y, 2), (Key(3), 9)]),
        Anomaly::Garbage,
    );
}

#[test]
fn lost_update() {
    finds(
        &history([si(1, 8).r(X, 1).w(X, 10), si(2, 9).r(X, 1).w(X, 20)]),
        Anomaly::LostUpdate,
    );
    // An operation's write between a transaction's read and its commit.
    finds(
        &history([si(1, 8).r(X, 1).w(X, 10), one(2, 3).w(X, 20)]),
        Anomaly::LostUpdate,
    );
    fine(&history([si(1, 8).r(X, 1).w(X, 10), one(2, 9).w(X, 20)]));
    fine(&history([
        si(1, 8).r(X, 1).w(X, 10),
        si(2, 9).r(X, 10).w(X, 20),
    ]));
    // Increments of a record that was not there.
    let z = Key(3);
    finds(
        &history([si(1, 8).r(z, 0).w(z, 10), si(2, 9).r(z, 0).w(z, 20)]),
        Anomaly::LostUpdate,
    );
}

#[test]
fn absences_are_distinguished() {
    let z = Key(3);
    let insert = |begin, end, version| si(begin, end).r(z, 0).w(z, version);
    // Two replaced the absence at first, whatever was removed later.
    finds(
        &history([insert(1, 8, 10), insert(2, 9, 20), one(10, 11).d(z, 30)]),
        Anomaly::LostUpdate,
    );
    // The second may have found what a removal left that runs at the same time.
    fine(&history([
        insert(1, 4, 10),
        one(3, 12).d(z, 11),
        insert(5, 9, 20),
    ]));
    // One removal allows one insertion.
    let beside = || [insert(1, 20, 10), one(1, 20).d(z, 11), insert(1, 20, 20)];
    fine(&history(beside()));
    let [first, removal, second] = beside();
    finds(
        &history([first, removal, second, insert(1, 20, 30)]),
        Anomaly::LostUpdate,
    );
    // So does one of which it is not known whether it took place.
    let unknown = || one(1, 20).d(z, 11).unknown();
    fine(&history([insert(1, 20, 10), unknown(), insert(1, 20, 20)]));
    finds(
        &history([
            insert(1, 20, 10),
            one(1, 20).d(z, 11).aborted(),
            insert(1, 20, 20),
        ]),
        Anomaly::LostUpdate,
    );
    // The order of commits decides which absence there was.
    let stamped = |removal| {
        history([
            insert(1, 20, 10).stamp(5),
            one(1, 20).d(z, 11).stamp(removal),
            insert(1, 20, 20).stamp(7),
        ])
    };
    fine(&stamped(6));
    finds(&stamped(8), Anomaly::LostUpdate);
    // A reader that found the absence of an earlier removal missed later writes.
    finds(
        &history([
            one(1, 2).d(X, 10),
            si(3, 20).r(X, 0).w(X, 20),
            one(4, 5).w(X, 11),
            one(21, 22).d(X, 12),
        ]),
        Anomaly::LostUpdate,
    );
}

#[test]
fn g_single_read_skew() {
    finds(
        &history([si(1, 8).w(X, 10).w(Y, 11), si(2, 9).r(X, 10).r(Y, 2)]),
        Anomaly::ReadSkew,
    );
    // The reader is not spared by being rolled back.
    finds(
        &history([
            si(1, 8).w(X, 10).w(Y, 11),
            si(2, 9).r(X, 10).r(Y, 2).aborted(),
        ]),
        Anomaly::ReadSkew,
    );
    fine(&history([
        si(1, 8).w(X, 10).w(Y, 11),
        si(2, 9).r(X, 10).r(Y, 11),
    ]));
    fine(&history([
        si(1, 8).w(X, 10).w(Y, 11),
        si(2, 9).r(X, 1).r(Y, 2),
    ]));
    // A phantom is a read of an absence.
    let z = Key(3);
    finds(
        &history([si(1, 8).w(X, 10).w(z, 11), si(2, 9).r(X, 10).r(z, 0)]),
        Anomaly::ReadSkew,
    );
}

#[test]
fn g_si_long_fork() {
    finds(
        &history([
            one(1, 20).w(X, 10),
            one(1, 20).w(Y, 20),
            si(2, 18).r(X, 10).r(Y, 2),
            si(2, 18).r(X, 1).r(Y, 20),
        ]),
        Anomaly::LongFork,
    );
}

#[test]
fn g2_write_skew() {
    let skew = |level| {
        history([
            t(level, 1, 8).r(X, 1).r(Y, 2).w(X, 10),
            t(level, 2, 9).r(X, 1).r(Y, 2).w(Y, 20),
        ])
    };
    finds(&skew(Level::Serializable), Anomaly::WriteSkew);
    // Which snapshot isolation allows.
    fine(&skew(Level::Snapshot));
    // A serializable one beside one that is not: what it read was replaced
    // before it committed, which only it has to prevent.
    finds(
        &history([ser(1, 20).r(X, 1).w(Y, 20), one(2, 3).w(X, 10)]),
        Anomaly::WriteSkew,
    );
    fine(&history([si(1, 20).r(X, 1).w(Y, 20), one(2, 3).w(X, 10)]));
    // Read only, it may look back.
    fine(&history([ser(1, 20).r(X, 1), one(2, 3).w(X, 10)]));
    let z = Key(3);
    finds(
        &history([ser(1, 8).r(z, 0).w(X, 10), ser(2, 9).r(X, 1).w(z, 20)]),
        Anomaly::WriteSkew,
    );
}

#[test]
fn stale_reads() {
    finds(
        &history([one(1, 2).w(X, 10), one(3, 4).r(X, 1)]),
        Anomaly::Stale,
    );
    finds(
        &history([one(1, 2).w(X, 10), si(3, 4).r(X, 1)]),
        Anomaly::Stale,
    );
    fine(&history([one(1, 3).w(X, 10), one(2, 4).r(X, 1)]));
    // Back in time: the second read may not see less than the first.
    finds(
        &history([one(1, 20).w(X, 10), one(2, 3).r(X, 10), one(4, 5).r(X, 1)]),
        Anomaly::Stale,
    );
    // An operation may be ahead of the newest snapshot, but not where commits are shown once they
    // are durable.
    let ahead = history([one(1, 20).w(X, 10), one(2, 3).r(X, 10), si(4, 5).r(X, 1)]);
    fine(&ahead);
    finds(&ahead.shown_late(true), Anomaly::Stale);
    // Removals.
    finds(
        &history([one(1, 2).d(X, 10), one(3, 4).r(X, 1)]),
        Anomaly::Stale,
    );
    finds(
        &history([one(1, 2).d(X, 10), one(3, 4).w(X, 11), one(5, 6).r(X, 0)]),
        Anomaly::Stale,
    );
    fine(&history([
        one(1, 2).d(X, 10),
        one(3, 5).w(X, 11),
        one(4, 6).r(X, 0),
    ]));
}

#[test]
fn lost_and_torn_commits() {
    let two = || history([si(1, 4).w(X, 10).w(Y, 11), si(5, 8).r(X, 10).w(X, 20)]);
    fine(&last(two(), &[(X, 20), (Y, 11)]));
    finds(&last(two(), &[(X, 10), (Y, 11)]), Anomaly::LostCommit);
    finds(&last(two(), &[(X, 20), (Y, 2)]), Anomaly::LostCommit);
    let open = || history([si(1, 4).w(X, 10).w(Y, 11).unknown()]);
    fine(&last(open(), &[(X, 1), (Y, 2)]));
    fine(&last(open(), &[(X, 10), (Y, 11)]));
    finds(&last(open(), &[(X, 10), (Y, 2)]), Anomaly::PartialCommit);
    // Removals too are all or nothing.
    let removing = || history([si(1, 4).d(X, 10).w(Y, 11).unknown()]);
    fine(&last(removing(), &[(Y, 11)]));
    fine(&last(removing(), &[(X, 1), (Y, 2)]));
    finds(
        &last(removing(), &[(X, 1), (Y, 11)]),
        Anomaly::PartialCommit,
    );
    finds(&last(removing(), &[(Y, 2)]), Anomaly::PartialCommit);
}

#[test]
fn what_was_shown_is_lost_only_where_it_may_be() {
    let readers: [fn() -> T; 2] = [|| one(2, 3).r(X, 10), || si(2, 3).r(X, 10)];
    for reader in readers {
        let seen = [si(1, 4).w(X, 10).unknown(), reader()];
        let seen = last(history(seen), &[(X, 1), (Y, 2)]);
        fine(&seen);
        finds(&seen.shown_late(true), Anomaly::LostCommit);
        let volatile = [si(1, 4).w(X, 10).unknown().volatile(), reader()];
        fine(&last(history(volatile), &[(X, 1), (Y, 2)]).shown_late(true));
    }
}

#[test]
fn what_is_not_durable_may_go_but_in_order() {
    let three = || {
        history([
            one(1, 2).w(X, 10).volatile(),
            one(3, 4).w(Y, 20).volatile(),
            one(5, 6).w(X, 30).volatile(),
        ])
    };
    for state in [
        [(X, 1), (Y, 2)],
        [(X, 10), (Y, 2)],
        [(X, 10), (Y, 20)],
        [(X, 30), (Y, 20)],
    ] {
        fine(&last(three(), &state));
    }
    finds(&last(three(), &[(X, 1), (Y, 20)]), Anomaly::PartialCommit);
    finds(&last(three(), &[(X, 30), (Y, 2)]), Anomaly::PartialCommit);
    // A durable one takes along all that was acknowledged before it.
    let mut mixed = three();
    mixed.transactions[1].durable = true;
    finds(
        &last(mixed.clone(), &[(X, 1), (Y, 20)]),
        Anomaly::LostCommit,
    );
    fine(&last(mixed, &[(X, 10), (Y, 20)]));
}

#[test]
fn an_earlier_instant_knows_less() {
    let mut whole = history([one(1, 2).w(X, 10), si(3, 9).w(Y, 20)]);
    whole.transactions[1].asked = 6;
    let before = last(whole.until(5), &[(X, 10), (Y, 20)]);
    finds(&before, Anomaly::AbortedRead);
    for y in [2, 20] {
        fine(&last(whole.until(7), &[(X, 10), (Y, y)]));
    }
    finds(
        &last(whole.until(9), &[(X, 10), (Y, 2)]),
        Anomaly::LostCommit,
    );
}
