//! Backups and exports.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use isobath::{BackupOptions, Error, Options, Store, Volume};
use isobath_lab::Silent;
use isobath_lab::export::{ExportPlan, ImportFile, export};
use tempfile::{NamedTempFile, TempDir};

use super::{Input, Target};
use crate::piece;

pub(super) fn targets() -> [Target; 2] {
    [
        Target {
            name: "backup",
            about: "backup files",
            inputs: backups,
            run: restore,
        },
        Target {
            name: "export",
            about: "export files",
            inputs: exports,
            run: import,
        },
    ]
}

fn options() -> Options {
    Options::new()
        .pool_bytes(2 << 20)
        .workers(1)
        .tasks_per_worker(16)
        .segment_bytes(64 << 10)
        .log_bytes(4 << 20)
        .publish_stats(false)
}

fn volume() -> Volume {
    Volume::in_memory(16 << 20, Some(24 << 20))
}

fn filled() -> Result<Store, Error> {
    let store = Store::create_on_volume(volume(), &options())?;
    let tree = store.create_tree("t")?;
    for n in 0u32..300 {
        let length = [0, 40, 700, 3000][(n % 4) as usize];
        tree.insert(&n.to_le_bytes(), &vec![n as u8; length])?;
    }
    tree.insert(b"large", &vec![9; 300_000])?;
    Ok(store)
}

fn file_of(make: impl FnOnce(&Store, &Path) -> Option<()>) -> Option<Vec<u8>> {
    let store = filled().ok()?;
    let place = TempDir::new().ok()?;
    let path: PathBuf = place.path().join("file");
    make(&store, &path)?;
    store.close().ok()?;
    std::fs::read(path).ok()
}

fn backups() -> Vec<Input> {
    let file = file_of(|store, path| {
        let mut watch = |_: &'static str, _: u64, _: u64| ControlFlow::Continue(());
        store
            .backup(path, &BackupOptions::new(), &mut watch)
            .ok()
            .map(drop)
    });
    let input = |bytes: Vec<u8>| Input {
        pieces: piece::of_backup(&bytes),
        bytes,
        is_fixed: false,
    };
    file.into_iter().map(input).collect()
}

fn exports() -> Vec<Input> {
    let file = file_of(|store, path| {
        let plan = ExportPlan {
            to: Some(path.to_owned()),
            trees: Vec::new(),
            overwrite: false,
        };
        export(store, &plan, &Silent).ok().map(drop)
    });
    let input = |bytes: Vec<u8>| Input {
        pieces: piece::of_export(&bytes),
        bytes,
        is_fixed: false,
    };
    file.into_iter().map(input).collect()
}

fn temporary(bytes: &[u8]) -> Option<NamedTempFile> {
    let mut file = NamedTempFile::new().ok()?;
    file.write_all(bytes).ok()?;
    Some(file)
}

fn restore(bytes: &[u8]) {
    let Some(file) = temporary(bytes) else { return };
    let volume = volume();
    let device = volume.device().clone();
    let mut watch = |_: &'static str, _: u64, _: u64| ControlFlow::Continue(());
    let restored = Store::restore_on_volume(&[file.path()], volume, &options(), &mut watch);
    if restored.is_ok()
        && let Ok(store) = Store::open_on_volume(Volume::from_device(device), &options())
    {
        let _ = store.check(&mut |_, _| {});
        let _ = store.close();
    }
}

fn import(bytes: &[u8]) {
    let Some(file) = temporary(bytes) else { return };
    let Ok(store) = Store::create_on_volume(volume(), &options()) else {
        return;
    };
    if let Ok(from) = ImportFile::open(Some(file.path()), &Silent) {
        let _ = from.import(&store, false);
    }
    let _ = store.close();
}
