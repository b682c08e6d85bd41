//! Long reads through a worker: what is read with one I/O, and what becomes of one that fails.

#![allow(clippy::big_endian_bytes)]

use std::sync::Arc;

use isobath_io::{Fault, FaultDevice, FaultPlan, FaultRule, IoErrorKind, Op, Trigger, Volume};

use crate::buffer::PagePlace;
use crate::canary::Canary;
use crate::engine::WorkerState;
use crate::page::{PAGE_SIZE, PageId};
use crate::{Error, Options, Simulation, Tree};

const RECORDS: u32 = 400;

fn options() -> Options {
    Options::new()
        .pool_bytes(4 << 20)
        .segment_bytes(256 << 10)
        .workers(1)
        .tasks_per_worker(16)
}

/// A store, opened again, whose tree was loaded; its device, and the tree's root.
fn loaded(seed: u64) -> (Arc<FaultDevice>, Simulation, Tree) {
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=40));
    let volume = || Volume::from_device(Arc::clone(&device) as _);
    let simulation = Simulation::new(volume(), &options(), seed).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    let records = (0..RECORDS).map(|n| (n.to_be_bytes(), [7; 1000]));
    tree.bulk_load(records).unwrap();
    drop(tree);
    simulation.close().unwrap();
    let simulation = Simulation::open(volume(), &options(), seed + 1).unwrap();
    let tree = simulation.store().tree("t").unwrap();
    (device, simulation, tree)
}

/// Pages that lie beside each other on the volume, in this order, none of them in memory.
fn neighbours(local: &WorkerState, count: usize) -> Vec<PageId> {
    let ids = PageId::FIRST_FREE.0..local.engine.pagestore.high_water();
    let stored = ids.filter_map(
        |id| match local.engine.buffer.pool.mapping.place(PageId(id)) {
            PagePlace::Stored(address) if address.length() as usize == PAGE_SIZE => {
                Some((address, PageId(id)))
            }
            _ => None,
        },
    );
    let mut stored: Vec<_> = stored.collect();
    stored.sort_unstable();
    let beside = |pages: &&[(crate::shared::Address, PageId)]| {
        let (first, last) = (pages[0].0, pages[count - 1].0);
        first.segment() == last.segment()
            && last.offset() - first.offset() == ((count - 1) * PAGE_SIZE) as u32
    };
    let run = stored.windows(count).find(beside).unwrap();
    run.iter().map(|page| page.1).collect()
}

fn is_resident(local: &WorkerState, page: PageId) -> bool {
    matches!(
        local.engine.buffer.pool.mapping.place(page),
        PagePlace::Resident(_)
    )
}

fn await_all(local: &WorkerState, pages: &[PageId]) {
    let loading = |page: &PageId| {
        matches!(
            local.engine.buffer.pool.mapping.place(*page),
            PagePlace::Loading(_)
        )
    };
    while pages.iter().any(loading) {
        local.worker.yield_now();
    }
}

#[test]
fn neighbours_are_read_at_once_and_what_is_between_them_stays() {
    for step in [1, 2] {
        let (device, simulation, tree) = loaded(3);
        let counted = Arc::clone(&device);
        tree.run(move |local| {
            let pages = neighbours(local, 15);
            let mut wanted: Vec<_> = pages.iter().copied().step_by(step).collect();
            wanted.reverse();
            // Named twice, and one that is none.
            wanted.push(wanted[0]);
            wanted.push(PageId(0));
            let before = counted.io_count();
            assert_eq!(
                local.engine.buffer.start_ahead(&local.worker, &wanted, 64),
                wanted.len()
            );
            await_all(local, &pages);
            assert_eq!(counted.io_count() - before, 1);
            for (at, &page) in pages.iter().enumerate() {
                assert_eq!(is_resident(local, page), at % step == 0, "page {at}");
            }
            Ok::<_, Error>(())
        })
        .unwrap();
        drop(tree);
        simulation.close().unwrap();
    }
}

#[test]
fn pages_of_a_failed_read_are_read_alone() {
    for seed in 1..=5 {
        let (device, simulation, tree) = loaded(seed);
        let counted = Arc::clone(&device);
        tree.run(move |local| {
            let pages = neighbours(local, 9);
            let fails = FaultRule::new(Fault::Error(IoErrorKind::Media), Trigger::At(0));
            counted.add_rule(fails.ops(&[Op::Read]));
            let before = counted.io_count();
            assert!(local.engine.buffer.read_ahead(&local.worker, &pages));
            await_all(local, &pages);
            assert_eq!(counted.fault_count(), 1);
            assert_eq!(counted.io_count() - before, 1 + pages.len() as u64);
            assert!(pages.iter().all(|&page| is_resident(local, page)));
            assert_eq!(
                local.engine.buffer.own(&local.worker).loads.borrow().reads,
                0
            );
            Ok::<_, Error>(())
        })
        .unwrap();
        drop(tree);
        simulation.close().unwrap();
    }
}

#[test]
fn trusting_reads_that_failed_is_found() {
    let run = std::thread::spawn(|| {
        Canary::TrustFailedReads.switch_on();
        pages_of_a_failed_read_are_read_alone();
    });
    assert!(run.join().is_err());
}

/// Where the buffer is used up, what is asked for is refused and read later.
#[test]
fn what_finds_no_buffer_is_refused_and_can_be_asked_for_again() {
    let (_, simulation, tree) = loaded(7);
    tree.run(|local| {
        let pages = neighbours(local, 8);
        let pool = local.engine.buffer.pool.frames.count() as usize;
        let all = local
            .engine
            .buffer
            .own(&local.worker)
            .long_reads
            .borrow_mut()
            .take_all();
        assert!(!all.is_empty() && all.len() <= pool / 16);
        assert_eq!(
            local.engine.buffer.start_ahead(&local.worker, &pages, 64),
            0
        );
        assert!(!pages.iter().any(|&page| is_resident(local, page)));
        local
            .engine
            .buffer
            .own(&local.worker)
            .long_reads
            .borrow_mut()
            .give_back(&all);
        assert_eq!(
            local.engine.buffer.start_ahead(&local.worker, &pages, 64),
            pages.len()
        );
        await_all(local, &pages);
        assert!(pages.iter().all(|&page| is_resident(local, page)));
        Ok::<_, Error>(())
    })
    .unwrap();
    drop(tree);
    simulation.close().unwrap();
}
