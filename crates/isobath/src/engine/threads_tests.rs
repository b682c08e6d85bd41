//! Waiters get an error if no task is free, memory runs out, or the worker has ended.

#![allow(
    clippy::big_endian_bytes,
    reason = "keys that ascend as their numbers do"
)]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use isobath_io::{AlignedBuf, FaultDevice, FaultPlan, Io, Volume};

use crate::buffer::FrameId;
use crate::checkpoint::SUPERBLOCK_OFFSETS;
use crate::engine::WorkerState;
use crate::page::{PAGE_SIZE, PageId};
use crate::runtime::{NO_STACKS, TaskId, Urgency};
use crate::sync::Mutex;
use crate::{Error, LoadError, Options, Simulation, Store, Tree};

fn options() -> Options {
    Options::new().pool_bytes(8 << 20).workers(1)
}

fn load(tree: &Tree) -> Result<u64, Error> {
    let value = |n: u32| vec![7; if n.is_multiple_of(40) { 5000 } else { 50 }];
    Ok(tree.bulk_load((0..200_u32).map(|n| (n.to_be_bytes(), value(n))))?)
}

#[test]
fn tasks_that_fill_all_slots_can_wait_for_other_tasks() {
    let options = options().tasks_per_worker(2);
    let simulation = Simulation::new(Volume::in_memory(0, None), &options, 3).unwrap();
    let store = simulation.store().clone();
    let trees: Vec<Tree> = (0..4)
        .map(|n| store.create_tree(&format!("t{n}")).unwrap())
        .collect();
    let tasks = trees.iter().cloned().map(|tree| {
        let store = store.clone();
        simulation.spawn(0, move || {
            let joined = store.spawn(|| store_free(3)).join().unwrap();
            let mut read = pin!(tree.insert_async(b"", b"v"));
            let read = match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(done) => done,
                Poll::Pending => panic!("a task waits for one that may never run"),
            };
            read.and_then(|()| load(&tree))
                .map(|loaded| loaded + joined)
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        assert_eq!(task.join().unwrap().unwrap(), 203);
    }
    for tree in &trees {
        assert_eq!(tree.range(..).count(), 201);
    }
    drop(store);
    simulation.close().unwrap();
}

fn store_free(n: u64) -> u64 {
    crate::yield_now();
    n
}

#[test]
fn a_load_in_a_task_that_fails_or_panics_leaves_nothing() {
    let simulation = Simulation::new(Volume::in_memory(0, None), &options(), 5).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    let loaded = tree.clone();
    let unordered = simulation.spawn(0, move || loaded.bulk_load([(b"b", b"1"), (b"a", b"2")]));
    assert!(matches!(
        unordered.join().unwrap(),
        Err(LoadError::LoadOrder { .. })
    ));
    let loaded = tree.clone();
    let panicked = simulation.spawn(0, move || {
        let records = (0..1000_u32).map(|n| {
            assert!(n < 700, "no more");
            (n.to_be_bytes(), [1; 100])
        });
        loaded.bulk_load(records)
    });
    assert!(panicked.join().unwrap_err().message.contains("no more"));
    assert_eq!(tree.range(..).count(), 0);
    let report = simulation.store().check(&mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    simulation.close().unwrap();
}

#[test]
fn without_memory_for_stacks_work_waits_for_other_work() {
    let simulation = Simulation::new(Volume::in_memory(0, None), &options(), 7).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    NO_STACKS.set(true);
    let tasks: Vec<_> = (0..40_u32)
        .map(|n| {
            let tree = tree.clone();
            simulation.spawn(0, move || {
                crate::yield_now();
                tree.insert(&n.to_be_bytes(), b"v")
            })
        })
        .collect();
    for task in tasks {
        task.join().unwrap().unwrap();
    }
    NO_STACKS.set(false);
    assert_eq!(tree.range(..).count(), 40);
    simulation.close().unwrap();
}

/// A task that is made ready again and again while its read is under way goes on when that has
/// ended.
#[test]
fn a_waiter_for_io_is_not_woken_by_anything_else() {
    let device = FaultDevice::new(0, FaultPlan::new(1).latency_us(500..=500));
    let simulation = Simulation::new(Volume::from_device(device), &options(), 9).unwrap();
    let waiting = Arc::new(Mutex::new(None));
    let in_task = |work: Box<dyn FnOnce(&WorkerState) + Send>| {
        let engine = Arc::clone(simulation.engine());
        simulation.spawn(0, move || {
            WorkerState::with_current(&engine, |local| work(local.expect("in a task")));
        })
    };
    let (reads, read) = (Arc::clone(&waiting), Arc::new(Mutex::new(None)));
    let into = Arc::clone(&read);
    let reader = in_task(Box::new(move |local| {
        // A new store has one of its superblocks.
        let mut buffer = AlignedBuf::new(2 * PAGE_SIZE);
        *reads.lock() = Some(local.worker.task_id());
        let halves = buffer.as_mut_slice().chunks_mut(PAGE_SIZE);
        for (at, half) in SUPERBLOCK_OFFSETS.into_iter().zip(halves) {
            let io = Io::read(at, half.as_mut_ptr(), PAGE_SIZE as u32, 0);
            // SAFETY: the buffer is used again once `wait_io` returned.
            unsafe { local.worker.start_io(io) };
        }
        local.worker.wait_io().unwrap();
        *into.lock() = Some(buffer);
    }));
    let other = in_task(Box::new(move |local| {
        for _ in 0..50 {
            if let Some(task) = *waiting.lock() {
                local.worker.make_ready(task);
            }
            local.worker.yield_now();
        }
    }));
    reader.join().unwrap();
    other.join().unwrap();
    let read = read.lock().take().expect("the task has ended");
    assert!(read.as_slice().iter().any(|byte| *byte != 0));
    simulation.close().unwrap();
}

#[test]
fn waiters_for_a_worker_that_panics_get_the_cause() {
    let store = Store::in_memory(&options().workers(2).tasks_per_worker(4)).unwrap();
    let tree = store.create_tree("t").unwrap();
    // More than run at a time: some have begun, some have not.
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            store.spawn_on(n, || {
                crate::sleep_until(Instant::now() + Duration::from_secs(1 << 20));
            })
        })
        .collect();
    let waiting = std::thread::spawn({
        let runtime = Arc::clone(store.runtime());
        move || {
            runtime.run(Urgency::Ordinary, |local| {
                local.worker.park();
                Ok(())
            })
        }
    });
    let awaited = tree.insert_async(b"later", b"v");
    store.runtime().engine().unwrap().workers.handles()[0].unpark(TaskId::IMPOSSIBLE);
    for task in tasks {
        assert!(task.join().is_err());
    }
    let awaited = crate::runtime::block_on(awaited);
    assert!(
        matches!(awaited, Err(Error::Poisoned { .. })),
        "{awaited:?}"
    );
    let waited = waiting.join().unwrap();
    assert!(matches!(waited, Err(Error::Poisoned { .. })), "{waited:?}");
    assert!(tree.insert(b"k", b"v").is_err());
    assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
}

/// A writer that is given a frame that there is none of.
#[test]
fn a_task_of_the_engines_own_that_panics_closes_the_store() {
    let store = Store::in_memory(&options().log_bytes(4 << 20)).unwrap();
    let tree = store.create_tree("t").unwrap();
    tree.insert(b"k", b"v").unwrap();
    let dirty = &store.runtime().engine().unwrap().buffer.pool.dirty;
    dirty.push(FrameId::MAX, PageId::FIRST_FREE);
    let closed = store.close();
    assert!(matches!(closed, Err(Error::Poisoned { .. })), "{closed:?}");
    assert!(tree.get(b"k").is_err());
}

#[test]
fn the_second_closer_waits_for_the_first() {
    for _ in 0..20 {
        let store = Store::in_memory(&options().log_bytes(4 << 20)).unwrap();
        let tree = store.create_tree("t").unwrap();
        (0..200_u32).for_each(|n| tree.insert(&n.to_be_bytes(), &[1; 500]).unwrap());
        let other = store.clone();
        let engine = Arc::clone(store.runtime().engine().unwrap());
        let ended = move |closed: Result<(), Error>| {
            closed.unwrap();
            assert!(
                engine.shared.volume().is_err(),
                "closed, and yet the volume is in use"
            );
        };
        std::thread::scope(|scope| {
            scope.spawn(|| ended(other.close()));
            ended(store.close());
        });
    }
}

#[test]
fn callbacks_run_where_they_were_given() {
    let store = Store::in_memory(&options().workers(2)).unwrap();
    let tree = store.create_tree("t").unwrap();
    let (count, length) = (40_u32, 100_000);
    for n in 0..count {
        tree.insert(&n.to_be_bytes(), &vec![n as u8; length])
            .unwrap();
    }
    // Large values are read by workers, more than they hand over at a time.
    let keys: Vec<_> = (0..=count).map(u32::to_be_bytes).collect();
    let here = std::thread::current().id();
    let mut seen = vec![None; keys.len()];
    tree.get_each(&keys, |at, value| {
        assert_eq!(std::thread::current().id(), here);
        tree.get(&keys[at]).unwrap();
        let old = seen[at].replace(value.map(|value| (value.len(), value.first().copied())));
        assert!(old.is_none(), "sent twice");
    })
    .unwrap();
    for (at, seen) in seen.iter().enumerate() {
        let expected = (at < count as usize).then_some((length, Some(at as u8)));
        assert_eq!(*seen, Some(expected));
    }
    store.close().unwrap();
}
