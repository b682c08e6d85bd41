//! The sole source of atomics, locks and threads for code that is model-checked.
//!
//! Under `--cfg loom` the primitives come from `loom`, which explores every
//! interleaving that the memory model allows; otherwise they are `std`'s and
//! `parking_lot`'s.

#[cfg(loom)]
pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[cfg(not(loom))]
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

/// Hash tables whose order is the same in every run, so that simulations repeat.
pub(crate) type HashMap<K, V> =
    std::collections::HashMap<K, V, std::hash::BuildHasherDefault<std::hash::DefaultHasher>>;
/// The same for sets.
pub(crate) type HashSet<K> =
    std::collections::HashSet<K, std::hash::BuildHasherDefault<std::hash::DefaultHasher>>;
