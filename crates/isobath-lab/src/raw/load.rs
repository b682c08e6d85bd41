//! The state that the threads of a measurement share, and the places of their I/Os.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use isobath_io::Volume;

use crate::raw::plan::{IoModel, RawPlan};

/// The threads run; nothing counts yet.
const WARMING: u8 = 0;
/// The measured window.
const MEASURING: u8 = 1;
/// Finish the I/Os in flight.
const STOPPING: u8 = 2;

/// A counter with a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Counter(pub(super) AtomicU64);

pub(super) struct Shared {
    phase: AtomicU8,
    /// Threads that have not started their I/Os yet.
    starting: AtomicU32,
    /// A thread met an error: the others stop.
    pub(super) failed: AtomicBool,
    /// I/Os completed, per thread, for the display.
    pub(super) done: Vec<Counter>,
    pub(super) places: Accesses,
}

/// The present phase, as a thread sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Warming,
    Measuring,
    Stopping,
}

impl Shared {
    pub(super) fn new(plan: &RawPlan, volume: &Volume, region: u64) -> Shared {
        Shared {
            phase: AtomicU8::new(WARMING),
            starting: AtomicU32::new(plan.threads),
            failed: AtomicBool::new(false),
            done: (0..plan.threads).map(|_| Counter::default()).collect(),
            places: Accesses::new(plan, volume, region),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        if self.failed.load(Ordering::Relaxed) {
            return Phase::Stopping;
        }
        match self.phase.load(Ordering::Relaxed) {
            WARMING => Phase::Warming,
            MEASURING => Phase::Measuring,
            _ => Phase::Stopping,
        }
    }

    pub(super) fn started(&self) {
        self.starting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn wait_until_all_run(&self) {
        while self.starting.load(Ordering::Relaxed) > 0 && !self.failed.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn open_window(&self) {
        self.phase.store(MEASURING, Ordering::Relaxed);
    }

    pub(super) fn stop(&self) {
        self.phase.store(STOPPING, Ordering::Relaxed);
    }

    pub(super) fn ios(&self) -> u64 {
        let each = self.done.iter().map(|c| c.0.load(Ordering::Relaxed));
        each.sum()
    }
}

/// The places that I/Os may go to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accesses {
    page: u64,
    pages: u64,
    threads: u64,
    streams: u64,
    /// For the assigned model: members, and pages of a stripe unit.
    assigned: Option<(u64, u64)>,
    read_percent: u32,
    random_percent: u32,
}

/// The places of one thread's I/Os, one after another.
pub(super) struct Stream {
    places: Accesses,
    /// Pages that this thread may use; page numbers below are within them.
    mine: u64,
    thread: u64,
    /// The next offset of each sequential stream.
    next: Vec<u64>,
    turn: usize,
    random: u64,
}

/// The place of an I/O, and whether it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) offset: u64,
    pub(super) read: bool,
}

impl Accesses {
    fn new(plan: &RawPlan, volume: &Volume, region: u64) -> Accesses {
        let page = u64::from(plan.page_bytes);
        let layout = volume.layout();
        let assigned = plan.model == IoModel::Assigned && layout.members > 1;
        Accesses {
            page,
            pages: region / page,
            threads: u64::from(plan.threads),
            streams: u64::from(plan.streams),
            assigned: assigned.then(|| (u64::from(layout.members), layout.stripe_unit / page)),
            read_percent: plan.read_percent,
            random_percent: plan.random_percent,
        }
    }

    pub(super) fn stream(&self, thread: u32, seed: u64) -> Stream {
        let thread = u64::from(thread);
        let (mine, first, room) = match self.assigned {
            None => {
                let room = self.pages / self.threads;
                (self.pages, room * thread, room)
            }
            Some((members, _)) => (self.pages / members, 0, self.pages / members),
        };
        // 128-bit, because pages × streams may not fit.
        let part = |i: u64| (u128::from(room) * u128::from(i) / u128::from(self.streams)) as u64;
        Stream {
            places: *self,
            mine,
            thread,
            next: (0..self.streams).map(|i| first + part(i)).collect(),
            turn: 0,
            // Never zero, and far apart for neighbouring threads.
            random: (seed ^ (thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1,
        }
    }
}

impl Stream {
    /// Xorshift64*.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn next(&mut self) -> Access {
        let dice = self.draw();
        let percent = |part: u64| ((part & 0xffff) * 100) >> 16;
        let read = percent(dice) < u64::from(self.places.read_percent);
        let random = percent(dice >> 16) < u64::from(self.places.random_percent);
        let page = if random {
            ((u128::from(self.draw()) * u128::from(self.mine)) >> 64) as u64
        } else {
            self.turn = (self.turn + 1) % self.next.len();
            let next = &mut self.next[self.turn];
            let page = *next;
            *next = if page + 1 < self.mine { page + 1 } else { 0 };
            page
        };
        let page = match self.places.assigned {
            None => page,
            Some((members, unit)) => {
                let row = page / unit * members + self.thread % members;
                row * unit + page % unit
            }
        };
        Access {
            offset: page * self.places.page,
            read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(plan: &RawPlan, pages: u64) -> Accesses {
        let volume = Volume::in_memory(pages * 4096, None);
        Accesses::new(plan, &volume, pages * 4096)
    }

    #[test]
    fn random_places_cover_the_range_evenly() {
        let plan = RawPlan {
            read_percent: 70,
            ..RawPlan::default()
        };
        let mut stream = places(&plan, 100).stream(3, 1);
        let mut hits = [0u32; 100];
        let mut reads = 0;
        for _ in 0..100_000 {
            let place = stream.next();
            hits[(place.offset / 4096) as usize] += 1;
            reads += u32::from(place.read);
        }
        assert!(hits.iter().all(|h| (850..1150).contains(h)), "{hits:?}");
        assert!((69_000..71_000).contains(&reads), "{reads}");
    }

    #[test]
    fn sequential_streams_of_threads_divide_the_range() {
        let plan = RawPlan {
            random_percent: 0,
            threads: 4,
            ..RawPlan::default()
        };
        let all = places(&plan, 100);
        for thread in 0..4 {
            let mut stream = all.stream(thread, 1);
            for i in 0..200 {
                let page = (u64::from(thread) * 25 + i) % 100;
                assert_eq!(stream.next().offset, page * 4096);
            }
        }
    }

    #[test]
    fn streams_of_a_thread_take_turns() {
        let plan = RawPlan {
            random_percent: 0,
            threads: 2,
            streams: 5,
            ..RawPlan::default()
        };
        let mut stream = places(&plan, 100).stream(1, 1);
        let pages: Vec<u64> = (0..10).map(|_| stream.next().offset / 4096).collect();
        assert_eq!(pages, [60, 70, 80, 90, 50, 61, 71, 81, 91, 51]);
    }

    #[test]
    fn an_assigned_thread_stays_on_its_drive() {
        let mut all = places(&RawPlan::default(), 8 * 30);
        all.assigned = Some((3, 8));
        for thread in 0..6 {
            let mut stream = all.stream(thread, 9);
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..10_000 {
                let page = stream.next().offset / 4096;
                assert_eq!(page / 8 % 3, u64::from(thread) % 3);
                seen.insert(page);
            }
            assert_eq!(seen.len(), 80);
        }
    }
}
