//! Pages on the volume and in memory.

use super::{Design, OverlayParams};
use crate::workload::Op;

/// The unit in which designs with deltas write: leaves and deltas are several of them.
pub(super) const DELTA_UNIT: u32 = 128;
const NONE: u32 = u32::MAX;

/// The units of the volume, what was written and read of them, and the pages in memory.
#[derive(Debug)]
pub(super) struct Io {
    /// Bytes of a unit: a page, or less where deltas are written.
    pub(super) unit_bytes: u32,
    /// Units written.
    pub(super) written: u64,
    /// Pages that operations read from the device.
    pub(super) reads: u64,
    /// Pages that merges read.
    pub(super) merge_reads: u64,
    /// Writes and trims since the load began; empty for designs that nothing cleans.
    ops: Option<Vec<Op>>,
    free: Vec<u32>,
    next: u32,
    cache: Clock,
    /// By page: whether it changed in the cache. It is written when it leaves.
    dirty: Vec<bool>,
}

impl Io {
    pub(super) fn new(params: &OverlayParams, frames: usize) -> Io {
        let unit_bytes = match params.design {
            Design::Cumulative { .. } | Design::Chained { .. } => DELTA_UNIT,
            _ => params.page_bytes,
        };
        Io {
            unit_bytes,
            written: 0,
            reads: 0,
            merge_reads: 0,
            ops: (!matches!(params.design, Design::Lsm { .. })).then(Vec::new),
            free: Vec::new(),
            next: 0,
            cache: Clock::new(frames.max(1)),
            dirty: Vec::new(),
        }
    }

    /// A unit of the volume, not written yet.
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    pub(super) fn write(&mut self, unit: u32) {
        self.written += 1;
        if let Some(dirty) = self.dirty.get_mut(unit as usize) {
            *dirty = false;
        }
        if let Some(ops) = &mut self.ops {
            ops.push(Op::write(unit));
        }
    }

    pub(super) fn release(&mut self, unit: u32) {
        self.free.push(unit);
        self.cache.forget(unit);
        if let Some(ops) = &mut self.ops {
            ops.push(Op::trim(unit));
        }
    }

    /// Reads a page through the cache, `reads` device reads at a miss; the page that had to leave.
    pub(super) fn read(&mut self, page: u32, reads: u64) -> Option<u32> {
        let (hit, left) = self.cache.access(page);
        self.reads += if hit { 0 } else { reads };
        if let Some(left) = left.filter(|&left| self.is_dirty(left)) {
            self.write(left);
        }
        left
    }

    /// Changes a page in the cache; a new one is not read.
    pub(super) fn change(&mut self, page: u32) {
        self.read(page, 0);
        if self.dirty.len() <= page as usize {
            self.dirty.resize(page as usize + 1, false);
        }
        self.dirty[page as usize] = true;
    }

    pub(super) fn is_dirty(&self, page: u32) -> bool {
        self.dirty.get(page as usize) == Some(&true)
    }

    pub(super) fn is_cached(&self, page: u32) -> bool {
        self.cache.has(page)
    }

    /// Units in use.
    pub(super) fn live(&self) -> u32 {
        self.next - self.free.len() as u32
    }

    /// Most units ever in use.
    pub(super) fn units(&self) -> u32 {
        self.next
    }

    pub(super) fn into_ops(self) -> Vec<Op> {
        self.ops.unwrap_or_default()
    }
}

/// Page replacement by CLOCK.
#[derive(Debug)]
struct Clock {
    /// By frame: the page, and whether it was accessed since the hand passed.
    frames: Vec<(u32, bool)>,
    /// By page, its frame.
    frame_of: Vec<u32>,
    hand: usize,
}

impl Clock {
    fn new(frames: usize) -> Clock {
        Clock {
            frames: vec![(NONE, false); frames],
            frame_of: Vec::new(),
            hand: 0,
        }
    }

    fn has(&self, page: u32) -> bool {
        self.frame_of
            .get(page as usize)
            .is_some_and(|&frame| frame != NONE)
    }

    /// Whether the page was there, and which page left for it.
    fn access(&mut self, page: u32) -> (bool, Option<u32>) {
        if self.has(page) {
            self.frames[self.frame_of[page as usize] as usize].1 = true;
            return (true, None);
        }
        while self.frames[self.hand].1 {
            self.frames[self.hand].1 = false;
            self.hand = (self.hand + 1) % self.frames.len();
        }
        let left = self.frames[self.hand].0;
        self.forget(left);
        self.frames[self.hand].0 = page;
        if self.frame_of.len() <= page as usize {
            self.frame_of.resize(page as usize + 1, NONE);
        }
        self.frame_of[page as usize] = self.hand as u32;
        self.hand = (self.hand + 1) % self.frames.len();
        (false, (left != NONE).then_some(left))
    }

    fn forget(&mut self, page: u32) {
        if self.has(page) {
            self.frames[self.frame_of[page as usize] as usize] = (NONE, false);
            self.frame_of[page as usize] = NONE;
        }
    }
}
