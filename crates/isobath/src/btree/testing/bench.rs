//! What the tree does per second with everything in the pool. Prints numbers,
//! asserts nothing about them:
//!
//! `ISOBATH_BENCH_MIB=1024 cargo test --release -p isobath btree::testing::bench -- --ignored --nocapture`

use std::ops::Bound;
use std::time::Instant;

use super::loads::alone;
use super::{TestContext, next_random};
use crate::btree::descend::Descent;
use crate::btree::{Batch, Cursor, Direction, Loader, Tree, ValueRef};
use crate::context::ReadContext;

/// Bytes of a record: 8 of key, 120 of value.
const RECORD: u64 = 128;

/// Time since a moment: elapsed, and that this thread ran. Others may share the
/// machine.
struct Clock(Instant, f64);

impl Clock {
    fn start() -> Clock {
        Clock(Instant::now(), busy_seconds())
    }

    fn elapsed(&self) -> (f64, f64) {
        (self.0.elapsed().as_secs_f64(), busy_seconds() - self.1)
    }
}

fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds: f64 = stat.split(' ').next().unwrap().parse().unwrap();
    nanoseconds / 1e9
}

/// How record numbers become keys, in the same order.
#[derive(Clone, Copy, Debug)]
enum Keys {
    /// 0, 1, 2, ...
    Dense,
    /// Spread over all 64-bit numbers, with random gaps.
    Sparse,
}

struct Bench {
    ctx: TestContext,
    tree: Tree,
    keys: Keys,
    records: u64,
}

fn big_endian(number: u64) -> [u8; 8] {
    number.swap_bytes().to_le_bytes()
}

fn mix(number: u64) -> u64 {
    let mut state = number + 0x9e37_79b9_7f4a_7c15;
    next_random(&mut state)
}

impl Bench {
    fn key(&self, number: u64) -> [u8; 8] {
        match self.keys {
            Keys::Dense => big_endian(number),
            Keys::Sparse => {
                let gap = u64::MAX / self.records;
                big_endian(number * gap + mix(number) % gap)
            }
        }
    }

    fn load(keys: Keys, mib: u64) -> Bench {
        let records = (mib << 20) / RECORD;
        let frames = (mib << 8) + (mib << 8) / 8 + 1024;
        let ctx = TestContext::new(frames as u32, 2 * frames);
        let tree = ctx.tree();
        let bench = Bench {
            ctx,
            tree,
            keys,
            records,
        };
        let value = [7; 120];
        let started = Clock::start();
        let mut loader = Loader::new(&bench.ctx, tree, 100, alone).unwrap();
        for number in 0..records {
            loader
                .push(&bench.key(number), ValueRef::inline(&value))
                .unwrap();
        }
        loader.finish(&mut |_| {}).unwrap();
        let rate = (mib << 20) as f64 / started.elapsed().1 / 1e9;
        println!("{keys:?} load {rate:.2} GB/s of CPU, first touch of the pool included");
        bench
    }

    fn report(&self, name: &str, count: u64, started: Clock) {
        let (seconds, busy) = started.elapsed();
        println!(
            "{:?} {name:<15} {:8.3} M/s of CPU {:6.0} ns of CPU {:6.0} ns elapsed",
            self.keys,
            count as f64 / busy / 1e6,
            busy / count as f64 * 1e9,
            seconds / count as f64 * 1e9
        );
    }

    fn get(&self, count: u64) {
        let (mut state, mut value) = (1, Vec::new());
        let started = Clock::start();
        for _ in 0..count {
            let key = self.key((next_random(&mut state) >> 8) % self.records);
            let found = self.tree.get(&self.ctx, &key, &mut value).unwrap();
            assert!(found.is_some() && value.len() == 120);
        }
        self.report("get", count, started);
    }

    /// Measures the time that a lookup saves after a page miss by going on at the missing leaf.
    fn descend(&self, count: u64) {
        let mut state = 1;
        let started = Clock::start();
        for _ in 0..count {
            let key = self.key((next_random(&mut state) >> 8) % self.records);
            let mut descent = Descent::to_level(self.tree, 1);
            let (hold, node) = descent.find(self.ctx.pool(), &key).ok().unwrap();
            let position = node.child_position(&key).unwrap();
            assert!(node.child(position).is_ok() && hold.validate().is_ok());
        }
        self.report("descent to leaf", count, started);
    }

    fn get_many(&self, count: u64, size: usize) {
        let (mut state, mut batch, mut found) = (1, Batch::default(), 0);
        let mut keys = vec![[0; 8]; size];
        let started = Clock::start();
        for _ in 0..count / size as u64 {
            for key in &mut keys {
                *key = self.key((next_random(&mut state) >> 8) % self.records);
            }
            self.tree.get_many(&self.ctx, &keys, &mut batch).unwrap();
            found += (0..size).filter_map(|key| batch.value(key)).count();
        }
        assert_eq!(found as u64, count / size as u64 * size as u64);
        self.report(&format!("get_many {size}"), found as u64, started);
    }

    fn scan(&self, count: u64, direction: Direction) {
        let (mut state, mut sum) = (2, 0);
        let started = Clock::start();
        for _ in 0..count {
            let key = self.key((next_random(&mut state) >> 8) % self.records);
            let (lower, upper) = match direction {
                Direction::Forward => (Bound::Included(&key[..]), Bound::Unbounded),
                Direction::Reverse => (Bound::Unbounded, Bound::Included(&key[..])),
            };
            let mut cursor = Cursor::new(self.tree, lower, upper, direction);
            for _ in 0..100 {
                if let Some(entry) = cursor.next(&self.ctx).unwrap() {
                    sum += u64::from(entry.key[7]) + entry.value.bytes.len() as u64;
                }
            }
        }
        assert!(sum > count);
        self.report(&format!("scan100 {direction:?}"), count, started);
    }

    fn update(&self, count: u64) {
        let mut state = 3;
        let started = Clock::start();
        for _ in 0..count {
            let random = next_random(&mut state);
            let key = self.key((random >> 8) % self.records);
            let value = ValueRef::inline(&[9; 120]);
            let _ = self.tree.insert(&self.ctx, &key, value).unwrap();
        }
        self.report("update", count, started);
    }
}

fn insert(keys: Keys, mib: u64, ascending: bool) {
    let frames = (mib << 8) * 2 + 1024;
    let ctx = TestContext::new(frames as u32, 2 * frames);
    let tree = ctx.tree();
    let records = (mib << 20) / RECORD;
    let bench = Bench {
        ctx,
        tree,
        keys,
        records,
    };
    let started = Clock::start();
    for number in 0..records {
        let key = if ascending {
            big_endian(number)
        } else {
            big_endian(mix(number))
        };
        let value = ValueRef::inline(&[9; 120]);
        let _ = bench.tree.insert(&bench.ctx, &key, value).unwrap();
    }
    let name = if ascending {
        "insert asc"
    } else {
        "insert random"
    };
    bench.report(name, records, started);
}

#[test]
#[ignore = "a benchmark"]
fn in_memory() {
    let mib = std::env::var("ISOBATH_BENCH_MIB").map_or(256, |mib| mib.parse().unwrap());
    let only = std::env::var("ISOBATH_BENCH_ONLY").unwrap_or_default();
    let run = |name: &str| only.is_empty() || only.contains(name);
    for keys in [Keys::Dense, Keys::Sparse] {
        let bench = Bench::load(keys, mib);
        let shape = bench.tree.verify(&bench.ctx, &mut ()).unwrap();
        println!("{keys:?} {shape:?}");
        if run("get") {
            bench.get(3_000_000);
            bench.descend(3_000_000);
        }
        if run("many") {
            for size in [16, 64, 256] {
                bench.get_many(6_000_000, size);
            }
        }
        if run("scan") {
            bench.scan(300_000, Direction::Forward);
            bench.scan(100_000, Direction::Reverse);
        }
        if run("update") {
            bench.update(2_000_000);
        }
    }
    if run("insert") {
        insert(Keys::Dense, mib / 4, true);
        insert(Keys::Sparse, mib / 4, false);
    }
}
