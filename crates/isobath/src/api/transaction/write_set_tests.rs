use std::fs::File;
use std::ops::Bound;

use super::*;
use crate::error::Error;
use crate::{Options, Store};

const LIMIT: u64 = 3000;

type Model = BTreeMap<Vec<u8>, u32>;

struct Rig {
    writes: WriteSet,
    trees: Vec<Tree>,
    /// Takes the place of the temporary file while that is broken.
    other: Arc<File>,
    is_broken: bool,
    /// A linear congruential generator.
    state: u64,
}

impl Rig {
    fn new(seed: u64) -> (Store, Rig) {
        let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1)).unwrap();
        let tree = |name| store.create_tree(name).unwrap();
        let rig = Rig {
            writes: WriteSet::default(),
            trees: vec![tree("a"), tree("b")],
            // Nothing can be written to what is open for reading.
            other: Arc::new(File::open("/dev/null").unwrap()),
            is_broken: false,
            state: seed,
        };
        (store, rig)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.state >> 33) % end
    }

    fn put(&mut self, place: &[u8], number: u32) -> Result<(), Error> {
        let mut value = vec![0; 20 + number as usize % 100];
        value[..4].copy_from_slice(&number.to_le_bytes());
        let write = match number % 5 {
            0 => Write::Removed,
            _ => Write::Inline(value.into()),
        };
        let tree = self.trees[usize::from(place[0])].clone();
        let directory = std::env::temp_dir();
        Ok(self
            .writes
            .put(&tree, place[1..].into(), write, LIMIT, &directory)?)
    }

    /// Breaks the temporary file, or mends it, if there is one.
    fn toggle(&mut self) {
        let (swapped, other) = (&mut self.is_broken, &mut self.other);
        if let Some(spilled) = &mut self.writes.spilled {
            spilled.swap_file(other);
            *swapped = !*swapped;
        }
    }

    fn check(&self, model: &Model) {
        for (at, tree) in self.trees.iter().enumerate() {
            let own = self.writes.of(tree);
            let (mut found, cut) = own
                .within(
                    (Bound::Unbounded, Bound::Unbounded),
                    Direction::Forward,
                    10_000,
                )
                .unwrap();
            assert!(cut.is_none());
            for (key, write) in found.drain(..) {
                let place = [&[at as u8], &key[..]].concat();
                let number = model[&place];
                match write {
                    Write::Removed => assert!(number.is_multiple_of(5)),
                    Write::Inline(value) => assert_eq!(value[..4], number.to_le_bytes()),
                    Write::Extent(_) => panic!("none was written"),
                }
                assert!(own.get(&key).unwrap().is_some());
            }
        }
        let counted = self.trees.iter().map(|tree| {
            let all = (Bound::Unbounded, Bound::Unbounded);
            let own = self.writes.of(tree);
            own.within(all, Direction::Reverse, 10_000).unwrap().0.len()
        });
        assert_eq!(counted.sum::<usize>(), model.len());
    }
}

#[test]
fn what_cannot_be_written_stays_in_memory_with_its_savepoints() {
    let (mut refused, mut spilled) = (0, 0);
    for seed in 0..30 {
        let (store, mut rig) = Rig::new(seed);
        let mut model = Model::new();
        let mut kept: Vec<(u64, Model)> = Vec::new();
        for number in 0..1500 {
            match rig.below(60) {
                0..3 => kept.push((rig.writes.savepoint(), model.clone())),
                3 if !kept.is_empty() && !rig.is_broken => {
                    let at = rig.below(kept.len() as u64) as usize;
                    assert!(rig.writes.rollback_to(kept[at].0));
                    model = kept[at].1.clone();
                    kept.truncate(at + 1);
                }
                4 => rig.toggle(),
                5 if !rig.is_broken => rig.check(&model),
                _ => {
                    let place = vec![rig.below(2) as u8, rig.below(150) as u8];
                    match rig.put(&place, number) {
                        Ok(()) => drop(model.insert(place, number)),
                        Err(error) => {
                            assert!(rig.is_broken && matches!(error, Error::Sort { .. }));
                            refused += 1;
                        }
                    }
                }
            }
            assert!(rig.writes.bytes() <= LIMIT && rig.writes.undo_bytes <= LIMIT);
        }
        if rig.is_broken {
            rig.toggle();
        }
        rig.check(&model);
        spilled += usize::from(rig.writes.is_spilled());
        store.close().unwrap();
    }
    assert!(refused > 100 && spilled > 10, "{refused} {spilled}");
}

#[test]
fn writes_in_order_make_one_run() {
    let (store, mut rig) = Rig::new(1);
    for number in 0..20_000 {
        let key = format!("{number:08}");
        rig.put(&[&[0], key.as_bytes()].concat(), number).unwrap();
    }
    let spilled = rig.writes.spilled.as_mut().unwrap();
    assert_eq!(
        (spilled.runs(), spilled.file_bytes()),
        (1, spilled.take_written())
    );
    let own = rig.writes.of(&rig.trees[0]);
    let found = |number| {
        own.get(format!("{number:08}").as_bytes())
            .unwrap()
            .is_some()
    };
    assert!((0..20_000).all(found));
    assert!(own.get(b"00000003x").unwrap().is_none());
    store.close().unwrap();
}

/// A removal asks first whether its key was written.
#[test]
fn keys_that_were_not_written_are_looked_for_in_hardly_any_run() {
    let (store, mut rig) = Rig::new(1);
    let name = |number: u32| format!("{number:08}").into_bytes();
    for number in 0..5000 {
        let key = name(2 * (number * 7919 % 5000));
        rig.put(&[&[0], &key[..]].concat(), number).unwrap();
    }
    let own = rig.writes.of(&rig.trees[0]);
    let (spilled, _) = own.spilled.unwrap();
    for number in 0..5000 {
        assert!(own.get(&name(2 * number + 1)).unwrap().is_none());
    }
    let (read, runs) = (spilled.blocks_read(), spilled.runs());
    assert!(runs > 3 && read < 5000 * runs / 20, "{read} of {runs} runs");
    assert!((0..5000).all(|number| own.get(&name(2 * number)).unwrap().is_some()));
    store.close().unwrap();
}

#[test]
fn the_space_of_merged_runs_is_used_again() {
    let (store, mut rig) = Rig::new(1);
    let count = 40_000u32;
    for number in 0..count {
        let key = format!("{:08}", number * 7919 % count);
        rig.put(&[&[0], key.as_bytes()].concat(), number).unwrap();
    }
    let spilled = rig.writes.spilled.as_mut().unwrap();
    let (file, written) = (spilled.file_bytes(), spilled.take_written());
    // Of each tier up to seven runs and the one that is being made of eight.
    assert!(
        file * 2 < written && spilled.runs() < 50,
        "{file} {written}"
    );
    store.close().unwrap();
}

#[test]
fn a_scan_reads_some_bytes_of_many_runs_ahead() {
    let (store, mut rig) = Rig::new(1);
    let tree = rig.trees[0].clone();
    let (runs, records) = (200_u32, 100_u32);
    for run in 0..runs {
        rig.writes.savepoint();
        for record in 0..records {
            let key = (record * runs + run).swap_bytes().to_le_bytes();
            let write = Write::Inline(vec![1; 1_000].into());
            let directory = std::env::temp_dir();
            (rig.writes
                .put(&tree, key[..].into(), write, 60_000, &directory))
            .unwrap();
        }
    }
    let own = rig.writes.of(&tree);
    let (spilled, at) = own.spilled.unwrap();
    assert!(spilled.runs() > 100, "{} runs", spilled.runs());
    for direction in [Direction::Forward, Direction::Reverse] {
        let (mut lower, mut upper) = (Bound::Unbounded, Bound::Unbounded);
        let mut found = 0;
        // Bound: each round finds some.
        loop {
            let bounds = (
                lower.as_ref().map(Vec::as_slice),
                upper.as_ref().map(Vec::as_slice),
            );
            let (lists, _) = spilled.within(at, bounds, direction, 256).unwrap();
            let ahead: usize = lists.iter().map(Vec::len).sum();
            assert!(ahead <= 6_000, "{ahead} records of 1,000 bytes");
            let (writes, cut) = own.within(bounds, direction, 256).unwrap();
            found += writes.len();
            match (cut, direction) {
                (None, _) => break,
                (Some(cut), Direction::Forward) => lower = Bound::Excluded(cut),
                (Some(cut), Direction::Reverse) => upper = Bound::Excluded(cut),
            }
        }
        assert_eq!(found, (runs * records) as usize);
    }
    drop(rig);
    store.close().unwrap();
}
