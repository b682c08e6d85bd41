//! The sole source of atomics, locks and cells that are set once.
//!
//! Everything that threads share goes through here, so that whoever runs the
//! engine may decide what happens between two accesses. Builds without
//! simulations get the types of `std` and `parking_lot` themselves.

/// Atomics.
pub(crate) mod atomic {
    #[allow(unused_imports, reason = "which ones depends on what is built")]
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// Atomics of code that is model-checked: under `--cfg loom` they come from
/// `loom`, which explores every interleaving that the memory model allows.
#[cfg(loom)]
pub(crate) mod modelled {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[cfg(not(loom))]
pub(crate) use atomic as modelled;

pub(crate) use parking_lot::{Condvar, Mutex};
#[allow(unused_imports, reason = "which ones depends on what is built")]
pub(crate) use parking_lot::{MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::OnceLock;

/// Hash tables whose order is the same in every run, so that simulations repeat.
pub(crate) type HashMap<K, V> =
    std::collections::HashMap<K, V, std::hash::BuildHasherDefault<std::hash::DefaultHasher>>;
/// The same for sets.
pub(crate) type HashSet<K> =
    std::collections::HashSet<K, std::hash::BuildHasherDefault<std::hash::DefaultHasher>>;
