//! Stores whose pages, superblocks and records are sound in themselves, and lie.

use std::ops::ControlFlow;
use std::sync::Arc;

use isobath::{Error, Options, SalvageOptions, Store, Volume, salvage_volume};
use isobath_io::MemoryDevice;

use super::Input;
use crate::piece::{self, Seal};

const LOG: u64 = 4 << 20;
/// Bytes that a mutated store may grow by.
const GROWTH: u64 = 4 << 20;
/// Records that are read, and pages that are salvaged, of a mutated store.
const MAX_STEPS: usize = 20_000;

fn options() -> Options {
    Options::new()
        .pool_bytes(2 << 20)
        .workers(1)
        .tasks_per_worker(16)
        .depth_per_worker(16)
        .segment_bytes(64 << 10)
        .publish_stats(false)
}

fn device(bytes: u64) -> Volume {
    Volume::from_device(Arc::new(MemoryDevice::new(bytes, Some(bytes + GROWTH))))
}

/// A store with pages of every kind, as it is when it was closed, and as a crash leaves it.
fn images() -> Result<Vec<Vec<u8>>, Error> {
    let mut images = Vec::new();
    for log in [0, LOG] {
        let volume = device(12 << 20);
        let (before, after) = (volume.device().clone(), volume.device().clone());
        let store = Store::create_on_volume(volume, &options().log_bytes(log))?;
        fill(&store)?;
        if log > 0 {
            images.push(read(&Volume::from_device(before))?);
        }
        store.close()?;
        images.push(read(&Volume::from_device(after))?);
    }
    Ok(images)
}

fn read(volume: &Volume) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; usize::try_from(volume.len()).unwrap_or(0)];
    volume.read_at(0, &mut bytes)?;
    Ok(bytes)
}

fn fill(store: &Store) -> Result<(), Error> {
    let tree = store.create_tree("t")?;
    for n in 0u64..900 {
        let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let length = [0, 30, 200, 900, 1500, 9000][(n % 6) as usize];
        tree.insert(&key, &vec![n as u8; length])?;
        if n % 5 == 0 {
            tree.remove(&key)?;
        }
    }
    let mut writer = tree.writer(b"stream")?;
    for part in 0u8..20 {
        writer.append(&[part; 9000])?;
        tree.insert(&[part; 3], b"between")?;
    }
    writer.finish()?;
    store.create_tree("dropped")?.insert(b"k", b"v")?;
    store.drop_tree("dropped")?;
    let mut transaction = store.begin()?;
    transaction.insert(&tree, b"a", b"1")?;
    transaction.insert(&tree, b"b", b"2")?;
    Ok(transaction.commit()?)
}

/// The images, with the pieces that `of` chooses.
pub(super) fn inputs(of: fn(Seal) -> bool) -> Vec<Input> {
    let images = images().unwrap_or_default();
    let chosen = images.into_iter().map(|bytes| {
        let mut pieces = piece::of_volume(&bytes);
        pieces.retain(|piece| of(piece.seal));
        Input {
            bytes,
            pieces,
            is_fixed: true,
        }
    });
    chosen.filter(|input| !input.pieces.is_empty()).collect()
}

/// Opens a store in every way, reads, checks, changes and salvages it.
pub(super) fn run(image: &[u8]) {
    let with = |options: &Options, work: fn(&Store) -> Result<(), Error>| {
        let volume = device(image.len() as u64);
        if volume.write_at(0, image).is_err() {
            return;
        }
        // Errors are what a mutated store is to give.
        if let Ok(store) = Store::open_on_volume(volume, options) {
            let _ = work(&store);
            let _ = store.close();
        }
    };
    with(&options().read_only(true), read_all);
    with(&options(), |store| {
        let read = read_all(store);
        change(store).and(read)
    });
    let _ = salvage(image);
}

fn read_all(store: &Store) -> Result<(), Error> {
    let checked = store.check(&mut |_, _| {});
    for info in store.trees()? {
        let tree = store.tree(&info.name)?;
        let _ = tree.get(b"stream");
        let _ = tree
            .range(..)
            .take(MAX_STEPS)
            .filter(Result::is_err)
            .count();
        let _ = tree
            .range(..)
            .rev()
            .take(MAX_STEPS)
            .filter(Result::is_err)
            .count();
    }
    checked.map(drop)
}

fn change(store: &Store) -> Result<(), Error> {
    let tree = store.open_or_create_tree("t")?;
    let mut outcome = Ok(());
    for n in 0u64..60 {
        let key = (n * 15).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let done = match n % 3 {
            0 => tree.insert(&key, &vec![7; 40 * n as usize]).map(drop),
            1 => tree.remove(&key).map(drop),
            _ => tree.insert(&[n as u8; 900], b"new").map(drop),
        };
        outcome = outcome.and(done);
    }
    outcome.and(store.drop_tree("t").map(drop))
}

fn salvage(image: &[u8]) -> Result<(), Error> {
    let from = device(image.len() as u64);
    from.write_at(0, image)?;
    for search in [false, true] {
        let to = Store::create_on_volume(device(12 << 20), &options())?;
        let mut steps = 0;
        let mut watch = |_: &'static str, _: u64, _: u64| {
            steps += 1;
            match steps < MAX_STEPS {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let options = SalvageOptions::new().search(search);
        let _ = salvage_volume(&from, &to, &options, &mut watch);
        to.close()?;
    }
    Ok(())
}
