//! Atomics, locks and cells that a simulation may interrupt before each access.

use std::panic::Location;

use super::interrupt;

/// Before an access: others may run now.
macro_rules! before {
    () => {
        interrupt::point(Location::caller())
    };
}

pub(crate) mod atomic {
    use std::panic::Location;

    use super::interrupt;

    pub(crate) use std::sync::atomic::{Ordering, fence};

    macro_rules! common {
        ($name:ident, $value:ty) => {
            /// As in `std`.
            #[repr(transparent)]
            #[derive(Default)]
            pub(crate) struct $name(std::sync::atomic::$name);

            #[allow(dead_code, reason = "as complete as in std")]
            impl $name {
                #[inline(always)]
                pub(crate) const fn new(value: $value) -> $name {
                    $name(std::sync::atomic::$name::new(value))
                }

                #[inline(always)]
                #[track_caller]
                pub(crate) fn load(&self, order: Ordering) -> $value {
                    before!();
                    self.0.load(order)
                }

                #[inline(always)]
                #[track_caller]
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    before!();
                    self.0.store(value, order);
                }

                #[inline(always)]
                #[track_caller]
                pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                    before!();
                    self.0.swap(value, order)
                }

                #[inline(always)]
                #[track_caller]
                pub(crate) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    before!();
                    self.0.compare_exchange(current, new, success, failure)
                }

                /// Fails only if the value differs, so that runs repeat.
                #[inline(always)]
                #[track_caller]
                pub(crate) fn compare_exchange_weak(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    before!();
                    self.0.compare_exchange(current, new, success, failure)
                }

                #[inline(always)]
                #[track_caller]
                pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                    before!();
                    self.0.fetch_and(value, order)
                }

                #[inline(always)]
                #[track_caller]
                pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    before!();
                    self.0.fetch_or(value, order)
                }

                #[inline(always)]
                #[track_caller]
                pub(crate) fn fetch_xor(&self, value: $value, order: Ordering) -> $value {
                    before!();
                    self.0.fetch_xor(value, order)
                }

                #[inline(always)]
                #[track_caller]
                pub(crate) fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    update: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    before!();
                    self.0.fetch_update(success, failure, update)
                }

                #[inline(always)]
                pub(crate) fn get_mut(&mut self) -> &mut $value {
                    self.0.get_mut()
                }

                #[inline(always)]
                pub(crate) fn into_inner(self) -> $value {
                    self.0.into_inner()
                }
            }

            impl std::fmt::Debug for $name {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    std::fmt::Debug::fmt(&self.0, f)
                }
            }
        };
    }

    macro_rules! arithmetic {
        ($name:ident, $value:ty, $($operation:ident),*) => {
            common!($name, $value);

            #[allow(dead_code, reason = "as complete as in std")]
            impl $name {
                $(
                    #[inline(always)]
                    #[track_caller]
                    pub(crate) fn $operation(&self, value: $value, order: Ordering) -> $value {
                        before!();
                        self.0.$operation(value, order)
                    }
                )*
            }
        };
    }

    common!(AtomicBool, bool);
    arithmetic!(AtomicU8, u8, fetch_add, fetch_sub, fetch_max, fetch_min);
    arithmetic!(AtomicU32, u32, fetch_add, fetch_sub, fetch_max, fetch_min);
    arithmetic!(AtomicU64, u64, fetch_add, fetch_sub, fetch_max, fetch_min);
    arithmetic!(
        AtomicUsize,
        usize,
        fetch_add,
        fetch_sub,
        fetch_max,
        fetch_min
    );
}

/// As in `parking_lot`; in a simulation, a task that finds it taken lets others run
/// until it is free.
#[derive(Default, Debug)]
pub(crate) struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

#[allow(dead_code, reason = "as complete as in parking_lot")]
impl<T> Mutex<T> {
    #[inline]
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(parking_lot::const_mutex(value))
    }

    #[inline]
    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

#[allow(dead_code, reason = "as complete as in parking_lot")]
impl<T: ?Sized> Mutex<T> {
    #[inline]
    #[track_caller]
    pub(crate) fn lock(&self) -> parking_lot::MutexGuard<'_, T> {
        before!();
        loop {
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
            if !interrupt::wait(Location::caller()) {
                return self.0.lock();
            }
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn try_lock(&self) -> Option<parking_lot::MutexGuard<'_, T>> {
        before!();
        self.0.try_lock()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// As in `std`.
#[derive(Default, Debug)]
pub(crate) struct OnceLock<T>(std::sync::OnceLock<T>);

impl<T> OnceLock<T> {
    pub(crate) const fn new() -> OnceLock<T> {
        OnceLock(std::sync::OnceLock::new())
    }

    #[inline]
    #[track_caller]
    pub(crate) fn get(&self) -> Option<&T> {
        before!();
        self.0.get()
    }

    #[inline]
    #[track_caller]
    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        before!();
        self.0.set(value)
    }
}

/// Waits a moment for another thread; in a simulation, lets others run.
#[inline]
#[track_caller]
pub(crate) fn spin_loop() {
    if !interrupt::wait(Location::caller()) {
        std::hint::spin_loop();
    }
}
