//! The keys that commits change now.
//!
//! A commit locks the numbers of its keys in ascending order, so that no two
//! wait for each other. A commit that has to wait parks its task; a lock passes
//! to the one that has waited longest.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::runtime::{TaskRef, Worker};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

const SHARDS: usize = 64;

/// Key numbers are hashes already; this spreads them over all bits.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A task that waits for a lock.
struct Waiter {
    granted: AtomicBool,
    task: TaskRef,
}

/// The waiters for a lock that is held.
type Held = HashMap<u64, VecDeque<Arc<Waiter>>, BuildHasherDefault<Spread>>;

/// The locks of a store.
pub(crate) struct Locks {
    shards: Box<[Mutex<Held>]>,
}

impl Locks {
    pub(crate) fn new() -> Locks {
        Locks {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, number: u64) -> &Mutex<Held> {
        &self.shards[number as usize % SHARDS]
    }

    /// Whether the key is locked.
    pub(crate) fn is_locked(&self, number: u64) -> bool {
        self.shard(number).lock().contains_key(&number)
    }

    /// How many tasks wait for keys, if no task has the list of these now.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(crate) fn waiters(&self) -> usize {
        let shards = self.shards.iter().filter_map(|shard| shard.try_lock());
        shards
            .map(|held| held.values().map(VecDeque::len).sum::<usize>())
            .sum()
    }

    /// Locks one key, in a task, which holds no other lock.
    pub(crate) fn one(&self, worker: &Worker, number: u64) -> Locked<'_> {
        self.acquire(worker, number);
        Locked {
            locks: self,
            numbers: Numbers::One(number),
        }
    }

    /// Locks keys, in a task, which holds no other lock.
    pub(crate) fn all(&self, worker: &Worker, mut numbers: Vec<u64>) -> Locked<'_> {
        numbers.sort_unstable();
        numbers.dedup();
        for &number in &numbers {
            self.acquire(worker, number);
        }
        Locked {
            locks: self,
            numbers: Numbers::Many(numbers),
        }
    }

    #[inline]
    fn acquire(&self, worker: &Worker, number: u64) {
        assert!(worker.in_task(), "a lock is for a task");
        let mut held = self.shard(number).lock();
        let Some(waiters) = held.get_mut(&number) else {
            held.insert(number, VecDeque::new());
            return;
        };
        #[expect(clippy::expect_used, reason = "only tasks commit, and only they wait")]
        let task = worker.current_task().expect("a lock is for a task");
        let waiter = Arc::new(Waiter {
            granted: AtomicBool::new(false),
            task,
        });
        waiters.push_back(Arc::clone(&waiter));
        drop(held);
        // A parked task may be woken for another reason.
        while !waiter.granted.load(Ordering::Acquire) {
            worker.park();
        }
    }

    fn release(&self, number: u64) {
        let mut held = self.shard(number).lock();
        let next = held.get_mut(&number).and_then(VecDeque::pop_front);
        if next.is_none() {
            held.remove(&number);
        }
        drop(held);
        if let Some(waiter) = next {
            waiter.granted.store(true, Ordering::Release);
            waiter.task.unpark();
        }
    }
}

enum Numbers {
    One(u64),
    Many(Vec<u64>),
}

/// Locked keys; dropping this unlocks them.
pub(crate) struct Locked<'l> {
    locks: &'l Locks,
    numbers: Numbers,
}

impl Locked<'_> {
    pub(crate) fn numbers(&self) -> &[u64] {
        match &self.numbers {
            Numbers::One(number) => std::slice::from_ref(number),
            Numbers::Many(numbers) => numbers,
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        match &self.numbers {
            Numbers::One(number) => self.locks.release(*number),
            Numbers::Many(numbers) => numbers.iter().for_each(|&n| self.locks.release(n)),
        }
    }
}
