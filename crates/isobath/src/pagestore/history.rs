//! Update-frequency metadata, for policies that use it: four bytes per page, in memory only.

use isobath_flash::policy::{CleaningPolicy, History, HistoryKind};

use crate::page::PageId;

/// Pages per allocation: 256 KiB of histories.
const CHUNK: usize = 1 << 16;

/// No page of a tree has this number or a higher one.
const PAGES_MAX: u64 = 1 << 40;

/// Per page id the low four bytes of its history; nothing at all for policies that keep histories
/// per segment.
///
/// They are hints: lost when the store closes. Until a page is written again it has the history
/// that the policy gives to all pages of its segment.
pub(super) struct PageHistories {
    wanted: bool,
    chunks: Vec<Vec<u32>>,
    /// Per segment, the history of its pages that have none of their own.
    restored: Vec<u32>,
}

impl PageHistories {
    pub(super) fn new(policy: &dyn CleaningPolicy) -> PageHistories {
        PageHistories {
            wanted: matches!(policy.history_kind(), HistoryKind::Page { .. }),
            chunks: Vec::new(),
            restored: Vec::new(),
        }
    }

    /// Whether the policy uses metadata per page.
    pub(super) fn wanted(&self) -> bool {
        self.wanted
    }

    /// Makes every history unknown.
    pub(super) fn forget(&mut self) {
        self.chunks.clear();
        self.restored.clear();
    }

    /// The history of `page`, which lies in `segment`.
    pub(super) fn get(&self, page: PageId, segment: Option<u32>) -> History {
        let (chunk, at) = split(page);
        let own = self.chunks.get(chunk).and_then(|chunk| chunk.get(at));
        let restored = || self.restored.get(segment? as usize);
        let known = |bits: &&u32| **bits != u32::MAX;
        match own.filter(known).or_else(|| restored().filter(known)) {
            None => History::UNKNOWN,
            Some(&bits) => History(u64::from(bits)),
        }
    }

    /// Gives all pages of `segment` a history until they are written again.
    pub(super) fn restore(&mut self, segment: u32, history: History) {
        let at = segment as usize;
        if self.wanted && (history.is_known() || at < self.restored.len()) {
            self.restored
                .resize(self.restored.len().max(at + 1), u32::MAX);
            self.restored[at] = history.0 as u32;
        }
    }

    /// `segment` is free.
    pub(super) fn segment_freed(&mut self, segment: u32) {
        if let Some(restored) = self.restored.get_mut(segment as usize) {
            *restored = u32::MAX;
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
        assert_eq!(kept.get(far, None), History(77));
        assert_eq!(kept.get(PageId(7), None), History::UNKNOWN);
        kept.set(PageId(1 << 62), History(77));
        assert!(kept.chunks.len() < 10);
        kept.set(far, History::UNKNOWN);
        assert_eq!(kept.get(far, None), History::UNKNOWN);
        let mut none = PageHistories::new(&*PolicyKind::Mdc.build(1000));
        none.set(far, History(77));
        none.restore(3, History(88));
        assert!(!none.wanted() && none.chunks.is_empty() && none.restored.is_empty());
    }

    #[test]
    fn pages_without_a_history_have_their_segments() {
        let mut kept = PageHistories::new(&*PolicyKind::LifeTable.build(1000));
        kept.restore(3, History(88));
        kept.set(PageId(8), History(77));
        assert_eq!(kept.get(PageId(7), Some(3)), History(88));
        assert_eq!(kept.get(PageId(7), Some(2)), History::UNKNOWN);
        assert_eq!(kept.get(PageId(7), Some(4)), History::UNKNOWN);
        assert_eq!(kept.get(PageId(8), Some(3)), History(77), "its own");
        kept.segment_freed(3);
        assert_eq!(kept.get(PageId(7), Some(3)), History::UNKNOWN);
    }
}
