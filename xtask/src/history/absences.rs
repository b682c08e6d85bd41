//! Which absence a transaction replaced.
//!
//! A value names the write that left it; an absence names none, and a record that is removed is
//! absent more than once. So of a transaction that found no record and wrote one it is known only
//! which absences it may have found. Each absence can be replaced by one such transaction at most:
//! if no assignment gives each of them an absence of its own, two have replaced the same one
//! (Hall's theorem, here by Kuhn's augmenting paths).

use super::versions::{Chain, window_of};
use super::{History, Key, Level, Seen};

/// Adds to the known order: a transaction that can have found one absence only comes
/// after it.
pub(super) fn order(history: &History, key: Key, chain: &mut Chain) {
    let inserts = inserts(history, key, chain);
    // Each edge rules absences out for others.
    loop {
        let mut is_new = false;
        for &insert in &inserts {
            if let [only] = may_have_found(history, chain, insert)[..]
                && !chain.after[only].contains(&insert)
            {
                chain.after[only].push(insert);
                is_new = true;
            }
        }
        if !is_new {
            return;
        }
    }
}

/// Transactions that found no record and wrote one, of which at least two must have replaced the
/// same absence.
pub(super) fn too_many(history: &History, key: Key, chain: &Chain) -> Vec<usize> {
    let inserts = inserts(history, key, chain);
    if inserts.len() < 2 {
        return Vec::new();
    }
    let later: Vec<Vec<bool>> = (0..chain.items.len()).map(|i| chain.all_after(i)).collect();
    let choices: Vec<Vec<usize>> = inserts
        .iter()
        .map(|&insert| replaceable(history, chain, &later, insert))
        .collect();
    let mut taken_by: Vec<Option<usize>> = vec![None; chain.items.len()];
    for insert in 0..inserts.len() {
        let mut seen = vec![false; chain.items.len()];
        if !assign(insert, &choices, &mut taken_by, &mut seen) {
            // All that hold an absence that was tried, and this one.
            let mut all: Vec<usize> = (0..seen.len())
                .filter(|&absence| seen[absence])
                .filter_map(|absence| taken_by[absence])
                .chain([insert])
                .filter_map(|at| chain.items[inserts[at]].writer)
                .collect();
            all.sort_unstable();
            return all;
        }
    }
    Vec::new()
}

/// Gives `insert` an absence; those that hold one may have to take another.
fn assign(
    insert: usize,
    choices: &[Vec<usize>],
    taken_by: &mut [Option<usize>],
    seen: &mut [bool],
) -> bool {
    for &absence in &choices[insert] {
        if std::mem::replace(&mut seen[absence], true) {
            continue;
        }
        let is_free = match taken_by[absence] {
            None => true,
            Some(other) => assign(other, choices, taken_by, seen),
        };
        if is_free {
            taken_by[absence] = Some(insert);
            return true;
        }
    }
    false
}

/// The items that transactions wrote that had found no record.
fn inserts(history: &History, key: Key, chain: &Chain) -> Vec<usize> {
    let found_absent = |writer: usize| {
        let transaction = &history.transactions[writer];
        let mut reads = transaction.reads.iter();
        transaction.level != Level::Single
            && reads.any(|read| read.key == key && read.seen == Seen::Absent)
    };
    let items = chain.items.iter().enumerate();
    items
        .filter(|(_, item)| item.certain && item.writer.is_some_and(found_absent))
        .map(|(index, _)| index)
        .collect()
}

/// The absences that the writer of `insert` may have found.
fn may_have_found(history: &History, chain: &Chain, insert: usize) -> Vec<usize> {
    let Some(writer) = chain.items[insert].writer else {
        return Vec::new();
    };
    let window = window_of(&history.transactions[writer]);
    let later = chain.all_after(insert);
    (0..chain.items.len())
        .filter(|&absence| absence != insert && !later[absence])
        .filter(|&absence| chain.may_be_found_absent(absence, window))
        .collect()
}

/// Those of them that it may have replaced: nothing came in between.
fn replaceable(history: &History, chain: &Chain, later: &[Vec<bool>], insert: usize) -> Vec<usize> {
    let is_between = |absence: usize, item: usize| later[absence][item] && later[item][insert];
    let mut found = may_have_found(history, chain, insert);
    found.retain(|&absence| !(0..later.len()).any(|item| is_between(absence, item)));
    found
}
