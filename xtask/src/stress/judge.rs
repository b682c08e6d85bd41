//! Compares a store with the journals.
//!
//! The log is one: what survives of a thread's changes is all of them up to one,
//! its *cut*. The cut lies behind what was acknowledged as durable, and before
//! what was not asked for. From the cuts of all threads follows what every shared
//! number is.

use std::collections::BTreeMap;
use std::path::Path;

use isobath::{Error, Store};

use super::watch::Watch;
use super::world::{
    OWNERS, SCRATCH, SHARED, World, ZERO, main_record, scratch_at, scratch_name, shared_key,
};
use crate::crash::{Problem, journal};
use crate::data::version_of;
use crate::history::{Outcome, Transaction, Version};

/// How many wrong records are named.
const NAMED: usize = 8;

/// A thread's changes in a round, in order, without refused ones.
pub(super) struct Thread(Vec<Transaction>);

/// Reads the threads' journals.
pub(super) fn threads(directory: &Path, round: u64, threads: u64) -> Result<Vec<Thread>, Problem> {
    let mut read = Vec::new();
    for thread in 0..threads {
        let mut all = journal::read_thread(directory, round, thread)?;
        all.retain(|change| change.outcome != Outcome::Aborted);
        read.push(Thread(all));
    }
    Ok(read)
}

/// The changes that must have survived.
#[derive(Debug, Clone, Copy)]
pub(super) enum Since {
    /// All that was answered: the store was closed.
    Close,
    /// Those acknowledged as durable: the process was killed.
    Kill,
    /// All that was answered before the backup began, and nothing that was asked
    /// for after it ended.
    Backup { began: u64, ended: u64 },
}

impl Thread {
    pub(super) fn changes(&self) -> usize {
        self.0.len()
    }

    /// The least and the most changes that can have survived.
    fn bounds(&self, since: Since) -> (usize, usize) {
        let must = |change: &Transaction| match since {
            Since::Close => change.outcome == Outcome::Committed,
            Since::Kill => change.outcome == Outcome::Committed && change.durable,
            Since::Backup { began, .. } => change.end < began,
        };
        let may = |change: &Transaction| match since {
            Since::Backup { ended, .. } => change.asked <= ended,
            Since::Close | Since::Kill => true,
        };
        let least = self.0.iter().rposition(must).map_or(0, |at| at + 1);
        let most = self.0.iter().rposition(may).map_or(0, |at| at + 1);
        (least, most)
    }

    /// The cut that explains `found`.
    fn cut(
        &self,
        since: Since,
        world: &World,
        base: &[Version],
        found: &[Version],
    ) -> Result<usize, Problem> {
        let (least, most) = self.bounds(since);
        let mut writes: BTreeMap<u64, Vec<(usize, Version)>> = BTreeMap::new();
        for (at, change) in self.0.iter().enumerate() {
            for write in &change.writes {
                let record = u64::from(write.key.0);
                if world.shared_at(record).is_none() {
                    let version = if write.present { write.version } else { 0 };
                    writes.entry(record).or_default().push((at + 1, version));
                }
            }
        }
        // How many records each cut explains, as differences.
        let mut explained = vec![0i64; self.0.len() + 2];
        let mut wrong = Vec::new();
        for (&record, writes) in &writes {
            let now = found[record as usize];
            let mut begin = 0;
            let mut version = base[record as usize];
            let mut fits = false;
            let ends = writes.iter().map(|(at, _)| *at);
            let ends = ends.chain([self.0.len() + 1]);
            let next = writes.iter().map(|(_, version)| *version).chain([0]);
            for (end, next) in ends.zip(next) {
                if version == now && begin < end {
                    explained[begin] += 1;
                    explained[end] -= 1;
                    fits |= begin <= most && end > least;
                }
                (begin, version) = (end, next);
            }
            if !fits {
                wrong.push(format!(
                    "{} is {now:#x}; it was {:#x}, and became {:x?}",
                    world.describe(record),
                    base[record as usize],
                    &writes[writes.len().saturating_sub(6)..]
                ));
            }
        }
        let mut sum = 0;
        let mut cut = None;
        for (at, change) in explained.iter().enumerate() {
            sum += change;
            if sum == writes.len() as i64 && (least..=most).contains(&at) {
                cut = Some(at);
            }
        }
        cut.ok_or_else(|| {
            wrong.truncate(NAMED);
            format!(
                "no cut between {least} and {most} of {} changes explains all {} records: {}",
                self.0.len(),
                writes.len(),
                if wrong.is_empty() {
                    "some records are newer than others".to_owned()
                } else {
                    wrong.join("; ")
                }
            )
        })
    }
}

/// Whether `found` can have become of `base`.
pub(super) fn judge(
    world: &World,
    threads: &[Thread],
    since: Since,
    base: &[Version],
    found: &[Version],
) -> Result<(), Problem> {
    let mut expected = base.to_vec();
    let mut problems = Vec::new();
    for (number, thread) in threads.iter().enumerate() {
        let cut = match thread.cut(since, world, base, found) {
            Ok(cut) => cut,
            Err(problem) => {
                problems.push(format!("thread {number}: {problem}"));
                continue;
            }
        };
        for change in &thread.0[..cut] {
            for write in &change.writes {
                let record = u64::from(write.key.0);
                let value = &mut expected[record as usize];
                *value = if world.shared_at(record).is_some() {
                    // Changes of numbers have their own zero.
                    value.wrapping_add(write.version).wrapping_sub(ZERO)
                } else if write.present {
                    write.version
                } else {
                    0
                };
            }
        }
    }
    if problems.is_empty() {
        let records = (0..).zip(expected.iter().zip(found));
        let wrong = records.filter(|(_, (expected, found))| expected != found);
        problems.extend(wrong.take(NAMED).map(|(record, (expected, found))| {
            let name = world.describe(record);
            format!("{name} is {found:#x}, not {expected:#x}")
        }));
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems.join("\n"))
    }
}

/// Reads all records of a store and checks it.
pub(super) fn read(store: &Store, world: &World, watch: &Watch) -> Result<Vec<Version>, Problem> {
    let mut found = vec![0; world.records() as usize];
    let failed = |error: Error| format!("reading: {error}");
    let mut names: Vec<String> = store
        .trees()
        .map_err(failed)?
        .into_iter()
        .map(|t| t.name)
        .collect();
    let mut problems = Vec::new();
    scan(store, "main", watch, &mut |key, version| {
        let record = main_record(key).filter(|record| *record < world.main())?;
        found[record as usize] = version;
        Some(())
    })?;
    scan(store, "shared", watch, &mut |key, version| {
        let at = (0..SHARED).find(|at| shared_key(*at) == key)?;
        found[world.shared(at) as usize] = version;
        Some(())
    })?;
    for owner in 0..OWNERS {
        let name = scratch_name(owner);
        if !names.contains(&name) {
            continue;
        }
        found[world.scratch(owner, SCRATCH) as usize] = 1;
        scan(store, &name, watch, &mut |key, version| {
            found[world.scratch(owner, scratch_at(key)?) as usize] = version;
            Some(())
        })?;
    }
    names.retain(|name| {
        let scratch = (0..OWNERS).any(|owner| scratch_name(owner) == *name);
        !scratch && name != "main" && name != "shared"
    });
    if !names.is_empty() {
        problems.push(format!("trees that was never made: {names:?}"));
    }
    let checked = store.check(&mut |_, _| watch.at(0, "check"));
    problems.extend(checked.map_err(|e| format!("check: {e}"))?.problems);
    if problems.is_empty() {
        Ok(found)
    } else {
        problems.truncate(NAMED);
        Err(problems.join("\n"))
    }
}

/// Reads a tree forwards; `note` says whether it knows the record.
fn scan(
    store: &Store,
    name: &str,
    watch: &Watch,
    note: &mut (dyn FnMut(&[u8], Version) -> Option<()> + Send),
) -> Result<(), Problem> {
    let tree = store.tree(name).map_err(|e| format!("tree {name}: {e}"))?;
    let mut last = Vec::new();
    let mut problem = None;
    let read = tree.scan(.., |key, bytes| {
        watch.at(0, "scan");
        let in_order = last.as_slice() < key || last.is_empty();
        last = key.to_vec();
        let known = version_of(bytes).and_then(|version| note(key, version));
        if known.is_none() || !in_order {
            problem = Some(format!(
                "tree {name}: key {:?} is out of order or has {} bytes that was never written",
                String::from_utf8_lossy(key),
                bytes.len()
            ));
        }
        problem.is_none()
    });
    read.map_err(|error| format!("scanning {name}: {error}"))?;
    problem.map_or(Ok(()), Err)
}

/// A backup of a round: when it was made, and of which files it consists.
pub(super) struct Backup {
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) files: Vec<String>,
}

pub(super) fn backups_path(directory: &Path, round: u64) -> std::path::PathBuf {
    directory.join(format!("backups-{round}"))
}

/// The last backup that a round has finished.
pub(super) fn last_backup(directory: &Path, round: u64) -> Option<Backup> {
    let text = std::fs::read_to_string(backups_path(directory, round)).ok()?;
    let mut whole = text.split_inclusive('\n').filter(|l| l.ends_with('\n'));
    let mut words = whole.next_back()?.split_whitespace();
    Some(Backup {
        began: words.next()?.parse().ok()?,
        ended: words.next()?.parse().ok()?,
        files: words.map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::world;
    use super::*;
    use crate::history::{Level, Write};

    fn change(record: u64, version: Version, durable: bool) -> Transaction {
        let mut change = Transaction::new(Level::Single, 1);
        change.outcome = Outcome::Committed;
        change.durable = durable;
        change.writes.push(Write {
            key: world::key(record),
            version,
            present: version != 0,
        });
        change
    }

    #[test]
    fn what_survives_of_a_thread_is_a_beginning_with_all_that_is_durable() {
        let world = World::of_bytes(0);
        let base = world.first();
        let counter = world.shared(0);
        let mut third = change(17, 103, false);
        third.writes.push(Write {
            key: world::key(counter),
            version: ZERO + 1,
            present: true,
        });
        let changes = vec![
            change(1, 101, false),
            change(17, 102, true),
            third,
            change(1, 0, false),
        ];
        let threads = [Thread(changes)];
        let state = |first, second, counted| {
            let mut state = base.clone();
            (state[1], state[17]) = (first, second);
            state[counter as usize] += counted;
            state
        };
        let judge = |since, state: &[Version]| judge(&world, &threads, since, &base, state);
        judge(Since::Kill, &state(101, 102, 0)).unwrap();
        judge(Since::Kill, &state(101, 103, 1)).unwrap();
        judge(Since::Kill, &state(0, 103, 1)).unwrap();
        judge(Since::Close, &state(0, 103, 1)).unwrap();
        // Not all that was answered; a lost update; a change without its elders;
        // half a transaction; and values that were never written.
        judge(Since::Close, &state(101, 103, 1)).unwrap_err();
        judge(Since::Kill, &base).unwrap_err();
        judge(Since::Kill, &state(0, 102, 0)).unwrap_err();
        judge(Since::Kill, &state(101, 103, 0)).unwrap_err();
        judge(Since::Kill, &state(101, 77, 0)).unwrap_err();
        let mut other = state(101, 102, 0);
        other[33] += 1;
        judge(Since::Kill, &other).unwrap_err();
    }
}
