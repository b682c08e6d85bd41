//! What several test programs share: seeded randomness, recognisable values,
//! small stores.

#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use std::collections::BTreeMap;
use std::sync::Arc;

use isobath::{Options, Store, Tree, Volume};
use isobath_io::{FaultDevice, Survivors};

/// What a tree should hold.
pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Bytes of the smallest log.
pub(crate) const LOG: u64 = 4 << 20;
/// Bytes that a log device has before its log.
pub(crate) const LOG_HEADERS: u64 = 64 << 10;

/// A seeded generator (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    pub(crate) fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A number from the environment, for runs that are longer than usual.
pub(crate) fn parameter(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// `length` bytes that only `tag` has.
pub(crate) fn value(tag: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(tag);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.bits().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A key that spreads consecutive numbers.
pub(crate) fn key(n: u64) -> Vec<u8> {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()
}

/// The smallest pool that `workers` workers of `tasks` tasks may have.
pub(crate) fn tiny(workers: usize, tasks: usize) -> Options {
    let frames = 128 + 64 * workers as u64 + 4 * (workers * tasks) as u64;
    Options::new()
        .pool_bytes(frames * 4224 * 16 / 15)
        .workers(workers)
        .tasks_per_worker(tasks)
        .depth_per_worker(16)
        .segment_bytes(64 << 10)
}

/// Options with a log, for every other seed.
pub(crate) fn perhaps_logged(options: Options, seed: u64) -> Options {
    if seed % 2 == 1 {
        options.log_bytes(LOG)
    } else {
        options.log_bytes(0)
    }
}

/// What a tree holds.
pub(crate) fn contents(tree: &Tree) -> Model {
    tree.range(..).map(|record| record.unwrap()).collect()
}

/// A device as a crash leaves this one: with everything that was written to it.
pub(crate) fn image(of: &Arc<FaultDevice>) -> Arc<FaultDevice> {
    of.crash_image(Survivors::Executed, 0)
}

/// All bytes of a device.
pub(crate) fn bytes_of(device: &Arc<FaultDevice>) -> Vec<u8> {
    let mut bytes = vec![0; Volume::from_device(device.clone()).len() as usize];
    device.peek(0, &mut bytes);
    bytes
}

/// No problem in the whole store, and as many records as the caller knows of.
pub(crate) fn assert_sound(store: &Store, records: Option<u64>) {
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    if let Some(records) = records {
        assert_eq!(report.records, records);
    }
}
