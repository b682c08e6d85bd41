//! What a reader was shown survives a power loss, and no reader is shown less than was shown
//! before.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use common::{Random, assert_sound, parameter, tiny};
use isobath::{
    Canary, Error, Isolation, Options, Simulation, Store, TransactionOptions, Tree, Volume,
};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

const GROUPS: usize = 5;
/// Lengths of the values of a group's keys, which always change together.
const LENGTHS: [usize; 4] = [50, 600, 50, 9_000];

fn options() -> Options {
    tiny(2, 8)
        .volume_limit_bytes(Some(96 << 20))
        .log_bytes(4 << 20)
}

fn key(group: usize, part: usize) -> [u8; 3] {
    [part as u8 * 10, group as u8, 7]
}

fn value(number: u64, length: usize) -> Vec<u8> {
    let mut value = vec![number as u8; length];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

fn removes(number: u64) -> bool {
    number.is_multiple_of(4)
}

/// What is known of the numbers that a group's keys have.
#[derive(Default)]
struct Group {
    begun: AtomicU64,
    /// Acknowledged, or seen by a reader.
    known: AtomicU64,
    /// Which reader was the first to see it.
    how: std::sync::Mutex<String>,
}

struct Scene {
    store: Store,
    tree: Tree,
    groups: Vec<Group>,
    what: String,
}

impl Scene {
    fn write(&self, group: usize, random: &mut Random) {
        let number = self.groups[group].begun.fetch_add(1, SeqCst) + 1;
        let isolation = if random.below(4) == 0 {
            Isolation::Serializable
        } else {
            Isolation::Snapshot
        };
        let options = TransactionOptions::new()
            .isolation(isolation)
            .attempts(1000);
        let written = self.store.transact(options, |transaction| {
            for (part, length) in LENGTHS.into_iter().enumerate() {
                let key = key(group, part);
                if removes(number) {
                    transaction.remove(&self.tree, &key)?;
                } else {
                    transaction.insert(&self.tree, &key, &value(number, length))?;
                }
            }
            Ok::<(), isobath::Error>(())
        });
        written.unwrap();
        self.groups[group].known.fetch_max(number, SeqCst);
    }

    fn known(&self) -> Vec<u64> {
        self.groups
            .iter()
            .map(|group| group.known.load(SeqCst))
            .collect()
    }

    /// A reader that began when `known` was known found this under a key.
    fn saw(&self, how: &str, known: &[u64], group: usize, part: usize, found: Option<&[u8]>) {
        let (least, most) = (known[group], self.groups[group].begun.load(SeqCst));
        let what = format!("{}: {how} of group {group}, key {part}", self.what);
        let number = match found {
            Some(found) => {
                let number = u64::from_le_bytes(found[..8].try_into().unwrap());
                assert!(
                    found == value(number, LENGTHS[part]),
                    "{what}: this was never written"
                );
                assert!(
                    (least..=most).contains(&number),
                    "{what}: {number} after {least}"
                );
                number
            }
            None => {
                let mut removals = (least..=most).filter(|&number| removes(number));
                let Some(removal) = removals.next() else {
                    panic!("{what}: nothing after {least}");
                };
                // Which of several it was is unknown.
                removal
            }
        };
        let before = self.groups[group].known.fetch_max(number, SeqCst);
        if before < number {
            *self.groups[group].how.lock().unwrap() = how.to_owned();
        }
    }

    fn saw_all<'v>(&self, how: &str, known: &[u64], found: impl Fn(&[u8]) -> Option<&'v [u8]>) {
        for group in 0..GROUPS {
            for part in 0..LENGTHS.len() {
                self.saw(how, known, group, part, found(&key(group, part)));
            }
        }
    }

    fn read(&self, random: &mut Random) {
        let known = self.known();
        let group = random.below(GROUPS as u64) as usize;
        let part = random.below(LENGTHS.len() as u64) as usize;
        let one = key(group, part);
        let tree = &self.tree;
        let mut records = std::collections::BTreeMap::new();
        let how = match random.below(10) {
            0..3 => {
                let found = tree.get(&one).unwrap();
                return self.saw("get", &known, group, part, found.as_deref());
            }
            3 => {
                let keys: Vec<_> = (0..LENGTHS.len()).map(|part| key(group, part)).collect();
                let found = tree.get_many(&keys).unwrap();
                for (part, found) in found.iter().enumerate() {
                    self.saw("get_many", &known, group, part, found.as_deref());
                }
                return;
            }
            4 | 9 => {
                let snapshot = self.store.snapshot().unwrap();
                let found = (0..LENGTHS.len()).map(|part| snapshot.get(tree, &key(group, part)));
                let found: Vec<_> = match found.collect::<Result<_, _>>() {
                    Ok(found) => found,
                    Err(Error::SnapshotTooOld) => return,
                    Err(error) => panic!("{}: {error}", self.what),
                };
                let number =
                    |found: &Option<Vec<u8>>| found.as_ref().map(|found| found[..8].to_vec());
                assert!(
                    found
                        .windows(2)
                        .all(|pair| number(&pair[0]) == number(&pair[1]))
                );
                for (part, found) in found.iter().enumerate() {
                    self.saw("a snapshot", &known, group, part, found.as_deref());
                }
                return;
            }
            5 => {
                tree.scan(.., |key, value| {
                    records.insert(key.to_vec(), value.to_vec());
                    true
                })
                .unwrap();
                "scan"
            }
            6 => {
                tree.scan_reverse(.., |key, value| {
                    records.insert(key.to_vec(), value.to_vec());
                    true
                })
                .unwrap();
                "scan_reverse"
            }
            7 => {
                records.extend(tree.range(..).map(Result::unwrap));
                "range"
            }
            _ => {
                records.extend(tree.range(..).rev().map(Result::unwrap));
                "range, reversed"
            }
        };
        self.saw_all(how, &known, |key| records.get(key).map(Vec::as_slice));
    }
}

struct Image {
    device: Arc<FaultDevice>,
    known: Vec<u64>,
    begun: Vec<u64>,
    how: Vec<String>,
}

fn run(seed: u64, options: &Options) {
    let plan = FaultPlan::new(seed).latency_us(0..=200);
    let device = FaultDevice::new(0, plan.max_bytes(Some(96 << 20)));
    let mut simulation =
        Simulation::new(Volume::from_device(device.clone()), options, seed).unwrap();
    let store = simulation.store().clone();
    let scene = Arc::new(Scene {
        tree: store.create_tree("t").unwrap(),
        store,
        groups: (0..GROUPS).map(|_| Group::default()).collect(),
        what: format!("seed {seed}"),
    });
    // Other records between those that are watched: several leaves.
    for n in 0..200_u32 {
        let key = [(n % 40) as u8, 200, n as u8];
        scene.tree.insert(&key, &[1; 100]).unwrap();
    }
    let mut random = Random::new(seed);
    let mut images = Vec::new();
    let tasks: Vec<_> = (0..GROUPS + 4)
        .map(|task| {
            let scene = Arc::clone(&scene);
            let mut random = Random::new(seed * 100 + task as u64);
            simulation.spawn(task, move || {
                for _ in 0..60 {
                    if task < GROUPS {
                        scene.write(task, &mut random);
                    } else {
                        scene.read(&mut random);
                    }
                }
            })
        })
        .collect();
    for variant in 0..24 {
        let mut steps = 0;
        let wanted = 20 + random.below(400);
        let enough = || {
            steps += 1;
            steps > wanted
        };
        simulation.run_until(enough, 1 << 40).unwrap();
        let survivors = [Survivors::Random, Survivors::None, Survivors::Executed];
        images.push(Image {
            device: device.crash_image(survivors[variant % 3], variant as u64),
            known: scene.known(),
            how: scene
                .groups
                .iter()
                .map(|group| group.how.lock().unwrap().clone())
                .collect(),
            begun: scene
                .groups
                .iter()
                .map(|group| group.begun.load(SeqCst))
                .collect(),
        });
    }
    tasks.into_iter().for_each(|task| task.join().unwrap());
    drop(scene);
    simulation.close().unwrap();
    for (number, image) in images.into_iter().enumerate() {
        let volume = Volume::from_device(image.device.clone());
        let simulation = Simulation::open(volume, options, seed).unwrap();
        let store = simulation.store().clone();
        let scene = Scene {
            tree: store.tree("t").unwrap(),
            groups: image
                .begun
                .iter()
                .map(|&begun| Group {
                    begun: AtomicU64::new(begun),
                    ..Group::default()
                })
                .collect(),
            store,
            what: format!("seed {seed}, power loss {number}"),
        };
        for (group, _) in scene.groups.iter().enumerate() {
            for part in 0..LENGTHS.len() {
                let found = scene.tree.get(&key(group, part)).unwrap();
                let how = format!("what is left behind {}", image.how[group]);
                scene.saw(&how, &image.known, group, part, found.as_deref());
            }
        }
        assert_sound(&scene.store, None);
        drop(scene);
        simulation.close().unwrap();
    }
}

fn seeds() -> std::ops::Range<u64> {
    0..parameter("ISOBATH_SEEDS", 6)
}

#[test]
fn what_a_reader_saw_survives_power_loss() {
    seeds().for_each(|seed| run(seed, &options()));
}

#[test]
fn commits_too_large_for_the_version_store_are_seen_once_they_are_durable() {
    seeds().for_each(|seed| run(seed, &options().version_store_bytes(400)));
}

#[test]
fn this_would_find_commits_that_are_shown_early() {
    let found = std::thread::spawn(|| {
        Canary::ShowEarly.switch_on();
        (0..20).for_each(|seed| run(seed, &options()));
    });
    assert!(found.join().is_err());
}
