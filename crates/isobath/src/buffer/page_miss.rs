//! Page misses: one load per missing page, however many tasks wait for it. A load reads its page
//! alone, or is a part of a long read ([`crate::buffer::long_read`]).
//!
//! An id may be out of date when its read starts: its page may have been freed
//! since, and the id given to a chunk of a large value, which no frame may hold.
//! So an id alone is never trusted. A place of another length than a page's is
//! not read; a chunk as long as a page fails its check and stays where it is, and a task that needs
//! the chunk before that waits for it ([`Buffer::await_load`]). And a copy that is no sound page is
//! corruption only if the parent still named the page after the copy was found so: see
//! [`Buffer::load_page`].

#![allow(unsafe_code)]

use std::collections::VecDeque;

use isobath_io::{Io, IoError};

use crate::buffer::{Buffer, FrameId, PagePlace};
use crate::canary::{self, Canary};
use crate::error::StorageError;
use crate::page::{self, Lsn, PAGE_SIZE, PageCorruption, PageId, PageKind, get_u64, offset};
use crate::runtime::{TaskId, Worker};
use crate::shared::{Address, Counters};
use crate::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

/// One page that is being read.
struct Load {
    page: PageId,
    frame: FrameId,
    address: Address,
    waiters: Vec<TaskId>,
}

/// The worker's loads; slots are reused, so that a read
/// allocates nothing once the worker is warm.
pub(crate) struct Loads {
    slots: Vec<Load>,
    free: Vec<u32>,
    /// Reads in flight: a long one counts once.
    pub(crate) reads: usize,
}

impl Loads {
    pub(crate) fn new(depth: usize) -> Loads {
        Loads {
            slots: Vec::with_capacity(depth),
            free: Vec::with_capacity(depth),
            reads: 0,
        }
    }

    fn add(&mut self, page: PageId, frame: FrameId, address: Address) -> u32 {
        if let Some(slot) = self.free.pop() {
            let load = &mut self.slots[slot as usize];
            (load.page, load.frame, load.address) = (page, frame, address);
            slot
        } else {
            self.slots.push(Load {
                page,
                frame,
                address,
                waiters: Vec::new(),
            });
            self.slots.len() as u32 - 1
        }
    }

    fn find(&self, page: PageId, frame: FrameId) -> Option<u32> {
        let at = self
            .slots
            .iter()
            .position(|load| load.page == page && load.frame == frame)?;
        Some(at as u32)
    }

    /// Whose load is in `slot`, the frame that it goes to, and where it is read from.
    pub(crate) fn target(&self, slot: u32) -> (PageId, FrameId, Address) {
        let load = &self.slots[slot as usize];
        (load.page, load.frame, load.address)
    }
}

/// A task that waits for a page that another worker loads.
pub(crate) struct PageWaiter {
    page: PageId,
    task: TaskId,
}

/// One copy of a page on the volume. A place is written once in each use of its
/// segment, so no two copies are the same.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PageCopy {
    page: PageId,
    address: Address,
    seq: u64,
}

/// A read of a page that has failed, and the task that waited for it.
pub(crate) struct FailedRead {
    task: TaskId,
    copy: PageCopy,
    error: StorageError,
}

/// Unsound copies that a worker remembers at most. To forget one costs a read.
const MAX_UNSOUND: usize = 256;

/// The copies that were found to be no sound pages, each by the task that has to
/// find out whether anything still names the page.
#[derive(Default)]
pub(crate) struct Unsound(VecDeque<(TaskId, PageCopy)>);

impl Unsound {
    /// Whether `task` has found so before, and forgets it; else remembers it.
    fn is_known(&mut self, task: TaskId, copy: PageCopy) -> bool {
        let known = self.0.iter().position(|(by, _)| *by == task);
        if known.and_then(|at| self.0.remove(at)) == Some((task, copy)) {
            return true;
        }
        if self.0.len() == MAX_UNSOUND {
            self.0.pop_front();
        }
        self.0.push_back((task, copy));
        false
    }
}

/// A page that could not be read where it was.
pub(crate) struct UnreadPage {
    pub(crate) page: PageId,
    pub(crate) address: Address,
    pub(crate) error: StorageError,
}

/// The result of a request to load a page.
pub(crate) enum LoadStart {
    /// It is in memory, or it exists no longer: look again.
    Resolved,
    /// This worker is reading it, in this slot.
    Here(u32),
    /// Another worker is reading it.
    Elsewhere,
    /// The id's place is not that of a page.
    NoPage(Address),
    /// Every frame is in use.
    NoFrame,
}

impl Buffer {
    /// Starts reading page `id` unless that is under way.
    pub(crate) fn start_load(&self, worker: &Worker, id: PageId) -> LoadStart {
        let begun = self
            .place_to_load(worker, id)
            .and_then(|address| self.begin_load(worker, id, address));
        match begun {
            Ok(slot) => {
                self.submit_load(worker, slot);
                LoadStart::Here(slot)
            }
            Err(why) => why,
        }
    }

    /// The address from which page `id` has to be read, if it has to.
    pub(crate) fn place_to_load(&self, worker: &Worker, id: PageId) -> Result<Address, LoadStart> {
        match self.pool.mapping.place(id) {
            PagePlace::Resident(_) | PagePlace::Free => Err(LoadStart::Resolved),
            PagePlace::Loading(frame) => {
                Err(match self.own(worker).loads.borrow().find(id, frame) {
                    Some(slot) => LoadStart::Here(slot),
                    None => LoadStart::Elsewhere,
                })
            }
            PagePlace::Stored(address) if address.length() as usize != PAGE_SIZE => {
                Err(LoadStart::NoPage(address))
            }
            PagePlace::Stored(address) => Ok(address),
        }
    }

    /// Takes a frame for page `id`, which is at `address`: from now on it is being read, and the
    /// caller starts the read, before anything else runs.
    pub(crate) fn begin_load(
        &self,
        worker: &Worker,
        id: PageId,
        address: Address,
    ) -> Result<u32, LoadStart> {
        let pool = &self.pool;
        let Some(frame) = self.acquire_frame(worker) else {
            return Err(LoadStart::NoFrame);
        };
        pool.frames.header(frame).start_load(id, address);
        if !pool
            .mapping
            .replace(id, PagePlace::Stored(address), PagePlace::Loading(frame))
        {
            self.release_frame(worker, frame);
            return Err(LoadStart::Resolved);
        }
        Ok(self.own(worker).loads.borrow_mut().add(id, frame, address))
    }

    /// Reads the page of the load in `slot`, alone.
    pub(crate) fn submit_load(&self, worker: &Worker, slot: u32) {
        let (_, frame, address) = {
            let mut loads = self.own(worker).loads.borrow_mut();
            loads.reads += 1;
            loads.target(slot)
        };
        let io = Io::read(
            self.shared.offset_of(address),
            self.pool.frames.pointer(frame),
            PAGE_SIZE as u32,
            0,
        );
        // SAFETY: the frame stays exclusively latched and out of every queue
        // until `end_load`; the pool outlives the worker's channel.
        unsafe { worker.submit_background(io, u64::from(slot)) };
    }

    /// Waits, in a task, until page `id` is worth looking at again.
    ///
    /// The caller has seen a page that names `id` after the last call returned, and
    /// does so again before the next. A copy that is no sound page is therefore
    /// looked at twice: the first time the id may be out of date. If the same copy
    /// is still there afterwards, it was there while the parent named it.
    ///
    /// # Errors
    ///
    /// With [`StorageError::CorruptPage`] or [`StorageError::PageRead`] if the page cannot be read.
    pub(crate) fn load_page(&self, worker: &Worker, id: PageId) -> Result<(), UnreadPage> {
        let task = worker.task_id();
        match self.start_load(worker, id) {
            LoadStart::Resolved => Ok(()),
            LoadStart::Here(slot) => {
                self.own(worker).loads.borrow_mut().slots[slot as usize]
                    .waiters
                    .push(task);
                worker.suspend();
                match self.take_failure(worker, task) {
                    Some(failed) => self.failure_of(worker, failed),
                    None => Ok(()),
                }
            }
            LoadStart::Elsewhere => {
                self.await_load(worker, id);
                Ok(())
            }
            LoadStart::NoPage(address) => self.failure_of(
                worker,
                FailedRead {
                    task,
                    copy: self.page_copy(id, address),
                    error: StorageError::CorruptPage {
                        page: id.0,
                        offset: self.shared.offset_of(address),
                        corruption: PageCorruption::Misplaced {
                            segment: address.segment(),
                            offset: address.offset(),
                        },
                    },
                },
            ),
            // By the time that a frame is free the id may be another's.
            LoadStart::NoFrame => {
                self.own(worker).frame_waiters.borrow_mut().push(task);
                worker.suspend();
                Ok(())
            }
        }
    }

    fn page_copy(&self, page: PageId, address: Address) -> PageCopy {
        PageCopy {
            page,
            address,
            seq: self.shared.seq_of(address),
        }
    }

    fn take_failure(&self, worker: &Worker, task: TaskId) -> Option<FailedRead> {
        let mut failures = self.own(worker).failures.borrow_mut();
        let at = failures.iter().position(|failed| failed.task == task)?;
        Some(failures.swap_remove(at))
    }

    /// Whether a failed read is an error yet. The drive's own errors are.
    fn failure_of(&self, worker: &Worker, failed: FailedRead) -> Result<(), UnreadPage> {
        let is_unsound = matches!(failed.error, StorageError::CorruptPage { .. });
        let is_stale_id = is_unsound
            && !self
                .own(worker)
                .unsound
                .borrow_mut()
                .is_known(failed.task, failed.copy);
        if is_stale_id && !canary::is_on(Canary::TrustPageIds) {
            return Ok(());
        }
        let PageCopy { page, address, .. } = failed.copy;
        Err(UnreadPage {
            page,
            address,
            error: failed.error,
        })
    }

    /// Whether `page` is being read; then this worker will be told of its end.
    ///
    /// Between two looks the page may have been read, given up, and be read
    /// again, into any frame: each load in progress is asked again to tell.
    fn waits_elsewhere(&self, worker: &Worker, page: PageId) -> bool {
        let pool = &self.pool;
        let mut place = pool.mapping.place(page);
        // Bound: each round is another load of the page.
        while let PagePlace::Loading(frame) = place {
            pool.frames.header(frame).add_waiter(worker.index);
            // The load may have ended before the bit was set.
            let now = pool.mapping.place(page);
            if now == place {
                return true;
            }
            place = now;
        }
        false
    }

    /// Waits, in a task, until no worker reads `page`, or what had its id, into a frame.
    pub(crate) fn await_load(&self, worker: &Worker, page: PageId) {
        if !self.waits_elsewhere(worker, page) {
            return;
        }
        let task = worker.task_id();
        self.own(worker)
            .page_waiters
            .borrow_mut()
            .push(PageWaiter { page, task });
        worker.suspend();
    }

    /// Resumes tasks whose pages other workers have loaded.
    pub(crate) fn wake_page_waiters(&self, worker: &Worker) -> bool {
        let news = &self.page_news[worker.index];
        if !news.load(Relaxed) || !news.swap(false, AcqRel) {
            return false;
        }
        self.own(worker).page_waiters.borrow_mut().retain(|waiter| {
            let waits = self.waits_elsewhere(worker, waiter.page);
            if !waits {
                worker.make_ready(waiter.task);
            }
            waits
        });
        true
    }

    /// Ends the read of one page alone, in `slot`.
    pub(crate) fn load_completed(&self, worker: &Worker, slot: u32, result: Result<(), IoError>) {
        self.own(worker).loads.borrow_mut().reads -= 1;
        self.end_load(worker, slot, result);
    }

    /// Ends the load in `slot`, whose page is in its frame, if it was read.
    pub(crate) fn end_load(&self, worker: &Worker, slot: u32, result: Result<(), IoError>) {
        let (page, frame, address) = self.own(worker).loads.borrow().target(slot);
        let outcome = match result {
            Ok(()) => self.verify_frame(page, frame, address),
            Err(source) => Err(StorageError::PageRead {
                page: page.0,
                offset: self.shared.offset_of(address),
                tree: None,
                source,
            }),
        };
        let copy = self.page_copy(page, address);
        let failure = match outcome {
            Ok(()) => {
                self.publish(worker, page, frame);
                None
            }
            Err(error) => {
                let mapping = &self.pool.mapping;
                let back =
                    mapping.replace(page, PagePlace::Loading(frame), PagePlace::Stored(address));
                debug_assert!(back, "only the loader ends a load");
                self.release_frame(worker, frame);
                Some(error)
            }
        };
        self.tell_others(frame);
        let mut loads = self.own(worker).loads.borrow_mut();
        let load = &mut loads.slots[slot as usize];
        load.page = PageId(0);
        for task in load.waiters.drain(..) {
            if let Some(error) = &failure {
                self.own(worker).failures.borrow_mut().push(FailedRead {
                    task,
                    copy,
                    error: error.clone(),
                });
            }
            worker.make_ready(task);
        }
        loads.free.push(slot);
    }

    fn verify_frame(
        &self,
        page: PageId,
        frame: FrameId,
        address: Address,
    ) -> Result<(), StorageError> {
        let pool = &self.pool;
        // SAFETY: the frame is exclusively latched by this load, and the read is over.
        let bytes = unsafe { std::slice::from_raw_parts(pool.frames.pointer(frame), PAGE_SIZE) };
        page::verify(bytes, page, self.shared.seq_of(address))
            .and_then(|()| match PageKind::from_byte(bytes[offset::KIND]) {
                Some(PageKind::Leaf | PageKind::Inner) => Ok(()),
                _ => Err(PageCorruption::WrongKind {
                    found: bytes[offset::KIND],
                }),
            })
            .map_err(|corruption| StorageError::CorruptPage {
                page: page.0,
                offset: self.shared.offset_of(address),
                corruption,
            })?;
        let version = Lsn(get_u64(bytes, offset::LSN));
        pool.frames.header(frame).loaded(version);
        Ok(())
    }

    fn publish(&self, worker: &Worker, page: PageId, frame: FrameId) {
        let latch = &self.pool.frames.header(frame).latch();
        let early = canary::is_on(Canary::UnlatchEarly);
        if early {
            latch.unlock_exclusive();
        }
        // The word first: once unlatched the frame may be taken for another page.
        let came =
            self.pool
                .mapping
                .replace(page, PagePlace::Loading(frame), PagePlace::Resident(frame));
        debug_assert!(came, "only the loader ends a load");
        if !early {
            latch.unlock_exclusive();
        }
        self.admit(worker.index, frame, page);
        Counters::add(&self.shared.counters.page_reads, 1);
        Counters::add(&self.shared.counters.bytes_read, PAGE_SIZE as u64);
    }

    /// Tells the workers whose tasks wait for the load of `frame` that it ended.
    fn tell_others(&self, frame: FrameId) {
        let mut waiting = self.pool.frames.header(frame).take_waiters();
        while waiting != 0 {
            let bit = waiting.trailing_zeros() as usize;
            waiting &= waiting - 1;
            for index in (bit..self.workers.count()).step_by(64) {
                self.page_news[index].store(true, Release);
                self.workers.notify(index);
            }
        }
    }
}
