//! The versions of each record, and the known part of their order.

use std::collections::{BTreeMap, HashMap};

use super::{History, Key, Level, Outcome, Read, Seen, Transaction, Version};

/// One version of one record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    /// Its number; 0 for the absence at first.
    pub(super) version: Version,
    /// The transaction that wrote it; `None` for the first state.
    pub(super) writer: Option<usize>,
    pub(super) present: bool,
    /// Certainly not before this instant ...
    from: u64,
    /// ... and certainly not after this one.
    to: u64,
    stamp: Option<u64>,
    /// Whether it is certain that this was written at all.
    pub(super) certain: bool,
}

/// All versions of one record.
#[derive(Debug, Default)]
pub(super) struct Chain {
    pub(super) items: Vec<Item>,
    /// For each item, the items that certainly came later; those that come
    /// later still may be missing.
    pub(super) after: Vec<Vec<usize>>,
}

/// The origin of a version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    pub(super) key: Key,
    pub(super) writer: Option<usize>,
    /// The writer replaced it itself.
    pub(super) replaced: bool,
}

/// Every version of a history.
pub(super) struct Versions {
    pub(super) chains: BTreeMap<Key, Chain>,
    pub(super) origins: HashMap<Version, Origin>,
    /// For each transaction, whether its writes took effect, as far as known.
    pub(super) happened: Vec<bool>,
}

impl Versions {
    pub(super) fn of(history: &History) -> Versions {
        let origins = origins(history);
        let mut happened: Vec<bool> = history
            .transactions
            .iter()
            .map(|t| t.outcome == Outcome::Committed)
            .collect();
        promote_seen(history, &origins, &mut happened);
        loop {
            let versions = Versions {
                chains: chains(history, &happened),
                origins: origins.clone(),
                happened: happened.clone(),
            };
            if !promote_removals(history, &versions, &mut happened) {
                return versions;
            }
        }
    }

    /// The one write that left the absence that a reader found, if only one can
    /// have: its index in the chain. `None` if several can.
    ///
    /// # Errors
    ///
    /// When none can.
    pub(super) fn absence(&self, key: Key, window: Window) -> Result<Option<usize>, ()> {
        let Some(chain) = self.chains.get(&key) else {
            return Ok(None);
        };
        let mut only = None;
        let mut count = 0;
        for index in 0..chain.items.len() {
            if !chain.may_be_found_absent(index, window) {
                continue;
            }
            count += 1;
            only = Some(index);
        }
        match count {
            0 => Err(()),
            1 => Ok(only),
            _ => Ok(None),
        }
    }
}

/// When a reader looked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) begin: u64,
    pub(super) end: u64,
}

impl Chain {
    pub(super) fn index_of(&self, version: Version) -> Option<usize> {
        self.items.iter().position(|i| i.version == version)
    }

    /// Whether a reader that looked in this window may have found this absence.
    pub(super) fn may_be_found_absent(&self, index: usize, window: Window) -> bool {
        let item = &self.items[index];
        !item.present && item.from <= window.end && !self.is_stale(index, window)
    }

    /// The items that certainly came after this one.
    pub(super) fn all_after(&self, index: usize) -> Vec<bool> {
        let mut known = vec![false; self.items.len()];
        let mut work = vec![index];
        while let Some(item) = work.pop() {
            for &later in &self.after[item] {
                if !std::mem::replace(&mut known[later], true) {
                    work.push(later);
                }
            }
        }
        known
    }

    /// Whether something replaced the item before the window opened.
    fn is_stale(&self, index: usize, window: Window) -> bool {
        let later = &self.after[index];
        later
            .iter()
            .any(|&l| self.items[l].certain && self.items[l].to < window.begin)
    }
}

fn origins(history: &History) -> HashMap<Version, Origin> {
    let mut origins = HashMap::new();
    for (&key, &version) in &history.initial {
        let origin = Origin {
            key,
            writer: None,
            replaced: false,
        };
        origins.insert(version, origin);
    }
    for (writer, transaction) in history.transactions.iter().enumerate() {
        let writer = Some(writer);
        for write in &transaction.writes {
            let origin = Origin {
                key: write.key,
                writer,
                replaced: false,
            };
            origins.insert(write.version, origin);
        }
        for &(key, version) in &transaction.replaced {
            let origin = Origin {
                key,
                writer,
                replaced: true,
            };
            origins.insert(version, origin);
        }
    }
    origins
}

/// A transaction of unknown outcome whose write was seen has happened.
fn promote_seen(history: &History, origins: &HashMap<Version, Origin>, happened: &mut [bool]) {
    let mut see = |reader: Option<usize>, version: Version| {
        let writer = origins.get(&version).and_then(|origin| origin.writer);
        if let Some(writer) = writer
            && reader != Some(writer)
            && history.transactions[writer].outcome == Outcome::Unknown
        {
            happened[writer] = true;
        }
    };
    for (reader, transaction) in history.transactions.iter().enumerate() {
        for read in &transaction.reads {
            if let Seen::Version(version) = read.seen {
                see(Some(reader), version);
            }
        }
    }
    for &version in history.last.iter().flat_map(BTreeMap::values) {
        see(None, version);
    }
}

/// So has one whose removal alone explains an absence. Whether any was found.
fn promote_removals(history: &History, versions: &Versions, happened: &mut [bool]) -> bool {
    let mut promoted = false;
    let mut look = |key: Key, window: Window| {
        let Ok(Some(index)) = versions.absence(key, window) else {
            return;
        };
        let item = versions.chains.get(&key).map(|chain| chain.items[index]);
        if let Some(writer) = item.and_then(|item| item.writer)
            && !happened[writer]
        {
            happened[writer] = true;
            promoted = true;
        }
    };
    for transaction in &history.transactions {
        for &Read { key, seen } in &transaction.reads {
            if seen == Seen::Absent {
                look(key, window_of(transaction));
            }
        }
    }
    if let Some(last) = &history.last {
        let absent = |key: &&Key| !last.contains_key(key) && !history.unreadable.contains(key);
        for &key in versions.chains.keys().filter(absent) {
            look(key, LAST);
        }
    }
    promoted
}

/// The last reader looks after all others, but says nothing about what was acknowledged without
/// being durable.
pub(super) const LAST: Window = Window {
    begin: 0,
    end: u64::MAX,
};

pub(super) fn window_of(transaction: &Transaction) -> Window {
    Window {
        begin: transaction.begin,
        end: transaction.end,
    }
}

fn chains(history: &History, happened: &[bool]) -> BTreeMap<Key, Chain> {
    let mut chains: BTreeMap<Key, Chain> = BTreeMap::new();
    let first = |key: &Key| Item {
        version: history.initial.get(key).copied().unwrap_or(0),
        writer: None,
        present: history.initial.contains_key(key),
        from: 0,
        to: 0,
        stamp: None,
        certain: true,
    };
    let start = |key: &Key| Chain {
        items: vec![first(key)],
        after: Vec::new(),
    };
    for key in history.initial.keys() {
        chains.insert(*key, start(key));
    }
    for (index, transaction) in history.transactions.iter().enumerate() {
        for write in &transaction.writes {
            let chain = chains.entry(write.key).or_insert_with(|| start(&write.key));
            // A removal that may have happened can explain an absence; a value
            // that may have been written and that no reader saw explains nothing.
            let possible = transaction.outcome == Outcome::Unknown && !write.present;
            if happened[index] || possible {
                chain.items.push(Item {
                    version: write.version,
                    writer: Some(index),
                    present: write.present,
                    from: transaction.asked,
                    to: transaction.end,
                    stamp: transaction.stamp,
                    certain: happened[index],
                });
            }
        }
        for read in &transaction.reads {
            chains.entry(read.key).or_insert_with(|| start(&read.key));
        }
    }
    for (key, chain) in &mut chains {
        chain.after = order(history, *key, &chain.items);
        super::absences::order(history, *key, chain);
    }
    chains
}

/// For each item those that follow it, by three kinds of evidence: time, the
/// store's own stamps, and transactions that read one and wrote the other.
fn order(history: &History, key: Key, items: &[Item]) -> Vec<Vec<usize>> {
    let mut after = vec![Vec::new(); items.len()];
    let mut by_from: Vec<usize> = (1..items.len()).filter(|&i| items[i].certain).collect();
    by_from.sort_unstable_by_key(|&i| items[i].from);
    for (index, item) in items.iter().enumerate() {
        if !item.certain {
            continue;
        }
        // Of all later ones those that no other later one certainly precedes.
        let start = if index == 0 {
            0
        } else {
            by_from.partition_point(|&i| items[i].from <= item.to)
        };
        let mut earliest_end = u64::MAX;
        for &later in &by_from[start..] {
            if items[later].from > earliest_end {
                break;
            }
            earliest_end = earliest_end.min(items[later].to);
            after[index].push(later);
        }
    }
    let mut by_stamp: Vec<usize> = (0..items.len())
        .filter(|&i| items[i].stamp.is_some() && items[i].certain)
        .collect();
    by_stamp.sort_unstable_by_key(|&i| items[i].stamp);
    for pair in by_stamp.windows(2) {
        after[pair[0]].push(pair[1]);
    }
    let index_of: HashMap<Version, usize> = items
        .iter()
        .enumerate()
        .map(|(index, item)| (item.version, index))
        .collect();
    for (index, item) in items.iter().enumerate() {
        let Some(writer) = item.writer.filter(|_| item.certain) else {
            continue;
        };
        let transaction = &history.transactions[writer];
        if transaction.level == Level::Single {
            continue;
        }
        for read in transaction.reads.iter().filter(|read| read.key == key) {
            let seen = match read.seen {
                Seen::Version(version) => index_of.get(&version).copied(),
                // Absences are distinguished once this much is known.
                Seen::Absent => None,
            };
            if let Some(seen) = seen.filter(|&seen| seen != index) {
                after[seen].push(index);
            }
        }
    }
    for later in &mut after {
        later.sort_unstable();
        later.dedup();
    }
    after
}
