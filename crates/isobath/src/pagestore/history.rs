//! Histories of pages, for policies that want one per page: four bytes each, in memory only.

use isobath_flash::policy::{CleaningPolicy, History, HistoryKind};

use crate::page::PageId;

/// Pages per allocation: 256 KiB of histories.
const CHUNK: usize = 1 << 16;

/// No page of a tree has this number or a higher one.
const PAGES_MAX: u64 = 1 << 40;

/// Per page id the low four bytes of its history; nothing at all for policies that keep histories per segment.
///
/// They are hints: lost when the store closes, and learned anew.
pub(super) struct PageHistories {
    wanted: bool,
    chunks: Vec<Vec<u32>>,
}

impl PageHistories {
    pub(super) fn new(policy: &dyn CleaningPolicy) -> PageHistories {
        PageHistories {
            wanted: matches!(policy.history_kind(), HistoryKind::Page { .. }),
            chunks: Vec::new(),
        }
    }

    /// Whether the policy wants a history per page.
    pub(super) fn wanted(&self) -> bool {
        self.wanted
    }

    /// Makes every history unknown.
    pub(super) fn forget(&mut self) {
        self.chunks.clear();
    }

    pub(super) fn get(&self, page: PageId) -> History {
        let (chunk, at) = split(page);
        match self.chunks.get(chunk).and_then(|chunk| chunk.get(at)) {
            None | Some(&u32::MAX) => History::UNKNOWN,
            Some(&bits) => History(u64::from(bits)),
        }
    }

    pub(super) fn set(&mut self, page: PageId, history: History) {
        // Pages of a checkpoint have numbers above all others, and are never cleaned.
        if !self.wanted || page.0 >= PAGES_MAX {
            return;
        }
        let (chunk, at) = split(page);
        while self.chunks.len() <= chunk {
            self.chunks.push(Vec::new());
        }
        let chunk = &mut self.chunks[chunk];
        if chunk.is_empty() {
            chunk.resize(CHUNK, u32::MAX);
        }
        chunk[at] = history.0 as u32;
    }
}

fn split(page: PageId) -> (usize, usize) {
    ((page.0 / CHUNK as u64) as usize, page.0 as usize % CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isobath_flash::policy::PolicyKind;

    #[test]
    fn only_policies_that_want_them_get_histories() {
        let far = PageId(5 * CHUNK as u64 + 7);
        let mut kept = PageHistories::new(&*PolicyKind::LifeTable.build(1000));
        kept.set(far, History(77));
        assert_eq!(kept.get(far), History(77));
        assert_eq!(kept.get(PageId(7)), History::UNKNOWN);
        kept.set(PageId(1 << 62), History(77));
        assert!(kept.chunks.len() < 10);
        kept.set(far, History::UNKNOWN);
        assert_eq!(kept.get(far), History::UNKNOWN);
        let mut none = PageHistories::new(&*PolicyKind::Mdc.build(1000));
        none.set(far, History(77));
        assert!(!none.wanted() && none.chunks.is_empty());
    }
}
