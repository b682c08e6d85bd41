//! Structure modifications: splits, merges, root growth and shrink.
//!
//! Every one of them is applied by [`Modification::apply`], which has the list
//! of all pages that it changes: one log record, appended before any latch is
//! released. The latches are taken by trying, from validated optimistic holds;
//! where one is taken, everything is released and the attempt starts over.
//! Frames and page ids for new pages are reserved before the first latch.

mod merge;
mod split;

pub(super) use merge::{is_underfull, merge};
pub(super) use split::{Goal, make_room, split};

use super::{AttemptError, Tree};
use crate::buffer::{Exclusive, Reservation, Restart};
use crate::canary::{self, Canary};
use crate::context::WriteContext;
use crate::log::record::{Kind, Token, structure_body};
use crate::node::{Image, Node};
use crate::page::{PageId, offset, put_u64};

/// All pages of one structure modification, latched, with their new images.
pub(super) struct Modification<'p> {
    tree: Tree,
    changed: Vec<(Exclusive<'p>, Box<Image>)>,
    unlinked: Vec<Exclusive<'p>>,
    /// The bulk load that this links: its token, and its lower bound.
    load: Option<(Token, Vec<u8>)>,
}

impl<'p> Modification<'p> {
    pub(super) fn new(tree: Tree) -> Modification<'p> {
        Modification {
            tree,
            changed: Vec::with_capacity(3),
            unlinked: Vec::new(),
            load: None,
        }
    }

    /// Makes the bulk load that `token` names part of the tree, which has nothing at `lower`
    /// or above it.
    pub(super) fn load(mut self, token: Token, lower: &[u8]) -> Modification<'p> {
        self.load = Some((token, lower.to_vec()));
        self
    }

    /// Adds a page and what it shall hold.
    pub(super) fn page(mut self, page: Exclusive<'p>, image: Box<Image>) -> Modification<'p> {
        self.changed.push((page, image));
        self
    }

    /// Adds a page that no page names any more after this.
    pub(super) fn unlink(mut self, page: Exclusive<'p>) -> Modification<'p> {
        self.unlinked.push(page);
        self
    }

    /// Writes the images into the frames, logs them as one record, releases
    /// the latches, then frees unlinked pages.
    pub(super) fn apply<C: WriteContext>(mut self, ctx: &C) {
        self.store_images();
        let log = ctx.log();
        let ended: Vec<PageId> = self.unlinked.iter().map(Exclusive::id).collect();
        let token = self.load.as_ref().map(|(token, _)| *token);
        let body = if log.is_on() {
            let images = self
                .changed
                .iter()
                .map(|(page, image)| (page.id(), &image.0));
            let ended = ended.iter().copied();
            let lower = self.load.as_ref().map(|(_, lower)| &lower[..]);
            structure_body(self.tree.id, images, ended, token.as_slice(), lower)
        } else {
            Vec::new()
        };
        let record = log.append(ctx.writer(), Kind::Structure, &[&body], |lsn| {
            for (page, _) in &mut self.changed {
                page.changed(lsn, lsn);
            }
            ctx.confirmed(token.as_slice(), &ended);
            self.unlinked.iter().for_each(|page| ctx.end(page));
        });
        drop(self.changed);
        for page in self.unlinked {
            ctx.free(page, record);
        }
    }

    /// Writes the images of pages that nothing names yet, and that belong to a
    /// token; these are not logged.
    pub(super) fn apply_private<C: WriteContext>(mut self, ctx: &C) {
        self.store_images();
        let mut mark = |version| {
            for (page, _) in &mut self.changed {
                page.changed(version, version);
            }
        };
        if canary::is_on(Canary::MarkLoadedLate) {
            let version = ctx.log().stamp(ctx.writer());
            // As if others ran for a while.
            (0..3_000).for_each(|_| ctx.next_turn());
            mark(version);
            return;
        }
        // Dirty before the position is complete: a checkpoint that begins behind it finds the
        // pages, and does not take a copy of them for one of pages that had been freed before.
        ctx.log().stamp_pages(ctx.writer(), mark);
    }

    fn store_images(&mut self) {
        for (page, image) in &mut self.changed {
            put_u64(&mut image.0, offset::PAGE_ID, page.id().0);
        }
        if cfg!(debug_assertions) {
            self.check();
        }
        for (page, image) in &self.changed {
            page.words().store_all(&image.0);
        }
    }

    /// Asserts that the list is complete as far as it can check: no page twice,
    /// every image a sound node of this tree that names nothing unlinked.
    fn check(&self) {
        let mut ids: Vec<_> = self.changed.iter().map(|(page, _)| page.id()).collect();
        ids.extend(self.unlinked.iter().map(Exclusive::id));
        let listed = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), listed, "a page is listed twice");
        for (page, image) in &self.changed {
            let node = Node::open(&**image, self.tree.id).and_then(|node| {
                node.check()?;
                Ok(node)
            });
            let node = match node {
                Ok(node) => node,
                Err(why) => panic!("page {} would break a rule: {}", page.id(), why.0),
            };
            for position in 0..=node.count() {
                if let Ok(child) = node.child(position)
                    && !node.is_leaf()
                {
                    assert!(
                        !self.unlinked.iter().any(|page| page.id() == child),
                        "page {} would name the unlinked page {child}",
                        page.id(),
                    );
                }
            }
        }
    }
}

/// Runs `attempt` until it succeeds, with frames and page ids reserved as it
/// asks for them, and with log space. What it does not use is released at the
/// end.
pub(super) fn with_pages<C: WriteContext, T>(
    ctx: &C,
    mut attempt: impl FnMut(&mut Reservation) -> Result<T, AttemptError>,
) -> Result<T, C::Error> {
    let _reservation = ctx.reserve_for_structure()?;
    let mut reservation = Reservation::new(Vec::new());
    let result = loop {
        let fail = match attempt(&mut reservation) {
            Ok(value) => break Ok(value),
            Err(fail) => fail,
        };
        if let AttemptError::Restart(Restart::NeedPages(pages)) = fail {
            ctx.release(reservation);
            reservation = ctx.reserve(pages)?;
        } else if let Err(stop) = fail.resolve(ctx) {
            break Err(stop);
        }
    };
    ctx.release(reservation);
    result
}
