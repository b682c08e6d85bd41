//! One value for each worker, owned by the part that it belongs to.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::{Worker, WorkerHandle, WorkerPool};
use crate::sync::Mutex;

/// One worker's value, apart from the others' in memory.
#[repr(align(128))]
struct OfWorker<T> {
    handle: Arc<WorkerHandle>,
    value: T,
}

/// A `T` for each worker, which only that worker's thread reaches: so it needs no lock, whatever
/// `T` is.
pub(crate) struct PerWorker<T> {
    own: Box<[OfWorker<T>]>,
    /// Held by the thread that looks at what workers have left.
    ended: Mutex<()>,
}

// SAFETY: a value is reached through `of`, with the worker of its handle in hand. There is one for
// each handle (`WorkerHandle::claim`), and it is not `Sync`: so one thread at a time reaches the
// value, and passes it on to others no sooner than the worker, which is borrowed as long as the
// value is. Or it is reached through `for_each_ended`, once there is no such worker any more, nor
// ever will be, under a lock.
unsafe impl<T: Send> Sync for PerWorker<T> {}

impl<T> PerWorker<T> {
    /// Calls `make` for each index.
    pub(crate) fn new(workers: &WorkerPool, mut make: impl FnMut(usize) -> T) -> PerWorker<T> {
        let handles = workers.handles().iter().enumerate();
        let own = handles.map(|(index, handle)| OfWorker {
            handle: Arc::clone(handle),
            value: make(index),
        });
        PerWorker {
            own: own.collect(),
            ended: Mutex::new(()),
        }
    }

    /// The value of `worker`.
    #[inline]
    pub(crate) fn of<'w>(&'w self, worker: &'w Worker) -> &'w T {
        let own = &self.own[worker.index];
        assert!(
            Arc::ptr_eq(&own.handle, worker.handle()),
            "a worker of another store"
        );
        &own.value
    }

    /// Calls `visit` with what the workers that are gone have left.
    pub(crate) fn for_each_ended(&self, visit: impl Fn(&T)) {
        let _alone = self.ended.lock();
        let ended = self.own.iter().filter(|own| own.handle.has_ended());
        ended.for_each(|own| visit(&own.value));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::runtime::Limits;

    fn worker(workers: &WorkerPool, index: usize) -> Worker {
        let volume = isobath_io::Volume::in_memory(1 << 20, None);
        let limits = Limits {
            tasks: 1,
            system_tasks: 0,
            stack_bytes: 64 << 10,
        };
        let channel = volume
            .channel(&isobath_io::ChannelOptions::with_depth(4))
            .unwrap();
        Worker::new(
            index,
            limits,
            Arc::clone(&workers.handles()[index]),
            channel,
        )
        .unwrap()
    }

    #[test]
    fn each_worker_reaches_its_own_value() {
        let workers = WorkerPool::new(2);
        let values = PerWorker::new(&workers, Cell::new);
        let (first, second) = (worker(&workers, 0), worker(&workers, 1));
        values.of(&first).set(7);
        assert_eq!((values.of(&first).get(), values.of(&second).get()), (7, 1));
    }

    #[test]
    fn what_workers_have_left_is_reached_once_they_are_gone() {
        let workers = WorkerPool::new(2);
        let values = PerWorker::new(&workers, Cell::new);
        let (first, second) = (worker(&workers, 0), worker(&workers, 1));
        let visit = || values.for_each_ended(|value| value.set(value.get() + 10));
        visit();
        drop(first);
        visit();
        assert_eq!(values.of(&second).get(), 1);
        drop(second);
        visit();
        let sum = Cell::new(0);
        values.for_each_ended(|value| sum.set(sum.get() + value.get()));
        assert_eq!(sum.get(), 20 + 11);
    }

    #[test]
    #[should_panic(expected = "a worker of another store")]
    fn a_worker_of_another_store_reaches_nothing() {
        let values = PerWorker::new(&WorkerPool::new(1), Cell::new);
        let others = WorkerPool::new(1);
        values.of(&worker(&others, 0));
    }

    #[test]
    #[should_panic(expected = "one worker for each handle")]
    fn there_is_one_worker_for_each_handle() {
        let workers = WorkerPool::new(1);
        let _first = worker(&workers, 0);
        worker(&workers, 0);
    }
}
