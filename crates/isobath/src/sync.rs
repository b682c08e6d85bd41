//! The sole source of atomics, locks and cells that are set once.
//!
//! Everything that threads share goes through here. A build that has simulations
//! gets types that ask before each access whether a simulation runs on this
//! thread and switches to another worker there ([`interrupt`]); every other
//! build gets the types of `std` and `parking_lot` themselves.

#[cfg(any(test, feature = "simulation"))]
pub(crate) mod interrupt;
#[cfg(any(test, feature = "simulation"))]
mod simulated;

#[cfg(any(test, feature = "simulation"))]
pub(crate) use simulated::{Mutex, OnceLock, atomic, spin_loop};

/// Atomics.
#[cfg(not(any(test, feature = "simulation")))]
pub(crate) mod atomic {
    #[allow(unused_imports, reason = "offered to all modules, used or not")]
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

#[cfg(not(any(test, feature = "simulation")))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(any(test, feature = "simulation")))]
pub(crate) use std::hint::spin_loop;
#[cfg(not(any(test, feature = "simulation")))]
pub(crate) use std::sync::OnceLock;

/// Threads wait on it for others; in simulations no thread does.
pub(crate) use parking_lot::Condvar;
#[allow(unused_imports, reason = "offered to all modules, used or not")]
pub(crate) use parking_lot::MutexGuard;

/// Atomics and locks of code that is model-checked: under `--cfg loom` they come from
/// `loom`, which explores every interleaving that the memory model allows.
#[cfg(loom)]
pub(crate) mod modelled {
    pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

    /// With the interface of `parking_lot`.
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}

/// As they are elsewhere.
#[cfg(not(loom))]
pub(crate) mod modelled {
    pub(crate) use super::Mutex;
    pub(crate) use super::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
}

/// The atomics of bytes that are read optimistically: a page has 512 of them,
/// and the reader asks afterwards whether they held. Code that copies them says
/// itself where a simulation may interrupt it.
pub(crate) mod bytes {
    pub(crate) use std::sync::atomic::AtomicU64;

    /// A simulation may hold the caller back here.
    #[cfg(any(test, feature = "simulation"))]
    #[inline(always)]
    #[track_caller]
    pub(crate) fn point() {
        super::interrupt::point(std::panic::Location::caller());
    }

    /// Nothing: there are no simulations.
    #[cfg(not(any(test, feature = "simulation")))]
    #[inline(always)]
    pub(crate) fn point() {}
}

#[cfg(any(test, feature = "simulation"))]
pub(crate) use interrupt::{drive, drive_to_end};

/// Takes a step of the simulation that this thread runs; there is none.
#[cfg(not(any(test, feature = "simulation")))]
#[inline(always)]
pub(crate) fn drive() -> bool {
    false
}

/// Steps the simulation that this thread runs until its workers have ended.
#[cfg(not(any(test, feature = "simulation")))]
pub(crate) fn drive_to_end() {}

/// Hash tables whose order is the same in every run, so that simulations repeat.
pub(crate) type HashMap<K, V> =
    std::collections::HashMap<K, V, std::hash::BuildHasherDefault<std::hash::DefaultHasher>>;
/// The same for sets.
pub(crate) type HashSet<K> =
    std::collections::HashSet<K, std::hash::BuildHasherDefault<std::hash::DefaultHasher>>;
