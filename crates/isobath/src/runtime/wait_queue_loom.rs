//! The wait queue under loom, which runs every interleaving that the memory model allows:
//! `RUSTFLAGS="--cfg loom" cargo test -p isobath --release --lib wait_queue_loom`.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;

use super::wait_queue::{WaitQueue, Wakes};

/// Counts how often it was woken.
struct Woken(Arc<AtomicU64>);

impl Wakes for Woken {
    fn wake(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// The condition, shared as weakly as possible.
struct Shared {
    queue: WaitQueue<Woken>,
    reached: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            queue: WaitQueue::new(),
            reached: AtomicU64::new(0),
        })
    }

    fn raise(&self, to: u64) {
        self.reached.store(to, Relaxed);
        self.queue.wake(to);
    }

    /// Lists a waiter until `until`; its ticket, if it has to wait, and how often it was woken.
    fn enter(&self, until: u64) -> (Option<u64>, Arc<AtomicU64>) {
        let woken = Arc::new(AtomicU64::new(0));
        let ticket = self.queue.enter(until, Woken(Arc::clone(&woken)), || {
            self.reached.load(Relaxed) >= until
        });
        (ticket, woken)
    }
}

/// Another thread that raises the condition to 1.
fn raise_beside(shared: &Arc<Shared>) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || shared.raise(1))
}

#[test]
fn every_waiter_is_woken() {
    loom::model(|| {
        let shared = Shared::new();
        let waker = raise_beside(&shared);
        let (ticket, woken) = shared.enter(1);
        waker.join().unwrap();
        assert!(
            ticket.is_none() || woken.load(Relaxed) == 1,
            "a wake-up was lost"
        );
        assert!(!shared.queue.has_waiters());
    });
}

#[test]
fn of_two_waiters_each_is_woken_at_its_value() {
    loom::model(|| {
        let shared = Shared::new();
        let waiter = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.enter(1))
        };
        let waker = raise_beside(&shared);
        let (late, late_woken) = shared.enter(2);
        waker.join().unwrap();
        let (ticket, woken) = waiter.join().unwrap();
        assert!(
            ticket.is_none() || woken.load(Relaxed) == 1,
            "a wake-up was lost"
        );
        assert!(
            late.is_some() && late_woken.load(Relaxed) == 0,
            "woken early"
        );
        shared.raise(2);
        assert_eq!(late_woken.load(Relaxed), 1);
    });
}

#[test]
fn a_waiter_that_leaves_is_forgotten() {
    loom::model(|| {
        let shared = Shared::new();
        let waker = raise_beside(&shared);
        let (ticket, woken) = shared.enter(1);
        if let Some(ticket) = ticket {
            shared.queue.leave(ticket);
        }
        waker.join().unwrap();
        assert!(!shared.queue.has_waiters() && woken.load(Relaxed) <= 1);
    });
}
