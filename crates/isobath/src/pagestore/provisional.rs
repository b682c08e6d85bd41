//! Provisional allocations: pages and chunks that belong to a token until a log record confirms it.
//! Recovery frees those that nothing confirmed.
//!
//! An allocation ends when its page is freed, whatever becomes of the token: the id may be
//! another's by then, and a recovery that still took it for provisional would free a
//! page of another owner.

use std::collections::BTreeMap;

use crate::log::record::Token;
use crate::page::PageId;
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::sync::{HashMap, Mutex};

/// The provisional allocations of a store.
#[derive(Default)]
pub(crate) struct Provisional {
    runs: Mutex<Runs>,
    /// How many runs are listed, for reading without the lock.
    count: AtomicUsize,
}

impl Provisional {
    /// `pages` belong to `token` from now on.
    pub(crate) fn add(&self, token: Token, pages: &[PageId]) {
        self.change(|runs| pages.iter().for_each(|page| runs.add(token, page.0)));
    }

    /// `tokens` are confirmed or cancelled, and the pages `ended` are freed.
    pub(crate) fn confirm(&self, tokens: &[Token], ended: &[PageId]) {
        // The caller that confirms or cancels a token listed it before.
        if self.count.load(Acquire) > 0 && !(tokens.is_empty() && ended.is_empty()) {
            self.change(|runs| {
                ended.iter().for_each(|page| runs.end(page.0));
                tokens.iter().for_each(|token| runs.confirm(*token));
            });
        }
    }

    fn change(&self, work: impl FnOnce(&mut Runs)) {
        let mut runs = self.runs.lock();
        work(&mut runs);
        self.count.store(runs.owners.len(), Release);
    }

    /// All that are open: token and pages.
    pub(crate) fn list(&self) -> Vec<(Token, Vec<PageId>)> {
        let runs = self.runs.lock();
        let mut lists: BTreeMap<Token, Vec<PageId>> = BTreeMap::new();
        for (&first, &(end, token)) in &runs.owners {
            lists
                .entry(token)
                .or_default()
                .extend((first..end).map(PageId));
        }
        lists.into_iter().collect()
    }
}

/// Runs of consecutive page ids.
#[derive(Default)]
struct Runs {
    /// By a run's first id: the id behind it, and whose it is. No two overlap.
    owners: BTreeMap<u64, (u64, Token)>,
    /// Each token's ids, as first id and the one behind the last; some may have been freed since.
    given: HashMap<Token, Vec<(u64, u64)>>,
}

impl Runs {
    fn add(&mut self, token: Token, page: u64) {
        self.end(page);
        let given = self.given.entry(token).or_default();
        match given.last_mut() {
            Some(last) if last.1 == page => last.1 += 1,
            _ => given.push((page, page + 1)),
        }
        match self.owners.range_mut(..page).next_back() {
            Some((_, run)) if *run == (page, token) => run.0 += 1,
            _ => drop(self.owners.insert(page, (page + 1, token))),
        }
    }

    fn end(&mut self, page: u64) {
        let Some((&first, &(end, token))) = self.owners.range(..=page).next_back() else {
            return;
        };
        if page >= end {
            return;
        }
        self.owners.remove(&first);
        for (first, end) in [(first, page), (page + 1, end)] {
            if first < end {
                self.owners.insert(first, (end, token));
            }
        }
    }

    fn confirm(&mut self, token: Token) {
        for (from, to) in self.given.remove(&token).unwrap_or_default() {
            // From the last run that begins before `to`, back to the one that holds `from`.
            let overlapping = self.owners.range(..to).rev();
            let firsts: Vec<u64> = overlapping
                .take_while(|(_, run)| run.0 > from)
                .filter(|(_, run)| run.1 == token)
                .map(|(first, _)| *first)
                .collect();
            for first in firsts {
                self.owners.remove(&first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add(Token, Vec<u64>),
        End(Vec<u64>),
        Confirm(Token),
    }

    fn pages() -> impl Strategy<Value = Vec<u64>> {
        prop_oneof![
            prop::collection::vec(1u64..40, 0..6),
            (1u64..40, 0u64..9).prop_map(|(first, count)| (first..first + count).collect()),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1u64..5, pages()).prop_map(|(token, pages)| Step::Add(token, pages)),
            2 => pages().prop_map(Step::End),
            1 => (1u64..5).prop_map(Step::Confirm),
        ]
    }

    fn ids(pages: &[u64]) -> Vec<PageId> {
        pages.iter().copied().map(PageId).collect()
    }

    proptest! {
        #[test]
        fn a_page_belongs_to_its_last_token_until_either_ends(steps in prop::collection::vec(step(), 0..60)) {
            let open = Provisional::default();
            let mut model: BTreeMap<u64, Token> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Add(token, pages) => {
                        open.add(token, &ids(&pages));
                        model.extend(pages.into_iter().map(|page| (page, token)));
                    }
                    Step::End(pages) => {
                        open.confirm(&[], &ids(&pages));
                        model.retain(|page, _| !pages.contains(page));
                    }
                    Step::Confirm(token) => {
                        open.confirm(&[token], &[]);
                        model.retain(|_, owner| *owner != token);
                    }
                }
                let listed: BTreeMap<u64, Token> = open
                    .list()
                    .into_iter()
                    .flat_map(|(token, pages)| pages.into_iter().map(move |page| (page.0, token)))
                    .collect();
                prop_assert_eq!(&listed, &model);
            }
        }
    }
}
