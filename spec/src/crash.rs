//! Crashes, and the invariants that hold at each moment.

use crate::recovery::recover;
use crate::{Lsn, PAGES, Page, Record, Rule, State};

impl State {
    /// The store after a crash that kept `records` of the log and, of the writes in the drive's
    /// cache, those whose bit is set, and after recovery (`Scan::read`, `Scan::apply`,
    /// `replay::run`).
    pub(super) fn crash(&self, records: Lsn, survivors: u8, broken: Option<Rule>) -> Option<State> {
        let mut left = self.left;
        left.crashes = left.crashes.checked_sub(1)?;
        let recovered = recover(self, records, survivors, broken).ok()?;
        let records = recovered.records;
        let mut state = State {
            left,
            log: self.log[..usize::from(records)].to_vec(),
            durable: records,
            log_start: self.superblock.start,
            superblock: self.superblock.clone(),
            places: recovered.places,
            pages: [Page::default(); PAGES],
            changed: recovered.touched,
            next_seq: recovered.next_seq,
            recovered: Some(0),
            unapplied: None,
            freeing: None,
            batches: [None; 2],
            records_in_flight: Vec::new(),
            out_of_order: Vec::new(),
            pending_frees: Vec::new(),
            provisional: Vec::new(),
            unmarked: Vec::new(),
            open: None,
            checkpoint: None,
        };
        for (page, found) in recovered.pages.iter().enumerate() {
            let Some(found) = found else { continue };
            state.pages[page] = *found;
            if let Some(address) = found.address {
                state.places[usize::from(address.place)].in_use = true;
            }
        }
        for (page, token) in recovered.orphaned {
            if broken != Some(Rule::FreedByRecoveryLogged) {
                state.append(Record::Free { page, token });
            }
        }
        for lsn in recovered.commits {
            state.change(state.leaf(), lsn, lsn, broken);
        }
        state.recovered = Some(state.end());
        Some(state)
    }

    /// How many different subsets of the drive's cache may survive.
    pub(super) fn cached_subsets(&self) -> u8 {
        1 << self
            .places
            .iter()
            .filter(|place| place.cached.is_some())
            .count()
    }

    /// Whether every crash now leaves a store with all that was committed, and nothing else.
    pub(super) fn survives_every_crash(&self, broken: Option<Rule>) -> bool {
        (self.durable..=self.end()).all(|records| {
            (0..self.cached_subsets())
                .all(|survivors| recover(self, records, survivors, broken).is_ok())
        })
    }

    /// Whether each clean page can be read where its mapping word says, and no place has two
    /// owners.
    pub(super) fn is_readable(&self) -> bool {
        let clean =
            |page: &&Page| page.exists && page.oldest.is_none() && !page.writing && !page.freed;
        let sound = |page: &Page| {
            let image = page.address.and_then(|address| self.read(address));
            image
                .is_some_and(|image| image.version == page.version && image.content == page.content)
        };
        let mut owned: Vec<u8> = (0..PAGES)
            .filter_map(|page| self.word(page))
            .map(|address| address.place)
            .collect();
        owned.sort_unstable();
        self.pages.iter().filter(clean).all(sound)
            && owned.windows(2).all(|pair| pair[0] != pair[1])
    }
}
