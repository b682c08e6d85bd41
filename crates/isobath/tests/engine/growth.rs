//! Growing: what fails beside it, space that is freed again, and the limit that a store keeps.

#![allow(missing_docs, unsafe_code, clippy::unwrap_used)]

use super::common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{key, tiny, value};
use isobath::{Durability, Error, Options, Store, Volume};
use isobath_io::{
    BackendReport, Channel, ChannelError, ChannelOptions, ChannelStats, Completion, Device,
    FaultDevice, FaultPlan, Io, IoError, IoErrorKind, Op, QueueFull, Survivors, VolumeError, Waker,
};

/// Memory that may refuse to grow, and notes what its channels are to register.
struct Memory {
    inner: Arc<dyn Device>,
    /// Growth beyond this many bytes finds no space.
    room: AtomicU64,
    /// Growth fails as a flush does that reports a lost write.
    broken: AtomicBool,
    /// Lengths of the regions that channels were asked to register, and how many may be.
    registered: Mutex<Vec<usize>>,
    /// Channels that are open, and how many were at the first registration.
    channels: AtomicU64,
    channels_then: AtomicU64,
    refuses: AtomicBool,
}

impl Memory {
    fn new() -> Arc<Memory> {
        Arc::new(Memory {
            inner: Arc::clone(Volume::in_memory(0, None).device()),
            room: AtomicU64::new(u64::MAX),
            broken: AtomicBool::new(false),
            registered: Mutex::default(),
            channels: AtomicU64::new(0),
            channels_then: AtomicU64::new(u64::MAX),
            refuses: AtomicBool::new(false),
        })
    }

    fn volume(self: &Arc<Self>) -> Volume {
        Volume::from_device(self.clone())
    }
}

impl Device for Memory {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn limit(&self) -> Option<u64> {
        None
    }

    fn logical_block(&self) -> u32 {
        self.inner.logical_block()
    }

    fn first_writes_cost_more(&self) -> bool {
        true
    }

    fn grow(&self, new_len: u64) -> Result<(), VolumeError> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(IoError::new(IoErrorKind::Media, Op::Flush, 0, 0).into());
        }
        if new_len > self.room.load(Ordering::SeqCst) {
            return Err(VolumeError::NoSpace {
                path: "memory".into(),
                needed: new_len - self.len(),
            });
        }
        self.inner.grow(new_len)
    }

    fn channel(self: Arc<Self>, options: &ChannelOptions) -> Result<Box<dyn Channel>, VolumeError> {
        let inner = Arc::clone(&self.inner).channel(options)?;
        self.channels.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Noted {
            inner,
            accepts: !self.refuses.load(Ordering::SeqCst),
            device: self,
        }))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.inner.write_at(offset, buf)
    }

    fn sync(&self) -> Result<(), IoError> {
        self.inner.sync()
    }

    fn backend_report(&self) -> BackendReport {
        self.inner.backend_report()
    }
}

struct Noted {
    inner: Box<dyn Channel>,
    accepts: bool,
    device: Arc<Memory>,
}

impl Channel for Noted {
    unsafe fn submit(&mut self, io: Io) -> Result<(), QueueFull> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.inner.submit(io) }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize, ChannelError> {
        self.inner.poll(out)
    }

    fn wait(
        &mut self,
        min: u32,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<usize, ChannelError> {
        self.inner.wait(min, timeout, out)
    }

    unsafe fn register_buffers(&mut self, _regions: &[(*mut u8, usize)]) -> bool {
        unreachable!("memory is registered as it comes into use")
    }

    unsafe fn register_more(&mut self, region: (*mut u8, usize)) -> bool {
        let channels = self.device.channels.load(Ordering::SeqCst);
        self.device
            .channels_then
            .fetch_min(channels, Ordering::SeqCst);
        self.device.registered.lock().unwrap().push(region.1);
        self.accepts
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn stats(&self) -> &ChannelStats {
        self.inner.stats()
    }
}

#[test]
fn growth_that_fails_for_anything_but_space_ends_writing() {
    let device = Memory::new();
    let options = tiny(2, 6).log_bytes(4 << 20);
    let store = Store::create_on_volume(device.volume(), &options).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..500 {
        tree.insert(&key(n), &value(n, 900)).unwrap();
    }
    device.broken.store(true, Ordering::SeqCst);
    let mut acknowledged = 500;
    let error = loop {
        match tree.insert(&key(acknowledged), &value(acknowledged, 900)) {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 20_000, "the volume would have had to grow");
    };
    let cause = match &error {
        Error::Poisoned { cause } => cause,
        other => other,
    };
    assert!(matches!(cause, Error::Volume(_)), "{error}");
    let later = tree.insert(&key(acknowledged), b"v").unwrap_err();
    assert!(matches!(later, Error::Poisoned { .. }), "{later}");
    assert!(store.close().is_err());

    device.broken.store(false, Ordering::SeqCst);
    let store = Store::open_on_volume(device.volume(), &options).unwrap();
    let tree = store.tree("t").unwrap();
    for n in 0..acknowledged {
        assert_eq!(tree.get(&key(n)).unwrap(), Some(value(n, 900)), "{n}");
    }
    store.close().unwrap();
}

#[test]
fn a_volume_that_had_no_space_grows_when_there_is_some() {
    let device = Memory::new();
    let options = tiny(1, 6).log_bytes(4 << 20).fill_factor(0.5);
    let store = Store::create_on_volume(device.volume(), &options).unwrap();
    let tree = store.create_tree("t").unwrap();
    device.room.store(12 << 20, Ordering::SeqCst);
    // Between the fill factor and what cleaning can still cope with.
    let records = 5000;
    for n in 0..records {
        tree.insert(&key(n), &value(n, 700)).unwrap();
    }
    let cleaned = || store.stats().segments_cleaned;
    let mut random = common::Random::new(7);
    let mut overwrite_until = |done: &dyn Fn() -> bool| {
        for round in 0..400_000u64 {
            if done() {
                return;
            }
            let n = random.below(records);
            tree.insert(&key(n), &value(round, 700)).unwrap();
        }
        panic!("never");
    };
    overwrite_until(&|| cleaned() > 20);
    let length = device.len();
    assert!(length <= 12 << 20);
    device.room.store(u64::MAX, Ordering::SeqCst);
    overwrite_until(&|| device.len() > length);
    store.close().unwrap();
}

/// What a store writes of zeros, and how much it grows, while values are inserted one by one.
fn initialized(durability: Durability) -> (u64, u64) {
    let device = Memory::new();
    let options = Options::new()
        .pool_bytes(32 << 20)
        .segment_bytes(256 << 10)
        .log_bytes(16 << 20)
        .durability(durability);
    let store = Store::create_on_volume(device.volume(), &options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let length = device.len();
    for n in 0..1500 {
        tree.insert(&key(n), &value(n, 10_000)).unwrap();
    }
    let stats = store.stats();
    assert!(stats.growth_bytes_written <= stats.bytes_written);
    let grown = device.len() - length;
    store.close().unwrap();
    let store = Store::open_on_volume(device.volume(), &options).unwrap();
    let tree = store.tree("t").unwrap();
    for n in 0..1500 {
        assert_eq!(tree.get(&key(n)).unwrap(), Some(value(n, 10_000)), "{n}");
    }
    store.close().unwrap();
    (stats.growth_bytes_written, grown)
}

#[test]
fn what_commits_wait_for_is_written_before_it_is_used() {
    let (zeros, grown) = initialized(Durability::Synced);
    // All but what it grew by before anything was known.
    assert!(zeros > grown / 2, "{zeros} of {grown} bytes");
    assert_eq!(initialized(Durability::None).0, 0);
}

#[test]
fn memory_is_registered_as_it_comes_into_use() {
    for refuses in [false, true] {
        let device = Memory::new();
        device.refuses.store(refuses, Ordering::SeqCst);
        let options = tiny(1, 10).pool_bytes(10 << 20).log_bytes(4 << 20);
        let store = Store::create_on_volume(device.volume(), &options).unwrap();
        let tree = store.create_tree("t").unwrap();
        let insert = |range: std::ops::Range<u64>| {
            for n in range {
                tree.insert(&key(n), &value(n, 900)).unwrap();
            }
        };
        insert(0..2000);
        let registered = || device.registered.lock().unwrap().clone();
        assert_eq!(
            registered().iter().filter(|len| **len >= 4 << 20).count(),
            0
        );
        insert(2000..20_000);
        let pool: Vec<_> = registered()
            .into_iter()
            // Neither the log's ring nor buffers of long reads.
            .filter(|len| *len > 1 << 20)
            .collect();
        let ring = registered().contains(&(512 << 10));
        match refuses {
            // Asked once, and no more.
            true => assert_eq!(registered().len(), 1, "{:?}", registered()),
            false => {
                assert_eq!(pool[..2], [4 << 20, 4 << 20], "{pool:?}");
                let frames = store.stats().pool_frames as usize;
                assert_eq!(pool.iter().sum::<usize>(), frames * 4096);
                assert!(ring);
            }
        }
        store.close().unwrap();
    }
}

/// Registered memory counts towards the limit of locked memory, from which rings take theirs
/// first.
#[test]
fn memory_is_registered_when_all_channels_are_open() {
    let device = Memory::new();
    let options = tiny(3, 10).pool_bytes(10 << 20).log_bytes(4 << 20);
    let create = || Store::create_on_volume(device.volume(), &options).unwrap();
    let open = || Store::open_on_volume(device.volume(), &options).unwrap();
    for round in 0..2 {
        device.channels.store(0, Ordering::SeqCst);
        let store = if round == 0 { create() } else { open() };
        let tree = store.open_or_create_tree("t").unwrap();
        for n in 0..20_000 {
            tree.insert(&key(n), &value(n, 900)).unwrap();
        }
        store.close().unwrap();
        let channels = device.channels_then.swap(u64::MAX, Ordering::SeqCst);
        assert_eq!(channels, 3, "round {round}");
    }
}

/// Inserts until the volume is full, from record `from` on; the next one.
fn fill(store: &Store, from: u64) -> u64 {
    let tree = store.open_or_create_tree("t").unwrap();
    for n in from.. {
        match tree.insert(&key(n), &value(n, 900)) {
            Ok(()) => {}
            Err(Error::VolumeFull { .. }) => return n,
            Err(error) => panic!("{error}"),
        }
        assert!(n < 100_000, "no limit");
    }
    unreachable!()
}

fn bytes(path: &Path) -> u64 {
    path.metadata().unwrap().len()
}

#[test]
fn a_store_keeps_its_limit_until_it_is_given_another() {
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("a.iso");
    let plain = || {
        let options = tiny(1, 6).log_bytes(4 << 20).publish_stats(false);
        options.durability(Durability::None)
    };
    let open = |options: &Options| Store::open(&[&path], options).unwrap();
    // Labels and superblocks lie before and beside the segments.
    let most = |limit: u64| limit + (2 << 20);

    let options = plain().volume_limit_bytes(Some(10 << 20));
    let store = Store::create(&[&path], &options).unwrap();
    store.close().unwrap();
    let store = open(&plain());
    let full = fill(&store, 0);
    assert!(full > 500, "{full}");
    assert!(bytes(&path) <= most(10 << 20), "{}", bytes(&path));
    store.close().unwrap();

    let store = open(&plain().volume_limit_bytes(Some(14 << 20)));
    let more = fill(&store, full);
    assert!(more > full + 500, "{more}");
    store.close().unwrap();
    let store = open(&plain());
    fill(&store, more);
    assert!(bytes(&path) > most(10 << 20) && bytes(&path) <= most(14 << 20));
    store.close().unwrap();

    // A limit below the present size takes nothing away.
    let store = open(&plain().volume_limit_bytes(Some(8 << 20)));
    assert_eq!(fill(&store, more + 20_000), more + 20_000);
    store.close().unwrap();
    // A reader changes nothing.
    open(&plain().read_only(true).volume_limit_bytes(None))
        .close()
        .unwrap();
    let store = open(&plain());
    assert_eq!(fill(&store, more + 20_000), more + 20_000);
    store.close().unwrap();

    let store = open(&plain().volume_limit_bytes(None));
    store.close().unwrap();
    let store = open(&plain());
    let tree = store.tree("t").unwrap();
    for n in more..more + 6000 {
        tree.insert(&key(n), &value(n, 900)).unwrap();
    }
    store.close().unwrap();
    assert!(bytes(&path) > most(14 << 20));
}

/// A value of `length` bytes, of which `version` shows.
fn filling(n: u64, version: u8, length: usize) -> Vec<u8> {
    vec![n as u8 ^ version; length]
}

/// Fills a store that is limited to 100 MiB, and works on at that fill: updates, a crash, removals,
/// records in their place.
fn three_quarters_are_data(length: usize) {
    let limit = 100 << 20;
    let options = Options::new()
        .workers(1)
        .pool_bytes(16 << 20)
        .volume_limit_bytes(Some(limit))
        .durability(Durability::None);
    let device = FaultDevice::new(0, FaultPlan::new(7).sleeps(true));
    let store = Store::create_on_volume(Volume::from_device(device.clone()), &options).unwrap();
    let small = device.len();
    assert!(small <= 10 << 20, "{small} bytes for nothing");
    let tree = store.create_tree("t").unwrap();
    let key = |n: u64| n.swap_bytes().to_le_bytes();
    let mut count = 0;
    loop {
        match tree.insert(key(count), filling(count, 0, length)) {
            Ok(()) => count += 1,
            Err(Error::VolumeFull { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let data = count * (8 + length as u64);
    assert!(data >= 75_000_000, "{data} bytes in {limit}");

    store.close().unwrap();

    // Spread over all leaves, so that most of them are written again.
    let synced = options.clone().durability(Durability::Synced);
    let store = Store::open_on_volume(Volume::from_device(device.clone()), &synced).unwrap();
    let tree = store.tree("t").unwrap();
    let is_updated = |n: u64| n % 17 == 3;
    for n in (0..count).filter(|&n| is_updated(n)) {
        tree.insert(key(n), filling(n, 1, length)).unwrap();
    }
    assert!(device.len() <= limit);
    let image = device.crash_image(Survivors::None, 0);
    let verify = |store: &Store, from: u64| {
        let tree = store.tree("t").unwrap();
        let mut n = from;
        for record in tree.range(..) {
            let (found, value) = record.unwrap();
            assert_eq!(found, key(n));
            let version = u8::from(is_updated(n));
            assert_eq!(value, filling(n, version, length), "{n}");
            n += 1;
        }
        assert_eq!(n, count);
    };
    store.close().unwrap();
    let store = Store::open_on_volume(Volume::from_device(device), &options).unwrap();
    verify(&store, 0);
    store.close().unwrap();

    // The store after a power cut takes removals, and as many records again.
    let store = Store::open_on_volume(Volume::from_device(image.clone()), &options).unwrap();
    verify(&store, 0);
    let tree = store.tree("t").unwrap();
    let removed = count / 4;
    for n in 0..removed {
        tree.remove(key(n)).unwrap();
    }
    verify(&store, removed);
    for n in 0..removed * 9 / 10 {
        tree.insert(key(n), filling(n, u8::from(is_updated(n)), length))
            .unwrap();
    }
    store.close().unwrap();
    assert!(image.len() <= limit);
    let store = Store::open_on_volume(Volume::from_device(image), &options).unwrap();
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    store.close().unwrap();
}

#[test]
fn three_quarters_of_a_small_limit_are_data() {
    three_quarters_are_data(480);
}

#[test]
fn three_quarters_are_data_where_records_fit_leaves_badly() {
    three_quarters_are_data(278);
}

#[test]
fn three_quarters_are_data_in_small_records() {
    three_quarters_are_data(120);
}

/// A load that was packed, on a file system without room: what compaction leaves is enough for
/// updates, by cleaning.
#[test]
fn a_packed_store_takes_updates_where_it_cannot_grow() {
    let options = Options::new()
        .workers(1)
        .pool_bytes(8 << 20)
        .segment_bytes(64 << 10)
        .durability(Durability::None);
    let device = FaultDevice::new(0, FaultPlan::new(8).sleeps(true));
    let store = Store::create_on_volume(Volume::from_device(device.clone()), &options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let count = 100_000u64;
    let key = |n: u64| format!("{n:08}");
    tree.load((0..count).map(|n| (key(n), filling(n, 0, 340))))
        .unwrap();
    store.compact().unwrap();
    store.close().unwrap();
    let packed = device.len();
    // Leaves hold 10 of these records at least, segments 15 pages beside their summary; 90 are the
    // log's, the reserve and the like.
    let segments = count / 10 / 15 * 102 / 100 + 90;
    let most = (segments + 8) * (64 << 10);
    assert!(packed < most, "{packed} bytes of {most}");

    let full = FaultPlan::new(8).sleeps(true).space_bytes(packed);
    let device = device.crash_image_with(Survivors::Executed, 0, full);
    let store = Store::open_on_volume(Volume::from_device(device.clone()), &options).unwrap();
    let tree = store.tree("t").unwrap();
    // In an order that touches each leaf many times, and no two neighbours one after the other.
    for n in (0..count).map(|n| n * 7_919 % count) {
        tree.insert(key(n), filling(n, 1, 340)).unwrap();
    }
    for n in 0..100 {
        tree.remove(key(n)).unwrap();
    }
    assert_eq!(device.len(), packed);
    store.close().unwrap();
    let store = Store::open_on_volume(Volume::from_device(device.clone()), &options).unwrap();
    let tree = store.tree("t").unwrap();
    for (n, record) in (100..count).zip(tree.range(..)) {
        assert_eq!(record.unwrap(), (key(n).into_bytes(), filling(n, 1, 340)));
    }
    assert_eq!(tree.range(..).count() as u64, count - 100);
    store.close().unwrap();
}
