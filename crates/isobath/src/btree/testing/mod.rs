//! A pool, a log and a page store in memory, to run the tree on in tests.

mod bench;
mod corruption;
mod loads;
mod model;
mod rewrites;
mod scans;
mod stress;
mod tails;

use std::collections::HashMap;

use super::{Tree, TreeId};
use crate::buffer::{BufferPool, Exclusive, FrameId, PagePlace, Reservation, Restart};
use crate::context::{ReadContext, WriteContext};
use crate::log::record::Token;
use crate::log::{Log, LogReservation};
use crate::node::{Block, Image};
use crate::page::{Lsn, PageId};
use crate::shared::Address;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

struct Free {
    frames: Vec<FrameId>,
    ids: Vec<PageId>,
    next_id: u64,
    /// Pages that were evicted, as a volume would hold them.
    stored: HashMap<PageId, Box<Image>>,
}

/// Frames, ids and evicted pages behind one mutex. Resolving a page miss loads
/// the page; everything else yields the thread.
pub(super) struct TestContext {
    pool: BufferPool,
    log: Log,
    free: Mutex<Free>,
    seed: AtomicU64,
    /// Page faults resolved.
    pub(super) faults: AtomicUsize,
    /// Pages asked for ahead.
    pub(super) ahead: AtomicUsize,
    /// Whether the log has space for structure modifications; removals merge nothing
    /// without.
    pub(super) has_log_space: AtomicBool,
}

/// The next number of a fast generator (xorshift64*), good enough to pick test data.
pub(super) fn next_random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

impl TestContext {
    pub(super) fn new(frames: u32, page_ids: u64) -> TestContext {
        TestContext {
            pool: BufferPool::new(frames, page_ids).unwrap(),
            log: Log::off(Lsn(1)),
            free: Mutex::new(Free {
                frames: (0..frames).rev().collect(),
                ids: Vec::new(),
                next_id: 2,
                stored: HashMap::new(),
            }),
            seed: AtomicU64::new(88_172_645_463_325_252),
            faults: AtomicUsize::new(0),
            ahead: AtomicUsize::new(0),
            has_log_space: AtomicBool::new(true),
        }
    }

    pub(super) fn tree(&self) -> Tree {
        Tree::create(self, TreeId(3), None).unwrap()
    }

    /// Pages that are neither free nor never used.
    pub(super) fn live_pages(&self) -> u64 {
        let free = self.free.lock();
        free.next_id - 2 - free.ids.len() as u64
    }

    fn random(&self) -> u64 {
        let mut state = self.seed.load(Relaxed);
        let value = next_random(&mut state);
        self.seed.store(state, Relaxed);
        value
    }

    /// Throws about `pages` pages out of memory.
    pub(super) fn evict(&self, pages: usize) {
        let mut free = self.free.lock();
        for _ in 0..pages {
            if let Some(frame) = self.evict_one(&mut free) {
                free.frames.push(frame);
            }
        }
    }

    fn evict_one(&self, free: &mut Free) -> Option<FrameId> {
        for _ in 0..1000 {
            let frame = (self.random() % u64::from(self.pool.frames.count())) as FrameId;
            let header = self.pool.frames.header(frame);
            if header.latch().try_exclusive() {
                let id = header.page();
                free.stored
                    .insert(id, Image::copy_of(self.pool.frames.words(frame)));
                self.pool
                    .mapping
                    .set(id, PagePlace::Stored(Address::new(1, 0, 4096)));
                return Some(frame);
            }
        }
        None
    }

    fn acquire_frame(&self, free: &mut Free) -> Option<FrameId> {
        free.frames.pop().or_else(|| self.evict_one(free))
    }

    fn load(&self, id: PageId) {
        let mut free = self.free.lock();
        if !matches!(self.pool.mapping.place(id), PagePlace::Stored(_)) {
            return;
        }
        self.faults.fetch_add(1, Relaxed);
        let Some(frame) = self.acquire_frame(&mut free) else {
            return;
        };
        let image = free.stored.remove(&id).unwrap();
        self.pool.frames.words(frame).store_all(&image.0);
        let header = self.pool.frames.header(frame);
        header.start_load(id, Address::new(1, 0, 4096));
        self.pool.mapping.set(id, PagePlace::Resident(frame));
        header.latch().unlock_exclusive();
    }

    /// Changes bytes of a page behind the tree's back.
    pub(super) fn corrupt(&self, id: PageId, change: impl FnOnce(&mut Image)) {
        self.load(id);
        let page = self.pool.read(id).unwrap().exclusive().unwrap();
        let mut image = Image::copy_of(page.words());
        change(&mut image);
        page.words().store_all(&image.0);
        let frame = page.leak();
        self.pool.frames.header(frame).latch().unlock_exclusive();
    }
}

impl ReadContext for TestContext {
    type Error = crate::error::StorageError;

    fn pool(&self) -> &BufferPool {
        &self.pool
    }

    fn resolve(&self, why: Restart) -> Result<(), crate::error::StorageError> {
        match why {
            Restart::NotResident(id) => self.load(id),
            Restart::NeedPages(_) => panic!("drivers reserve pages themselves"),
            Restart::Changed => std::hint::spin_loop(),
            Restart::Latched => std::thread::yield_now(),
        }
        Ok(())
    }

    fn read_ahead(&self, pages: &[PageId]) -> bool {
        self.ahead.fetch_add(pages.len(), Relaxed);
        for &id in pages {
            self.load(id);
        }
        true
    }
}

impl WriteContext for TestContext {
    fn log(&self) -> &Log {
        &self.log
    }

    fn writer(&self) -> usize {
        0
    }

    fn reserve_for_structure(&self) -> Result<LogReservation<'_>, crate::error::StorageError> {
        match self.has_log_space.load(Relaxed) {
            true => Ok(LogReservation::none()),
            false => Err(crate::error::StorageError::LogOverrun),
        }
    }

    fn admit(&self) -> Result<(), crate::error::StorageError> {
        Ok(())
    }

    fn reserve(&self, pages: u32) -> Result<Reservation, crate::error::StorageError> {
        let mut free = self.free.lock();
        let mut reserved = Vec::new();
        for _ in 0..pages {
            let Some(frame) = self.acquire_frame(&mut free) else {
                panic!("the test's pool is too small");
            };
            let id = free.ids.pop().unwrap_or_else(|| {
                free.next_id += 1;
                PageId(free.next_id - 1)
            });
            assert!(id.0 < self.pool.mapping.capacity());
            reserved.push((frame, id));
        }
        Ok(Reservation::new(reserved))
    }

    fn lend(&self) -> Block {
        Block::own()
    }

    fn release(&self, unused: Reservation) {
        let mut free = self.free.lock();
        for (frame, id) in unused.into_unused() {
            free.frames.push(frame);
            free.ids.push(id);
        }
    }

    fn end(&self, page: &Exclusive<'_>) {
        self.pool.mapping.set(page.id(), PagePlace::Free);
    }

    fn free(&self, page: Exclusive<'_>, _record: Lsn) {
        let id = page.id();
        let frame = page.leak();
        let mut free = self.free.lock();
        free.frames.push(frame);
        free.ids.push(id);
    }

    fn add_provisional(&self, _token: Token, _ids: &[PageId]) {}

    fn cancel_provisional(&self, _token: Option<Token>, _ids: &[PageId]) {}

    fn confirmed(&self, _tokens: &[Token], _ended: &[PageId]) {}

    fn flush_pages(&self, _pages: Vec<PageId>) -> Result<(), crate::error::StorageError> {
        Ok(())
    }

    fn begin_flush(&self, _pages: &[PageId]) {}

    fn forget_flushed(&self, pages: &mut Vec<PageId>) {
        pages.clear();
    }
}
