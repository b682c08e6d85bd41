//! The journals of a writer: one file for each thread, written without a buffer, so that a killed
//! process leaves all it wrote.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::Problem;
use crate::history::{History, Key, Level, Outcome, Read, Seen, Transaction, Version, Write};

/// Nanoseconds since the machine started: the same for all processes.
#[allow(unsafe_code)]
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes to `time` only. The monotonic clock exists always.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn path(directory: &Path, round: u64, thread: u64) -> PathBuf {
    directory.join(format!("journal-{round}-{thread}"))
}

/// One thread's journal.
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn create(directory: &Path, round: u64, thread: u64) -> std::io::Result<Journal> {
        File::create(path(directory, round, thread)).map(Journal)
    }

    /// Notes a request: it may be done from this moment on.
    pub(crate) fn ask(&mut self, transaction: &mut Transaction) -> std::io::Result<()> {
        transaction.asked = now();
        let level = match transaction.level {
            Level::Single => "single",
            Level::Snapshot => "snapshot",
            Level::Serializable => "serializable",
        };
        let mut line = format!(
            "ask {} {} {level} {}",
            transaction.begin, transaction.asked, transaction.durable
        );
        for read in &transaction.reads {
            let version = match read.seen {
                Seen::Version(version) => version,
                Seen::Absent => 0,
            };
            // Writing to a string cannot fail.
            let _ = write!(line, " r{}:{version}", read.key.0);
        }
        for write in &transaction.writes {
            let kind = if write.present { 'w' } else { 'd' };
            let _ = write!(line, " {kind}{}:{}", write.key.0, write.version);
        }
        line.push('\n');
        self.0.write_all(line.as_bytes())
    }

    /// Notes the answer to the last request.
    pub(crate) fn answer(&mut self, committed: bool) -> std::io::Result<()> {
        let word = if committed { "done" } else { "refused" };
        self.0.write_all(format!("{word} {}\n", now()).as_bytes())
    }
}

/// Reads the journals of a round.
pub(super) fn read(
    directory: &Path,
    round: u64,
    threads: u64,
    known: BTreeMap<Key, Version>,
) -> Result<History, Problem> {
    // The writer opens its store with the usual options: a commit is seen once it is durable.
    let mut history = History::starting_with(known).shown_late(true);
    for thread in 0..threads {
        history
            .transactions
            .extend(read_thread(directory, round, thread)?);
    }
    Ok(history)
}

/// Reads the journal of one thread, in its order.
pub(crate) fn read_thread(
    directory: &Path,
    round: u64,
    thread: u64,
) -> Result<Vec<Transaction>, Problem> {
    let path = path(directory, round, thread);
    let mut transactions = Vec::new();
    // A writer that was killed early has none.
    if let Ok(text) = std::fs::read_to_string(&path) {
        read_lines(&text, &mut transactions)
            .ok_or_else(|| format!("{} makes no sense", path.display()))?;
        let _ = std::fs::remove_file(&path);
    }
    Ok(transactions)
}

fn read_lines(text: &str, transactions: &mut Vec<Transaction>) -> Option<()> {
    let mut asked = false;
    // A line without its end was being written: what it says was not asked yet.
    for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["ask", ref rest @ ..] => {
                transactions.push(read_ask(rest)?);
                asked = true;
            }
            [answer, end] if asked => {
                let last = transactions.last_mut()?;
                last.end = end.parse().ok()?;
                last.outcome = match answer {
                    "done" => Outcome::Committed,
                    "refused" => Outcome::Aborted,
                    _ => return None,
                };
                asked = false;
            }
            _ => return None,
        }
    }
    Some(())
}

fn read_ask(words: &[&str]) -> Option<Transaction> {
    let [begin, asked, level, durable, rest @ ..] = words else {
        return None;
    };
    let level = match *level {
        "single" => Level::Single,
        "snapshot" => Level::Snapshot,
        "serializable" => Level::Serializable,
        _ => return None,
    };
    let mut transaction = Transaction::new(level, begin.parse().ok()?);
    transaction.asked = asked.parse().ok()?;
    transaction.durable = durable.parse().ok()?;
    for word in rest {
        let (kind, pair) = word.split_at_checked(1)?;
        let (key, version) = pair.split_once(':')?;
        let (key, version) = (Key(key.parse().ok()?), version.parse().ok()?);
        match kind {
            "r" => {
                let seen = if version == 0 {
                    Seen::Absent
                } else {
                    Seen::Version(version)
                };
                transaction.reads.push(Read { key, seen });
            }
            "w" | "d" => transaction.writes.push(Write {
                key,
                version,
                present: kind == "w",
            }),
            _ => return None,
        }
    }
    Some(transaction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_says_what_was_asked_and_answered_up_to_a_torn_line() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(directory.path(), 3, 0).unwrap();
        let mut transaction = Transaction::new(Level::Serializable, 5);
        transaction.reads.push(Read {
            key: Key(1),
            seen: Seen::Absent,
        });
        transaction.writes.push(Write {
            key: Key(2),
            version: 77,
            present: false,
        });
        journal.ask(&mut transaction).unwrap();
        journal.answer(true).unwrap();
        journal.ask(&mut transaction).unwrap();
        journal.0.write_all(b"done 12").unwrap();
        let history = read(directory.path(), 3, 2, BTreeMap::new()).unwrap();
        let [first, second] = &history.transactions[..] else {
            panic!("{:?}", history.transactions)
        };
        assert_eq!(first.outcome, Outcome::Committed);
        assert!(first.end >= first.asked && first.begin == 5);
        assert_eq!(first.level, Level::Serializable);
        assert_eq!(first.reads[0].seen, Seen::Absent);
        assert!(!first.writes[0].present && first.writes[0].version == 77);
        assert_eq!((second.outcome, second.end), (Outcome::Unknown, u64::MAX));
    }
}
