//! The journal of a process: written without a buffer, so that a killed process leaves all it
//! wrote.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Problem;
use crate::clients::state::Created;
use crate::history::{History, Key, Transaction, Version};

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

/// A line of a journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Note {
    /// The operations with this number, as they are now; before they were asked for, or since they
    /// are answered.
    Work(u64, Vec<Transaction>),
    /// A tree is being made by this write, or has been and has this number.
    Made(Key, Version, Option<u32>),
    /// A backup: these files, one after another.
    Backup(Span, Vec<String>),
    Reader(Seen),
}

/// What a reader in another process has found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) span: Span,
    pub(crate) records: Vec<(Key, Version)>,
    /// The trees, with their numbers.
    pub(crate) trees: Vec<(Key, u32)>,
}

/// When something began and ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) began: u64,
    pub(crate) ended: u64,
}

fn path(directory: &Path) -> PathBuf {
    directory.join("journal")
}

/// The journal that is being written.
pub(crate) struct Journal(File);

impl Journal {
    pub(super) fn create(directory: &Path) -> std::io::Result<Journal> {
        File::create(path(directory)).map(Journal)
    }

    pub(crate) fn note(&mut self, note: &Note) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(note)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

/// What a process has left in its journal.
#[derive(Default)]
pub(super) struct Left {
    pub(super) history: History,
    pub(super) made: Created,
    /// The last of them.
    pub(super) backup: Option<(Span, Vec<String>)>,
    pub(super) reader: Option<Seen>,
}

/// Reads the journal of a process that began with `known`, and removes it.
pub(super) fn read(directory: &Path, known: BTreeMap<Key, Version>) -> Result<Left, Problem> {
    let path = path(directory);
    // A process that was killed early has none.
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut left = Left::default();
    let mut work: BTreeMap<u64, Vec<Transaction>> = BTreeMap::new();
    // A line without its end was being written: what it says was not asked yet.
    for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
        let note = serde_json::from_str(line);
        match note.map_err(|error| format!("{}: {line}: {error}", path.display()))? {
            Note::Work(number, transactions) => drop(work.insert(number, transactions)),
            Note::Made(existence, version, id) => {
                let made = left.made.entry(existence).or_default();
                made.retain(|(known, _)| *known != version);
                made.push((version, id));
            }
            Note::Backup(span, files) => left.backup = Some((span, files)),
            Note::Reader(seen) => left.reader = Some(seen),
        }
    }
    left.history = History::starting_with(known);
    left.history.transactions = work.into_values().flatten().collect();
    left.history = left.history.until(now());
    let _ = std::fs::remove_file(&path);
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Level, Outcome, Read, Seen as Value, Write};

    #[test]
    fn a_journal_says_what_was_asked_and_answered_up_to_a_torn_line() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(directory.path()).unwrap();
        let mut transaction = Transaction::new(Level::Serializable, 5);
        let seen = Value::Absent;
        transaction.reads.push(Read { key: Key(1), seen });
        transaction.writes.push(Write::removal(Key(2), 77));
        transaction.asked = 6;
        let mut note = |number, transaction: &Transaction| {
            let note = Note::Work(number, vec![transaction.clone()]);
            journal.note(&note).unwrap();
        };
        note(1, &transaction);
        note(2, &transaction);
        transaction.end = 7;
        transaction.outcome = Outcome::Committed;
        note(1, &transaction);
        journal.0.write_all(b"{\"Work\":[2,[]]}").unwrap();
        let left = read(directory.path(), BTreeMap::new()).unwrap();
        let [first, second] = &left.history.transactions[..] else {
            panic!("{:?}", left.history.transactions)
        };
        assert_eq!((first.outcome, first.end), (Outcome::Committed, 7));
        assert_eq!(first.reads[0].seen, Value::Absent);
        assert!(!first.writes[0].present && first.writes[0].version == 77);
        assert_eq!((second.outcome, second.end), (Outcome::Unknown, u64::MAX));
    }
}
