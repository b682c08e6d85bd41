//! Completions at the times that a timing model says.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A completion later than its time by more than this counts as late, ns.
const LATE_NS: u64 = 100_000;

/// The work at a completion's time.
type Completion = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    /// By time and number: those of the same time come in their order.
    due: BTreeMap<(u64, u64), Completion>,
    sequence: u64,
}

impl Queue {
    fn push(&mut self, at_ns: u64, completion: Completion) {
        self.sequence += 1;
        self.due.insert((at_ns, self.sequence), completion);
    }
}

struct Shared {
    began: Instant,
    queue: Mutex<Queue>,
    changed: Condvar,
    ends: AtomicBool,
    paced: AtomicU64,
    late: AtomicU64,
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

/// Delivers completions on a thread of its own, each at its time on the clock that began with this.
pub(super) struct Pacer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Pacer {
    pub(super) fn start() -> std::io::Result<Pacer> {
        let shared = Arc::new(Shared {
            began: Instant::now(),
            queue: Mutex::default(),
            changed: Condvar::new(),
            ends: AtomicBool::new(false),
            paced: AtomicU64::new(0),
            late: AtomicU64::new(0),
        });
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("vssd-pacer".into())
            .spawn(move || deliver(&for_thread))?;
        Ok(Pacer {
            shared,
            thread: Some(thread),
        })
    }

    /// Nanoseconds since this began.
    pub(super) fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Calls `completion` at `at_ns`, or at once if that has passed.
    pub(super) fn at(&self, at_ns: u64, completion: impl FnOnce() + Send + 'static) {
        let queue = self.shared.queue.lock();
        let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
        queue.push(at_ns, Box::new(completion));
        self.shared.changed.notify_one();
    }

    /// Completions delivered, and those of them that were late.
    pub(super) fn counts(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.shared.paced), count(&self.shared.late))
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its thread.
            let _ = thread.join();
        }
    }
}

/// Delivers until the end; later ones are delivered then.
fn deliver(shared: &Shared) {
    // Sleeps end on time instead of 50 µs later.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let ends = shared.ends.load(Ordering::Relaxed);
        let Some(first) = queue.due.keys().next().map(|at| at.0) else {
            if ends {
                return;
            }
            let wait = Duration::from_millis(100);
            let waited = shared.changed.wait_timeout(queue, wait);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            continue;
        };
        let now = shared.now_ns();
        if now < first && !ends {
            let wait = Duration::from_nanos(first - now);
            let waited = shared.changed.wait_timeout(queue, wait);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        if let Some((_, completion)) = queue.due.pop_first() {
            drop(queue);
            shared.paced.fetch_add(1, Ordering::Relaxed);
            if now > first + LATE_NS {
                shared.late.fetch_add(1, Ordering::Relaxed);
            }
            completion();
            queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn completions_come_in_the_order_of_their_times_and_not_before() {
        let pacer = Pacer::start().unwrap();
        let (sender, receiver) = channel();
        let shared = pacer.shared.clone();
        let now = pacer.now_ns();
        {
            let mut queue = shared.queue.lock().unwrap();
            for at in [now + 9_000_000, now + 1_000_000, 0, now + 5_000_000] {
                let (sender, shared) = (sender.clone(), shared.clone());
                let completion = move || sender.send((at, shared.now_ns())).unwrap();
                queue.push(at, Box::new(completion));
            }
            shared.changed.notify_one();
        }
        let got: Vec<(u64, u64)> = (0..4).map(|_| receiver.recv().unwrap()).collect();
        assert!(got.is_sorted_by_key(|&(due, _)| due), "{got:?}");
        assert!(
            got.iter().all(|&(due, delivered)| delivered >= due),
            "{got:?}"
        );
        assert_eq!(pacer.counts().0, 4);
    }

    #[test]
    fn nothing_is_forgotten_at_the_end() {
        let (sender, receiver) = channel();
        let pacer = Pacer::start().unwrap();
        pacer.at(u64::MAX / 2, move || sender.send(()).unwrap());
        let shared = pacer.shared.clone();
        drop(pacer);
        receiver.try_recv().unwrap();
        // It came before its time, and so was not late.
        assert_eq!(shared.paced.load(Ordering::Relaxed), 1);
        assert_eq!(shared.late.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn completions_of_one_time_come_in_the_order_in_which_they_were_asked_for() {
        let (sender, receiver) = channel();
        let pacer = Pacer::start().unwrap();
        for number in 0..100 {
            let sender = sender.clone();
            let at_ns = u64::MAX / 2 + number / 50;
            pacer.at(at_ns, move || sender.send(number).unwrap());
        }
        drop(pacer);
        let got: Vec<u64> = receiver.try_iter().collect();
        assert_eq!(got, (0..100).collect::<Vec<_>>());
    }
}
