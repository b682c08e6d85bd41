//! Commits, structure modifications and bulk loads.

use crate::{Batch, Lsn, Page, Purpose, ROOT, Record, Rule, Stage, State};

impl State {
    /// A commit's record is appended (`Commit::append`).
    pub(super) fn commit(&mut self) -> Option<()> {
        self.left.commits = self.left.commits.checked_sub(1)?;
        if self.unapplied.is_some() {
            return None;
        }
        self.unapplied = Some(self.append(Record::Commit));
        Some(())
    }

    /// The commit changes its page (`Commit::apply`).
    pub(super) fn apply(&mut self, broken: Option<Rule>) -> Option<()> {
        let lsn = self.unapplied.filter(|_| self.freeing.is_none())?;
        self.change(self.leaf(), lsn, lsn, broken);
        self.unapplied = None;
        Some(())
    }

    /// The record of a structure modification is appended, its pages latched (`smo`).
    pub(super) fn structure(
        &mut self,
        to: usize,
        image: Option<u8>,
        token: Option<Lsn>,
        broken: Option<Rule>,
    ) {
        let from = self.leaf();
        let record = Record::Structure {
            leaf: to as u8,
            image,
            freed: from as u8,
            token,
        };
        let lsn = self.append(record);
        if broken != Some(Rule::FreedBeforeRecord) {
            self.pages[from].freed = true;
        }
        if let Some(content) = image {
            let life = self.pages[to].life + 1;
            self.pages[to] = Page {
                exists: true,
                version: lsn,
                content,
                oldest: Some(lsn),
                life,
                ..Page::default()
            };
        }
        self.change(ROOT, lsn, to as u8, broken);
        self.freeing = Some((from as u8, lsn));
    }

    pub(super) fn move_leaf(&mut self, broken: Option<Rule>) -> Option<()> {
        self.left.moves = self.left.moves.checked_sub(1)?;
        let to = self.spare_leaf().filter(|_| self.freeing.is_none())?;
        let content = self.pages[self.leaf()].content;
        self.structure(to, Some(content), None, broken);
        Some(())
    }

    /// The page that a structure modification frees is gone (`free_page`).
    pub(super) fn free(&mut self, broken: Option<Rule>) -> Option<()> {
        let (page, lsn) = self.freeing.take()?;
        let old = self.pages[usize::from(page)];
        // A page that is being written leaves its addresses to that write.
        if !old.writing {
            self.free_after(lsn, old.address);
        }
        self.pages[usize::from(page)] = Page {
            life: old.life,
            freed: true,
            ..Page::default()
        };
        self.mark(usize::from(page), broken);
        Some(())
    }

    // ---- bulk loads ----------------------------------------------------------------------------------

    /// A leaf is written before anything names it (`log_provisional`, `write_chunk`).
    pub(super) fn load(&mut self, broken: Option<Rule>) -> Option<()> {
        self.left.loads = self.left.loads.checked_sub(1)?;
        let free = self.batches[1].is_none() && self.freeing.is_none();
        let page = self.spare_leaf().filter(|_| free)?;
        let token = self.append(Record::Provisional { page: page as u8 });
        if broken != Some(Rule::ProvisionalListed) {
            self.provisional.push((token, page as u8));
        }
        let (content, life) = (self.pages[self.leaf()].content, self.pages[page].life + 1);
        self.pages[page] = Page {
            version: token,
            content,
            life,
            ..Page::default()
        };
        self.issue(Purpose::Load { token }, page, None)
    }

    pub(super) fn loaded(&self) -> Option<(Batch, Lsn)> {
        let batch = self.batches[1].filter(|batch| matches!(batch.stage, Stage::Logged(_)))?;
        match batch.purpose {
            Purpose::Load { token } => Some((batch, token)),
            _ => None,
        }
    }

    /// The loaded leaf replaces the one whose value it has (`link`).
    pub(super) fn link(&mut self, broken: Option<Rule>) -> Option<()> {
        let (batch, token) = self.loaded()?;
        let current = self.pages[self.leaf()];
        let busy = self.freeing.is_some() || self.unapplied.is_some();
        if busy || current.content != batch.content {
            return None;
        }
        self.structure(usize::from(batch.page), None, Some(token), broken);
        self.confirm(token, broken);
        self.batches[1] = None;
        Some(())
    }

    /// The load is given up (`log_free`).
    pub(super) fn abandon(&mut self, broken: Option<Rule>) -> Option<()> {
        let (batch, token) = self.loaded()?;
        let page = usize::from(batch.page);
        let record = self.append(Record::Free {
            page: batch.page,
            token,
        });
        self.confirm(token, broken);
        self.free_after(record, self.pages[page].address);
        self.pages[page] = Page {
            life: batch.life,
            ..Page::default()
        };
        self.mark(page, broken);
        self.batches[1] = None;
        Some(())
    }
}
