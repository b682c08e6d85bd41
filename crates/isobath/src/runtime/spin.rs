//! Looking for a moment before a thread sleeps: for a result that a worker is about to send, for
//! work that a thread is about to hand over.
//!
//! To put a thread to sleep and to wake it costs more than most operations in memory, on a virtual
//! machine tens of microseconds. How long to look is learnt: where what is waited for came in time,
//! longer; if it did not, half as long, and in the end not at all, but for one wait of many,
//! which tells whether that has changed.

use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{OnceLock, spin_loop};

/// Longest time that a thread looks for a result: longer than it takes to wake a worker, else the
/// result would come too late as long as the worker sleeps between two pieces of work.
pub(crate) const FOR_A_RESULT: Duration = Duration::from_micros(60);
/// Longest time that a worker looks for work. Work that comes later is worth a sleep, in which
/// other threads run.
pub(crate) const FOR_WORK: Duration = Duration::from_micros(20);
/// Shorter looks are not limited: any thread may look for so long.
const LEAST: Duration = Duration::from_micros(1);
/// One wait in this many looks even though the last ones did so in vain.
const PROBED: u32 = 64;
/// Looks between two readings of the clock.
const LOOKS: u32 = 16;

/// Threads that look.
struct Looking(AtomicU32);

/// The threads of the process that look.
static LOOKING: Looking = Looking(AtomicU32::new(0));

/// Threads of the process that may look at once: one for every two processors, since each waits for
/// a thread that needs the other processor.
fn places() -> u32 {
    static PLACES: OnceLock<u32> = OnceLock::new();
    PLACES.get().copied().unwrap_or_else(|| {
        let processors = std::thread::available_parallelism();
        let places = processors.map_or(0, |count| count.get() as u32 / 2);
        // Another thread may have been quicker, with the same number.
        let _ = PLACES.set(places);
        places
    })
}

/// The time that waits of one kind have learnt to look.
pub(crate) struct Spin {
    others: &'static Looking,
    most: Duration,
    budget_ns: AtomicU32,
    in_vain: AtomicU32,
}

impl Spin {
    /// Looks for at most so long.
    pub(crate) fn new(most: Duration) -> Spin {
        Spin {
            others: &LOOKING,
            most,
            budget_ns: AtomicU32::new(0),
            in_vain: AtomicU32::new(0),
        }
    }

    /// Looks for a moment whether `is_there`, or `is_other`, from which nothing is learnt; whether
    /// one of them was. Never in a simulation, whose threads wait for each other's steps.
    pub(crate) fn until(
        &self,
        is_there: impl Fn() -> bool,
        is_other: impl FnMut() -> bool,
    ) -> bool {
        if places() == 0 {
            return false;
        }
        let budget = match self.budget_ns.load(Ordering::Relaxed) {
            0 => {
                let in_vain = self.in_vain.fetch_add(1, Ordering::Relaxed);
                if !in_vain.is_multiple_of(PROBED) {
                    return false;
                }
                self.most
            }
            budget => Duration::from_nanos(u64::from(budget)),
        };
        let (found, next) = match self.look(budget, is_there, is_other) {
            Found::Awaited => (true, (budget + self.most) / 2),
            Found::Nothing => (false, budget / 2),
            Found::Other => return true,
            Found::NoPlace => return false,
        };
        let next = if next < LEAST { Duration::ZERO } else { next };
        self.budget_ns
            .store(next.as_nanos() as u32, Ordering::Relaxed);
        found
    }

    fn look(
        &self,
        budget: Duration,
        is_there: impl Fn() -> bool,
        mut is_other: impl FnMut() -> bool,
    ) -> Found {
        #[allow(clippy::disallowed_methods, reason = "no simulation spins")]
        let began = Instant::now();
        let mut place = None;
        loop {
            for _ in 0..LOOKS {
                if is_there() {
                    return Found::Awaited;
                }
                spin_loop();
            }
            if is_other() {
                return Found::Other;
            }
            if place.is_none() {
                // The thread that has looked before may be about to leave it.
                place = self.others.join();
            }
            let elapsed = began.elapsed();
            if elapsed >= budget {
                return Found::Nothing;
            }
            if place.is_none() && elapsed >= LEAST {
                return Found::NoPlace;
            }
        }
    }
}

/// A place among the threads that look.
struct Spinning(&'static Looking);

impl Looking {
    fn join(&'static self) -> Option<Spinning> {
        let more = |looking: u32| (looking < places()).then_some(looking + 1);
        let joined = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        joined.is_ok().then(|| Spinning(self))
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How looking ended.
enum Found {
    Awaited,
    Other,
    Nothing,
    /// There was no place to look for it.
    NoPlace,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: fn() -> bool = || false;

    /// Whether a wait for nothing looks at all.
    fn looks(spin: &Spin) -> bool {
        let looked = std::cell::Cell::new(false);
        let found = spin.until(
            || {
                looked.set(true);
                false
            },
            NEVER,
        );
        assert!(!found);
        looked.get()
    }

    #[test]
    fn it_learns_what_waits_are_worth() {
        static ALONE: Looking = Looking(AtomicU32::new(0));
        let spin = Spin {
            others: &ALONE,
            ..Spin::new(FOR_A_RESULT)
        };
        if places() == 0 {
            return;
        }
        for _ in 0..10 {
            assert!(spin.until(|| true, NEVER), "the first wait looks");
        }
        // Half as long each time, until it is not worth it.
        let in_vain = (0..1000).take_while(|_| looks(&spin)).count();
        assert_eq!(in_vain, 6);
        // Each of these looks halves its budget, too.
        let again = (0..PROBED).filter(|_| looks(&spin)).count();
        assert!((1..=6).contains(&again), "looked {again} times more");
        // One wait of this many finds out that it is worth it again.
        assert!((0..=PROBED).any(|_| spin.until(|| true, NEVER)));
        assert!(spin.until(|| true, NEVER));
    }

    #[test]
    fn other_work_ends_a_look_and_teaches_nothing() {
        let spin = Spin::new(FOR_WORK);
        if places() == 0 {
            return;
        }
        assert!(spin.until(|| true, NEVER));
        let budget = spin.budget_ns.load(Ordering::Relaxed);
        for _ in 0..100 {
            assert!(spin.until(|| false, || true));
        }
        assert_eq!(spin.budget_ns.load(Ordering::Relaxed), budget);
    }

    #[test]
    fn there_is_a_place_for_every_two_processors() {
        static ALL: Looking = Looking(AtomicU32::new(0));
        for _ in 0..2 {
            let joined: Vec<Spinning> = std::iter::from_fn(|| ALL.join()).collect();
            assert_eq!(joined.len(), places() as usize);
        }
        assert_eq!(ALL.0.load(Ordering::Relaxed), 0);
    }
}
