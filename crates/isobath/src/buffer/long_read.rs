//! Long reads: pages that lie beside each other are read with one I/O.
//!
//! Pages asked for ahead are known before they are read, and a load of sorted records leaves leaves
//! that follow each other beside each other. A drive serves few I/Os of many pages faster than many
//! I/Os of one.
//!
//! Each page of a long read has a load of its own: its frame, its waiters, its failure. The read
//! goes to a buffer of the worker; when it has ended, each page is copied to its frame and judged
//! as if it had been read alone. The end of a long read that failed says nothing about any of its
//! pages: each is then read alone. Bytes between two pages that are wanted may be read over; they
//! are never looked at.

#![allow(unsafe_code)]

use std::ops::Range;

use isobath_io::{AlignedBuf, Io, IoError};

use crate::buffer::page_miss::LoadStart;
use crate::buffer::{Buffer, PagePlace};
use crate::canary::{self, Canary};
use crate::page::{PAGE_SIZE, PageId};
use crate::runtime::Worker;
use crate::shared::{Address, Counters};

/// Set in the token of a long read.
pub(crate) const LONG_READ: u64 = 1 << 32;

/// Bytes of a long read at most.
const MAX_BYTES: u32 = 64 << 10;

/// Bytes between two wanted pages that are read over.
const MAX_GAP: u32 = PAGE_SIZE as u32;

/// Frames of a worker's share of the pool for each page of its buffer.
const FRAMES_PER_PAGE: usize = 16;

/// Pages of a worker's buffer at most: 1 MiB.
const MAX_PAGES: usize = 256;

/// Pages that one word says are used.
const WORD: usize = u64::BITS as usize;

/// A page that is asked for.
#[derive(Clone, Copy)]
struct WantedPage {
    address: Address,
    page: PageId,
    /// Its place among those that are asked for.
    rank: usize,
}

/// A run of wanted pages that are read with one I/O.
struct Run {
    /// Which, of those that are sorted by their addresses.
    pages: Range<usize>,
    /// The first of them that is wanted.
    rank: usize,
}

/// A long read in flight.
#[derive(Default)]
struct LongRead {
    /// Its part of the buffer, in pages.
    buffer: Range<usize>,
    /// Its offset in the segment, and its length, in bytes.
    start: u32,
    length: u32,
    /// The slots of its loads.
    loads: Vec<u32>,
}

/// The worker's long reads in flight, and the buffer that they read to.
pub(crate) struct LongReads {
    slots: Vec<LongRead>,
    free: Vec<u32>,
    buffer: ReadMemory,
    /// Scratch space.
    wanted: Vec<WantedPage>,
    runs: Vec<Run>,
}

impl LongReads {
    /// For a worker whose share of the pool is `frames`.
    pub(crate) fn new(frames: usize) -> LongReads {
        LongReads {
            slots: Vec::new(),
            free: Vec::new(),
            buffer: ReadMemory::new((frames / FRAMES_PER_PAGE).min(MAX_PAGES)),
            wanted: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Gives the memory back. The worker has ended, and none is in use.
    pub(super) fn release(&mut self) {
        debug_assert_eq!(self.free.len(), self.slots.len(), "no read is in flight");
        self.buffer.memory = None;
    }

    /// Bytes that one read may have.
    fn limit(&self) -> u32 {
        MAX_BYTES.min((self.buffer.pages * PAGE_SIZE) as u32)
    }

    /// Takes each page of the buffer, as if it were used.
    #[cfg(test)]
    pub(crate) fn take_all(&mut self) -> Vec<Range<usize>> {
        std::iter::from_fn(|| self.buffer.take(1)).collect()
    }

    #[cfg(test)]
    pub(crate) fn give_back(&mut self, taken: &[Range<usize>]) {
        taken.iter().for_each(|pages| self.buffer.give_back(pages));
    }

    fn add(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(LongRead::default());
            self.slots.len() as u32 - 1
        })
    }
}

/// The buffer of long reads. It takes memory with the first one.
struct ReadMemory {
    pages: usize,
    memory: Option<AlignedBuf>,
    /// A bit for each page in use; a read lies within one word.
    used: [u64; MAX_PAGES / WORD],
}

impl ReadMemory {
    fn new(pages: usize) -> ReadMemory {
        let mut used = [u64::MAX; MAX_PAGES / WORD];
        for page in 0..pages {
            used[page / WORD] &= !(1 << (page % WORD));
        }
        ReadMemory {
            pages,
            memory: None,
            used,
        }
    }

    /// Takes `count` pages that follow each other, if so many are free.
    fn take(&mut self, count: usize) -> Option<Range<usize>> {
        for (word, used) in self.used.iter_mut().enumerate() {
            // A bit stays where so many from there on are free.
            let mut free = !*used;
            let mut length = 1;
            while length < count {
                let more = length.min(count - length);
                free &= free >> more;
                length += more;
            }
            if free != 0 {
                let first = free.trailing_zeros() as usize;
                *used |= ReadMemory::bits(first, count);
                let first = word * WORD + first;
                return Some(first..first + count);
            }
        }
        None
    }

    fn give_back(&mut self, pages: &Range<usize>) {
        self.used[pages.start / WORD] &= !ReadMemory::bits(pages.start % WORD, pages.len());
    }

    /// `count` bits, at least one, from `first` on.
    fn bits(first: usize, count: usize) -> u64 {
        (u64::MAX >> (WORD - count)) << first
    }
}

impl Buffer {
    /// Starts reads of pages that will be wanted soon, as long as frames, buffers and a
    /// share of the queue's depth are free; `false` if some are not read.
    pub(crate) fn read_ahead(&self, worker: &Worker, pages: &[PageId]) -> bool {
        let most = worker.depth() as usize / 2;
        self.start_ahead(worker, pages, most) == pages.len()
    }

    /// Starts reading pages that will be wanted soon, the first ones first, while fewer than `most`
    /// reads are in flight; how many of the first ones need not be asked for again. Page 0 stands
    /// for none.
    ///
    /// A first read of several pages is started in any case: the caller would read the first page
    /// alone otherwise. So the more scans there are, the fewer reads each has in flight, but these
    /// stay as long as they are.
    pub(crate) fn start_ahead(&self, worker: &Worker, pages: &[PageId], most: usize) -> usize {
        let (mut wanted, mut runs, limit) = {
            let mut reads = self.own(worker).long_reads.borrow_mut();
            let scratch = (
                std::mem::take(&mut reads.wanted),
                std::mem::take(&mut reads.runs),
            );
            (scratch.0, scratch.1, reads.limit())
        };
        wanted.clear();
        for (rank, &page) in pages.iter().enumerate() {
            if page == PageId(0) {
                continue;
            }
            if let PagePlace::Stored(address) = self.pool.mapping.place(page)
                && address.length() as usize == PAGE_SIZE
            {
                wanted.push(WantedPage {
                    address,
                    page,
                    rank,
                });
            }
        }
        find_runs(&mut wanted, &mut runs, limit);
        let mut done = pages.len();
        for (n, run) in runs.iter().enumerate() {
            let exceeds = n == 0 && run.pages.len() > 1;
            let has_started = (exceeds || self.own(worker).loads.borrow().reads < most)
                && match &wanted[run.pages.clone()] {
                    [alone] => !matches!(self.start_load(worker, alone.page), LoadStart::NoFrame),
                    several => self.start_long_read(worker, several),
                };
            if !has_started {
                done = run.rank;
                break;
            }
        }
        let mut reads = self.own(worker).long_reads.borrow_mut();
        (reads.wanted, reads.runs) = (wanted, runs);
        done
    }

    /// Starts one read of several pages, ascending in one segment; `false` if there is no frame or
    /// no buffer for some of them.
    fn start_long_read(&self, worker: &Worker, pages: &[WantedPage]) -> bool {
        let mut part = pages;
        // Bound: half of them each time.
        let (at, mut loads, buffer) = loop {
            let [first, .., last] = part else {
                // Nothing is left of the buffer.
                return false;
            };
            let bytes = last.address.offset() + PAGE_SIZE as u32 - first.address.offset();
            let mut reads = self.own(worker).long_reads.borrow_mut();
            if let Some(buffer) = reads.buffer.take((bytes as usize).div_ceil(PAGE_SIZE)) {
                let at = reads.add();
                let loads = std::mem::take(&mut reads.slots[at as usize].loads);
                break (at, loads, buffer);
            }
            let half = part.len() / 2;
            let is_ascending = first.rank < last.rank;
            part = match is_ascending {
                true => &part[..half],
                false => &part[part.len() - half..],
            };
        };
        let mut ends: Option<(Address, Address)> = None;
        let mut has_all = part.len() == pages.len();
        for wanted in part {
            match self.begin_load(worker, wanted.page, wanted.address) {
                Ok(slot) => {
                    loads.push(slot);
                    ends = Some((ends.map_or(wanted.address, |ends| ends.0), wanted.address));
                }
                Err(LoadStart::NoFrame) => {
                    has_all = false;
                    break;
                }
                // It has been written elsewhere since, or is gone.
                Err(_) => {}
            }
        }
        match (ends, &loads[..]) {
            (Some((start, end)), [_, _, ..]) => {
                let length = end.offset() + PAGE_SIZE as u32 - start.offset();
                self.submit_long_read(worker, at, start, length, loads, buffer);
            }
            (_, rest) => {
                rest.iter().for_each(|&slot| self.submit_load(worker, slot));
                self.end_long_read(worker, at, loads, &buffer);
            }
        }
        has_all
    }

    fn submit_long_read(
        &self,
        worker: &Worker,
        at: u32,
        start: Address,
        length: u32,
        loads: Vec<u32>,
        buffer: Range<usize>,
    ) {
        self.own(worker).loads.borrow_mut().reads += 1;
        let memory = self.long_read_memory(worker, buffer.start);
        self.own(worker).long_reads.borrow_mut().slots[at as usize] = LongRead {
            buffer,
            start: start.offset(),
            length,
            loads,
        };
        let io = Io::read(self.shared.offset_of(start), memory, length, 0);
        // SAFETY: these pages of the buffer are this read's until `end_long_read`; the buffer stays
        // where it is, and goes after the worker, whose channel waits for what is in flight.
        unsafe {
            worker.submit_background(io, LONG_READ | u64::from(at));
        }
    }

    /// The memory of page `at` of the buffer.
    fn long_read_memory(&self, worker: &Worker, at: usize) -> *mut u8 {
        let mut reads = self.own(worker).long_reads.borrow_mut();
        let buffer = &mut reads.buffer;
        let bytes = buffer.pages * PAGE_SIZE;
        let is_new = buffer.memory.is_none();
        let memory = buffer.memory.get_or_insert_with(|| AlignedBuf::new(bytes));
        let start = memory.as_mut_ptr();
        drop(reads);
        if is_new {
            // SAFETY: as above. A refusal costs time only.
            let _ = unsafe { worker.register_more((start, bytes)) };
        }
        start.wrapping_add(at * PAGE_SIZE)
    }

    /// Ends a long read, and the loads of its pages, or reads each of them alone.
    pub(crate) fn long_read_completed(
        &self,
        worker: &Worker,
        at: u32,
        result: Result<(), IoError>,
    ) {
        self.own(worker).loads.borrow_mut().reads -= 1;
        let LongRead {
            buffer,
            start,
            length,
            loads,
        } = std::mem::take(&mut self.own(worker).long_reads.borrow_mut().slots[at as usize]);
        let has_failed = result.is_err() && !canary::is_on(Canary::TrustFailedReads);
        if has_failed {
            loads
                .iter()
                .for_each(|&slot| self.submit_load(worker, slot));
        } else {
            let memory = self.long_read_memory(worker, buffer.start);
            for &slot in &loads {
                let (_, frame, address) = self.own(worker).loads.borrow().target(slot);
                let from = memory.wrapping_add((address.offset() - start) as usize);
                // SAFETY: the page is a part of the read, which is over, and its pages of the
                // buffer are still its own: nothing writes to them.
                let bytes = unsafe { &*from.cast::<[u8; PAGE_SIZE]>() };
                self.pool.frames.words(frame).store_all(bytes);
                self.end_load(worker, slot, Ok(()));
            }
            let between = u64::from(length).saturating_sub((loads.len() * PAGE_SIZE) as u64);
            Counters::add(&self.shared.counters.bytes_read, between);
        }
        self.end_long_read(worker, at, loads, &buffer);
    }

    fn end_long_read(&self, worker: &Worker, at: u32, mut loads: Vec<u32>, buffer: &Range<usize>) {
        let mut reads = self.own(worker).long_reads.borrow_mut();
        reads.buffer.give_back(buffer);
        loads.clear();
        reads.slots[at as usize].loads = loads;
        reads.free.push(at);
    }
}

/// Sorts the wanted pages, each once, by place, and finds those that are read together, in at most
/// `limit` bytes; what is wanted first comes first.
fn find_runs(wanted: &mut Vec<WantedPage>, runs: &mut Vec<Run>, limit: u32) {
    runs.clear();
    wanted.sort_unstable_by_key(|wanted| (wanted.address, wanted.rank));
    wanted.dedup_by_key(|wanted| wanted.address);
    let mut first = 0;
    while first < wanted.len() {
        let start = wanted[first].address;
        let mut rank = wanted[first].rank;
        let mut end = first + 1;
        while let (Some(next), last) = (wanted.get(end), wanted[end - 1].address) {
            let next_end = next.address.offset() + PAGE_SIZE as u32;
            if next.address.segment() != start.segment()
                || next.address.offset() > last.offset() + PAGE_SIZE as u32 + MAX_GAP
                || next_end - start.offset() > limit
            {
                break;
            }
            rank = rank.min(next.rank);
            end += 1;
        }
        runs.push(Run {
            pages: first..end,
            rank,
        });
        first = end;
    }
    runs.sort_unstable_by_key(|run| run.rank);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_buffer_are_taken_once() {
        let mut buffer = ReadMemory::new(70);
        let mut taken = Vec::new();
        while let Some(pages) = buffer.take(16) {
            taken.push(pages);
        }
        assert_eq!(taken, [0..16, 16..32, 32..48, 48..64]);
        assert_eq!(buffer.take(7), None);
        assert_eq!(buffer.take(6), Some(64..70));
        buffer.give_back(&(16..32));
        assert_eq!(buffer.take(5), Some(16..21));
        assert_eq!(buffer.take(12), None);
        assert_eq!(buffer.take(11), Some(21..32));
        assert_eq!(buffer.take(1), None);
        let mut whole = ReadMemory::new(MAX_PAGES);
        assert_eq!(whole.take(WORD), Some(0..WORD));
        whole.give_back(&(0..WORD));
        assert_eq!(whole.used, [0; MAX_PAGES / WORD]);
        assert_eq!(ReadMemory::new(0).take(1), None);
    }

    fn runs_of(places: &[(u32, u32)], limit: u32) -> Vec<(Vec<usize>, usize)> {
        let mut wanted: Vec<_> = places
            .iter()
            .enumerate()
            .map(|(rank, &(segment, page))| WantedPage {
                address: Address::new(segment, page * PAGE_SIZE as u32, PAGE_SIZE as u32),
                page: PageId(1 + rank as u64),
                rank,
            })
            .collect();
        let mut runs = Vec::new();
        find_runs(&mut wanted, &mut runs, limit);
        runs.iter()
            .map(|run| {
                let pages = &wanted[run.pages.clone()];
                (pages.iter().map(|page| page.rank).collect(), run.rank)
            })
            .collect()
    }

    #[test]
    fn neighbours_are_found_whatever_their_order() {
        let limit = 4 * PAGE_SIZE as u32;
        // Descending, over a gap of one page, not over one of two.
        let reverse = [(1, 9), (1, 8), (1, 6), (1, 3)];
        assert_eq!(runs_of(&reverse, limit), [(vec![2, 1, 0], 0), (vec![3], 3)]);
        // Another segment; no longer than the limit; once.
        let many = [(2, 0), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0)];
        assert_eq!(
            runs_of(&many, limit),
            [(vec![0], 0), (vec![1, 2, 3, 4], 1), (vec![5], 5)]
        );
        // The last page of a segment is no neighbour of the next one's first.
        let apart = [(1, 15), (2, 0)];
        assert_eq!(runs_of(&apart, limit), [(vec![0], 0), (vec![1], 1)]);
    }
}
