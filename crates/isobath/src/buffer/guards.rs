//! Holds on a resident page: optimistic, shared, exclusive. A holder of an [`Optimistic`] or a
//! [`Shared`] cannot change the page; the holder of an [`Exclusive`] can, and must log the change
//! through [`crate::log::Log`].

#![allow(unsafe_code)]

use super::latch::Version;
use super::mapping::{FrameId, PagePlace};
use super::{BufferPool, FrameHeader, Restart};
use crate::node::Words;
use crate::page::{Lsn, PAGE_SIZE, PageId};

/// A hold that takes no latch: what is read through it counts only after
/// [`Optimistic::validate`].
#[derive(Clone, Copy)]
pub(crate) struct Optimistic<'p> {
    pool: &'p BufferPool,
    frame: FrameId,
    version: Version,
}

impl<'p> Optimistic<'p> {
    #[inline(always)]
    pub(crate) fn new(pool: &'p BufferPool, frame: FrameId, version: Version) -> Self {
        Optimistic {
            pool,
            frame,
            version,
        }
    }

    #[inline(always)]
    fn header(&self) -> &'p FrameHeader {
        self.pool.frames.header(self.frame)
    }

    /// The frame and its version, for callers that keep a hold beyond the borrow of
    /// the pool and makes it again with [`Optimistic::new`].
    pub(crate) fn parts(&self) -> (FrameId, Version) {
        (self.frame, self.version)
    }

    /// The page's bytes, possibly torn.
    #[inline(always)]
    pub(crate) fn words(&self) -> &'p Words {
        self.pool.frames.words(self.frame)
    }

    /// Whether all that was read so far was one state of the page.
    #[inline(always)]
    pub(crate) fn validate(&self) -> Result<(), Restart> {
        if self.header().latch().validate(self.version) {
            Ok(())
        } else {
            Err(Restart::Changed)
        }
    }

    /// Turns into an exclusive hold on the same state of the page.
    pub(crate) fn exclusive(self) -> Result<Exclusive<'p>, Restart> {
        if self.header().latch().try_upgrade(self.version) {
            Ok(Exclusive {
                pool: self.pool,
                frame: self.frame,
                changed: false,
            })
        } else {
            Err(self.refused())
        }
    }

    fn refused(&self) -> Restart {
        if self.header().latch().validate(self.version) {
            Restart::Latched
        } else {
            Restart::Changed
        }
    }
}

/// An exclusive hold: no other task reads a state that it writes.
pub(crate) struct Exclusive<'p> {
    pool: &'p BufferPool,
    frame: FrameId,
    changed: bool,
}

impl<'p> Exclusive<'p> {
    fn header(&self) -> &'p FrameHeader {
        self.pool.frames.header(self.frame)
    }

    /// The page held.
    pub(crate) fn id(&self) -> PageId {
        self.header().page()
    }

    /// The page's bytes, for changing. A change that is not followed by
    /// [`Exclusive::changed`] would be lost; [`crate::log::Log`] calls it.
    pub(crate) fn words(&self) -> &'p Words {
        self.pool.frames.words(self.frame)
    }

    /// The page's bytes as a slice, to read.
    pub(crate) fn bytes(&self) -> &[u8; PAGE_SIZE] {
        // SAFETY: only the holder writes, and it cannot while this borrow lasts
        // other than through `words`, whose callers do not hold slices at the same time;
        // optimistic readers only read.
        unsafe { &*self.pool.frames.pointer(self.frame).cast() }
    }

    /// The page's version: the LSN of its newest change, or a stamp above it.
    pub(crate) fn version(&self) -> Lsn {
        self.header().version()
    }

    /// Notes that the page was changed by the log record `record`, which makes
    /// `version` its version, and queues it for writing if it was clean before.
    pub(crate) fn changed(&mut self, record: Lsn, version: Lsn) {
        self.changed = true;
        let change = self.header().changed(record, version);
        if change.turned_dirty {
            self.pool.dirty.turned_dirty();
        }
        if change.to_queue {
            self.pool.dirty.push(self.frame, self.id());
        }
    }

    /// Ends the hold without unlatching: the frame's new owner keeps it exclusive.
    pub(crate) fn leak(self) -> FrameId {
        let frame = self.frame;
        std::mem::forget(self);
        frame
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        let latch = self.header().latch();
        if self.changed {
            latch.unlock_exclusive();
        } else {
            latch.unlock_unchanged();
        }
    }
}

/// Free frames and unused page ids that a structure modification took
/// beforehand, so that it cannot fail half-way. What is not used goes back
/// when the task that made the reservation takes it apart.
pub(crate) struct Reservation {
    pages: Vec<(FrameId, PageId)>,
}

impl Reservation {
    pub(crate) fn new(pages: Vec<(FrameId, PageId)>) -> Reservation {
        Reservation { pages }
    }

    /// How many pages are left.
    pub(crate) fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    /// The ids that the next calls of [`Reservation::take`] give, in order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PageId> + '_ {
        self.pages.iter().rev().map(|page| page.1)
    }

    /// Makes one of the reserved pages resident and holds it exclusively; its
    /// bytes are whatever the frame held before.
    ///
    /// # Panics
    ///
    /// If nothing is left: the caller asks for [`Restart::NeedPages`] first.
    pub(crate) fn take<'p>(&mut self, pool: &'p BufferPool) -> Exclusive<'p> {
        #[expect(
            clippy::expect_used,
            reason = "callers check `len` before they change anything"
        )]
        let (frame, id) = self
            .pages
            .pop()
            .expect("a structure modification reserves its pages");
        pool.frames.header(frame).start_new(id);
        pool.mapping.set(id, PagePlace::Resident(frame));
        Exclusive {
            pool,
            frame,
            changed: true,
        }
    }

    /// The unused frames and ids.
    pub(crate) fn into_unused(self) -> Vec<(FrameId, PageId)> {
        self.pages
    }
}
