//! How many records leaves have, so that a scan that says how many records it takes can ask for its
//! first leaves together, before it has seen one.

use std::cell::Cell;

use crate::types::TreeId;

/// Trees that a worker remembers; of two in one place the later one stays.
const PLACES: usize = 16;

/// Records per leaf that one worker has seen, by tree.
#[derive(Default)]
pub(crate) struct LeafRecords([Cell<(u32, u32)>; PLACES]);

impl LeafRecords {
    fn place(&self, tree: TreeId) -> &Cell<(u32, u32)> {
        &self.0[tree.0 as usize % PLACES]
    }

    /// About as many as the fullest leaves seen lately have.
    pub(crate) fn of(&self, tree: TreeId) -> Option<usize> {
        let (id, records) = self.place(tree).get();
        (id == tree.0 && records > 0).then_some(records as usize)
    }

    /// Half-empty leaves are outweighed: to ask for too few leaves costs a wait, for too many the
    /// drive's time.
    pub(crate) fn note(&self, tree: TreeId, records: usize) {
        let place = self.place(tree);
        let (id, before) = place.get();
        let before = if id == tree.0 {
            before - before.div_ceil(8)
        } else {
            0
        };
        // A leaf has fewer records than bytes.
        place.set((tree.0, before.max(records as u32)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_leaves_outweigh_others_and_are_forgotten_slowly() {
        let seen = LeafRecords::default();
        assert_eq!(seen.of(TreeId(3)), None);
        seen.note(TreeId(3), 40);
        seen.note(TreeId(3), 2);
        assert_eq!(seen.of(TreeId(3)), Some(35));
        (0..60).for_each(|_| seen.note(TreeId(3), 2));
        assert_eq!(seen.of(TreeId(3)), Some(2));
        seen.note(TreeId(3 + PLACES as u32), 9);
        assert_eq!(seen.of(TreeId(3)), None);
        assert_eq!(seen.of(TreeId(3 + PLACES as u32)), Some(9));
    }
}
