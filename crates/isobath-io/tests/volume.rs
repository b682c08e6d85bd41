//! Creating, opening, growing and refusing volumes.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

use common::*;
use isobath_io::{
    Access, BackendKind, DirectMode, IoErrorKind, Volume, VolumeError, VolumeOptions,
};

const MIB: u64 = 1 << 20;

fn read_only() -> VolumeOptions {
    VolumeOptions::new().access(Access::ReadOnly)
}

fn create(paths: &[PathBuf]) -> Volume {
    Volume::create(paths, &VolumeOptions::new().stripe_unit(65536)).unwrap()
}

/// All bytes of some files, to see that a failed open changed nothing.
fn contents(paths: &[PathBuf]) -> Vec<Option<Vec<u8>>> {
    paths.iter().map(|p| fs::read(p).ok()).collect()
}

/// Tries to open and fails; checks that nothing changed on disk and that the message names what it
/// should.
fn refuse(paths: &[PathBuf], options: &VolumeOptions, words: &[&str]) -> VolumeError {
    let before = contents(paths);
    let error = Volume::open(paths, options).unwrap_err();
    assert!(
        contents(paths) == before,
        "a refused open changed the files"
    );
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
    error
}

/// A copy that has left out blocks of zeros, and blocks that were given back, get room again before
/// anything is written.
#[test]
fn opening_for_writing_gives_files_all_their_blocks() {
    let dir = scratch();
    let paths = paths(&dir, 2);
    let data = pattern(65536, 9);
    let volume = create(&paths);
    volume.grow(4 * MIB).unwrap();
    volume.write_at(MIB, &data).unwrap();
    let allocated = || -> u64 {
        let blocks = |path| 512 * fs::metadata(path).unwrap().blocks();
        paths.iter().map(blocks).sum()
    };
    assert!(allocated() >= 4 * MIB);
    volume.discard_at(2 * MIB, 2 * MIB).unwrap();
    volume.discard_at(0, MIB).unwrap();
    assert!(allocated() < 2 * MIB, "{}", allocated());
    drop(volume);
    for (options, writes) in [(read_only(), false), (VolumeOptions::new(), true)] {
        drop(volume_of(&paths, &options, &data));
        assert_eq!(allocated() >= 4 * MIB, writes, "{}", allocated());
    }
    let in_memory = Volume::in_memory(MIB, None);
    in_memory.write_at(8192, &data).unwrap();
    in_memory.discard_at(8192, 4096).unwrap();
    let mut found = vec![0; 8192];
    in_memory.read_at(8192, &mut found).unwrap();
    assert!(found[..4096] == [0; 4096] && found[4096..] == data[4096..8192]);
    let beyond = in_memory.discard_at(MIB, 4096).unwrap_err();
    assert_eq!(beyond.kind(), IoErrorKind::OutOfRange);
}

/// The volume, which has `data` at 1 MiB.
fn volume_of(paths: &[PathBuf], options: &VolumeOptions, data: &[u8]) -> Volume {
    let volume = Volume::open(paths, options).unwrap();
    let mut found = vec![0; data.len()];
    volume.read_at(MIB, &mut found).unwrap();
    assert!(found == data);
    volume
}

#[test]
fn a_volume_keeps_its_bytes_and_length_over_reopening() {
    for n in [1, 2, 5] {
        let dir = scratch();
        let paths = paths(&dir, n);
        let data = pattern(MIB as usize, 9);
        let volume = create(&paths);
        assert_eq!(volume.len(), 0);
        volume.grow(MIB).unwrap();
        volume.grow(4096).unwrap();
        assert_eq!(volume.len(), MIB);
        volume.write_at(0, &data).unwrap();
        volume.grow(MIB + 12288).unwrap();
        volume.sync().unwrap();
        drop(volume);
        for options in [VolumeOptions::new(), read_only()] {
            let volume = Volume::open(&paths, &options).unwrap();
            assert_eq!(volume.len(), MIB + 12288);
            let mut back = vec![1; MIB as usize + 12288];
            volume.read_at(0, &mut back).unwrap();
            assert!(back[..MIB as usize] == *data);
            assert!(back[MIB as usize..].iter().all(|b| *b == 0));
        }
    }
}

#[test]
fn growing_allocates_blocks() {
    let dir = scratch();
    let paths = paths(&dir, 2);
    let volume = create(&paths);
    volume.grow(8 * MIB).unwrap();
    for path in &paths {
        let blocks = fs::metadata(path).unwrap().blocks();
        assert!(blocks * 512 >= 4 * MIB, "{blocks} blocks of 512 bytes");
    }
}

#[test]
fn limits_are_kept() {
    let dir = scratch();
    let options = VolumeOptions::new().max_bytes(Some(2 * MIB));
    let volume = Volume::create(&paths(&dir, 1), &options).unwrap();
    assert_eq!(volume.limit(), Some(2 * MIB));
    volume.grow(2 * MIB).unwrap();
    let error = volume.grow(2 * MIB + 4096).unwrap_err();
    assert!(matches!(error, VolumeError::Limit { limit, .. } if limit == 2 * MIB));
    assert_eq!(volume.len(), 2 * MIB);
    let crooked = volume.grow(2 * MIB + 1).unwrap_err();
    assert!(
        matches!(crooked, VolumeError::BadOption { .. }),
        "{crooked}"
    );
}

#[test]
fn a_second_opener_is_refused_by_name() {
    let dir = scratch();
    let paths = paths(&dir, 2);
    let writer = create(&paths);
    let pid = std::process::id().to_string();
    let name = paths[0].display().to_string();
    for options in [VolumeOptions::new(), read_only()] {
        let error = refuse(&paths, &options, &[&name, &pid, "a writer"]);
        assert!(matches!(error, VolumeError::Locked { writer: true, .. }));
    }
    drop(writer);
    let reader = Volume::open(&paths, &read_only()).unwrap();
    let second = Volume::open(&paths, &read_only()).unwrap();
    let error = refuse(
        &paths,
        &VolumeOptions::new(),
        &[&name, &pid, "a reader", "read-only"],
    );
    assert!(matches!(error, VolumeError::Locked { writer: false, .. }));
    drop((reader, second));
    Volume::open(&paths, &VolumeOptions::new()).unwrap();
}

#[test]
fn a_reader_beside_a_writer_pins_what_it_reads() {
    let dir = scratch();
    let paths = paths(&dir, 2);
    let beside = VolumeOptions::new().access(Access::Beside);
    drop(create(&paths));
    let first = Volume::open(&paths, &beside).unwrap();
    assert!(!first.has_writer());
    let writer = Volume::open(&paths, &VolumeOptions::new()).unwrap();
    let second = Volume::open(&paths, &beside).unwrap();
    assert!(first.has_writer() && second.has_writer() && !writer.has_writer());
    refuse(&paths, &VolumeOptions::new(), &["a writer"]);
    assert!(!writer.is_pinned(0..=u64::MAX));
    assert!(first.pin(7) && second.pin(7) && first.pin(9));
    let pinned = |numbers: &[u64]| {
        let found: Vec<u64> = (0..20).filter(|&n| writer.is_pinned(n..=n)).collect();
        assert_eq!(found, numbers);
    };
    pinned(&[7, 9]);
    assert!(writer.is_pinned(8..=u64::MAX) && !writer.is_pinned(10..=u64::MAX));
    let nothing = std::ops::RangeInclusive::new(9, 8);
    assert!(!writer.is_pinned(nothing));
    // A reader meets the pins of others only, and a channel keeps its own.
    assert!(first.is_pinned(7..=7) && !first.is_pinned(9..=9));
    let channel = open(&first);
    drop((first, second));
    pinned(&[9]);
    drop(channel);
    pinned(&[]);
    let late = Volume::open(&paths, &beside).unwrap();
    drop(writer);
    assert!(!late.has_writer() && !late.pin(u64::MAX));
    let written = late.write_at(0, &[0; 4096]).unwrap_err();
    assert_eq!(written.kind(), IoErrorKind::ReadOnly);
    assert!(late.grow(64 << 20).is_err());
}

#[test]
fn a_lock_lasts_as_long_as_the_last_channel() {
    let dir = scratch();
    let paths = paths(&dir, 1);
    let volume = create(&paths);
    let channel = open(&volume);
    drop(volume);
    assert!(matches!(
        Volume::open(&paths, &read_only()),
        Err(VolumeError::Locked { .. })
    ));
    drop(channel);
    Volume::open(&paths, &read_only()).unwrap();
}

#[test]
fn missing_files_directories_and_odd_objects() {
    let dir = scratch();
    let missing = dir.path().join("nothing");
    let error = refuse(
        std::slice::from_ref(&missing),
        &read_only(),
        &["nothing", "does not exist"],
    );
    assert!(matches!(error, VolumeError::NotFound { .. }));
    let error = refuse(&[dir.path().to_owned()], &read_only(), &["directory"]);
    assert!(matches!(error, VolumeError::IsDirectory { .. }));
    let error = refuse(&["/dev/null".into()], &read_only(), &["/dev/null"]);
    assert!(matches!(error, VolumeError::NotAFile { .. }));
    let error = Volume::create(&[dir.path().to_owned()], &VolumeOptions::new()).unwrap_err();
    assert!(matches!(error, VolumeError::IsDirectory { .. }));
    let below = missing.join("far").join("below");
    let opened = Volume::open(std::slice::from_ref(&below), &read_only());
    let created = Volume::create(&[below], &VolumeOptions::new());
    for error in [opened.unwrap_err(), created.unwrap_err()] {
        let VolumeError::NoDirectory { directory, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*directory, missing, "{error}");
    }
    let error = refuse(&[], &read_only(), &["1 to 256"]);
    assert!(matches!(error, VolumeError::BadOption { .. }));
}

#[test]
fn existing_files_are_not_overwritten_and_failed_creations_leave_nothing() {
    let dir = scratch();
    let paths = paths(&dir, 3);
    fs::write(&paths[2], b"precious").unwrap();
    let error = Volume::create(&paths, &VolumeOptions::new()).unwrap_err();
    assert!(matches!(&error, VolumeError::AlreadyExists { path } if *path == paths[2]));
    assert!(!paths[0].exists() && !paths[1].exists());
    assert_eq!(fs::read(&paths[2]).unwrap(), b"precious");
    let twice = [paths[0].clone(), paths[0].clone()];
    let error = Volume::create(&twice, &VolumeOptions::new()).unwrap_err();
    assert!(matches!(error, VolumeError::Duplicate { .. }));
    assert!(!paths[0].exists());
}

#[test]
fn foreign_and_corrupt_and_newer_files() {
    let dir = scratch();
    let one = paths(&dir, 1);
    for content in [&b""[..], b"short", &[7; 100_000], &[0; 8192]] {
        fs::write(&one[0], content).unwrap();
        let error = refuse(
            &one,
            &VolumeOptions::new(),
            &["member0", "not an Isobath store"],
        );
        assert!(matches!(error, VolumeError::Foreign { .. }));
    }
    fs::remove_file(&one[0]).unwrap();
    create(&one).grow(MIB).unwrap();
    let good = fs::read(&one[0]).unwrap();

    let mut corrupt = good.clone();
    corrupt[40] ^= 1;
    fs::write(&one[0], &corrupt).unwrap();
    assert_eq!(
        Volume::open(&one, &read_only()).unwrap().len(),
        MIB,
        "one copy is enough"
    );
    corrupt[4096 + 40] ^= 1;
    fs::write(&one[0], &corrupt).unwrap();
    let error = refuse(&one, &VolumeOptions::new(), &["corrupt", "member0"]);
    assert!(matches!(error, VolumeError::LabelCorrupt { .. }));

    let mut newer = good;
    newer[8] = 2;
    newer[4096 + 8] = 2;
    fs::write(&one[0], &newer).unwrap();
    let error = refuse(
        &one,
        &VolumeOptions::new(),
        &["format 2", "up to 1", "newer Isobath"],
    );
    assert!(matches!(error, VolumeError::NewerFormat { found: 2, .. }));
}

#[test]
fn truncated_files_are_refused() {
    for (n, victim) in [(1, 0), (3, 0), (3, 2)] {
        let dir = scratch();
        let paths = paths(&dir, n);
        create(&paths).grow(MIB).unwrap();
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&paths[victim])
            .unwrap();
        let size = file.metadata().unwrap().len();
        file.set_len(size + 1).unwrap();
        drop(Volume::open(&paths, &read_only()).unwrap());
        file.set_len(size - 1).unwrap();
        let error = refuse(&paths, &VolumeOptions::new(), &["truncated"]);
        let expected = matches!(&error, VolumeError::Truncated { path, expected, found }
            if *path == paths[victim] && *expected == size && *found == size - 1);
        assert!(expected, "{error}");
    }
}

#[test]
fn wrong_order_missing_members_and_strangers() {
    let dir = scratch();
    let p = paths(&dir, 3);
    create(&p).grow(MIB).unwrap();
    let options = VolumeOptions::new();

    let swapped = [p[0].clone(), p[2].clone(), p[1].clone()];
    let error = refuse(&swapped, &options, &["wrong order", "member2", "member0 "]);
    let VolumeError::WrongOrder {
        right_order,
        given,
        found,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!((right_order, given, found), (p.clone(), 1, 2));

    let error = refuse(&p[..2], &options, &["3 files", "number 2"]);
    assert!(
        matches!(error, VolumeError::WrongCount { expected: 3, given: 2, missing, .. } if missing == [2])
    );
    let error = refuse(&p[1..2], &options, &["number 0, number 2"]);
    assert!(matches!(error, VolumeError::WrongCount { .. }));

    let other = scratch();
    let q = paths(&other, 3);
    create(&q);
    let mixed = [p[0].clone(), q[1].clone(), p[2].clone()];
    let error = refuse(&mixed, &options, &["different stores"]);
    assert!(matches!(error, VolumeError::DifferentVolumes { .. }));

    let copy = dir.path().join("copy");
    fs::copy(&p[1], &copy).unwrap();
    let copied = [p[0].clone(), p[1].clone(), copy];
    assert!(matches!(
        refuse(&copied, &options, &["copy"]),
        VolumeError::Duplicate { .. }
    ));
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&p[0], &link).unwrap();
    let linked = [p[0].clone(), p[1].clone(), link];
    assert!(matches!(
        refuse(&linked, &options, &["link"]),
        VolumeError::Duplicate { .. }
    ));

    Volume::open(&p, &options).unwrap();
}

#[test]
fn a_growth_that_reached_only_some_labels_does_not_count() {
    let dir = scratch();
    let p = paths(&dir, 2);
    let volume = create(&p);
    volume.grow(MIB).unwrap();
    let old: Vec<u8> = fs::read(&p[1]).unwrap()[..8192].to_vec();
    volume.grow(2 * MIB).unwrap();
    drop(volume);
    // As if the crash came before the second label was written.
    let second = fs::OpenOptions::new().write(true).open(&p[1]).unwrap();
    second.write_all_at(&old, 0).unwrap();
    let volume = Volume::open(&p, &VolumeOptions::new()).unwrap();
    assert_eq!(volume.len(), MIB);
    volume.grow(3 * MIB).unwrap();
    drop(volume);
    assert_eq!(Volume::open(&p, &read_only()).unwrap().len(), 3 * MIB);
}

#[test]
fn a_read_only_volume_refuses_writes() {
    let dir = scratch();
    let p = paths(&dir, 1);
    create(&p).grow(MIB).unwrap();
    let volume = Volume::open(&p, &read_only()).unwrap();
    let before = contents(&p);
    let buf = pattern(4096, 1);
    let mut channel = open(&volume);
    for io in [
        isobath_io::Io::write(0, buf.as_ptr(), 4096, 1),
        isobath_io::Io::discard(0, 4096, 1),
    ] {
        // SAFETY: `buf` outlives the call.
        let error = unsafe { run(&mut *channel, io) }.unwrap_err();
        assert_eq!(error.kind(), isobath_io::IoErrorKind::ReadOnly);
    }
    assert_eq!(
        volume.write_at(0, &buf).unwrap_err().kind(),
        isobath_io::IoErrorKind::ReadOnly
    );
    assert!(matches!(
        volume.grow(2 * MIB),
        Err(VolumeError::ReadOnly { .. })
    ));
    assert!(matches!(
        Volume::create(&[dir.path().join("new")], &read_only()),
        Err(VolumeError::ReadOnly { .. })
    ));
    assert!(contents(&p) == before);
}

#[test]
fn files_without_permission() {
    let dir = scratch();
    let p = paths(&dir, 1);
    create(&p);
    fs::set_permissions(&p[0], fs::Permissions::from_mode(0o000)).unwrap();
    match Volume::open(&p, &VolumeOptions::new()) {
        Err(VolumeError::PermissionDenied { path }) => assert_eq!(path, p[0]),
        // The superuser may open anything.
        Ok(_) => assert_eq!(fs::metadata("/proc/self").unwrap().uid(), 0),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn the_report_says_what_is_in_use() {
    let dir = scratch();
    let volume = create(&paths(&dir, 1));
    let report = volume.backend_report();
    if uring_allowed() {
        let plain = BackendKind::IoUring {
            iopoll: false,
            sqpoll: false,
        };
        assert_eq!(report.backend, plain, "{report:?}");
        assert!(report.notes.is_empty(), "{report:?}");
    }
    let dir = scratch();
    let options = VolumeOptions::new().direct(DirectMode::Off);
    let volume = Volume::create(&paths(&dir, 1), &options).unwrap();
    assert!(!volume.backend_report().direct);
    assert_eq!(volume.logical_block(), 512);
}

#[test]
fn bad_options() {
    let dir = scratch();
    for unit in [0, 100, 4097, (1 << 30) + 4096] {
        let options = VolumeOptions::new().stripe_unit(unit);
        let error = Volume::create(&paths(&dir, 1), &options).unwrap_err();
        assert!(matches!(
            error,
            VolumeError::BadOption {
                option: "stripe_unit",
                ..
            }
        ));
    }
    assert!(!paths(&dir, 1)[0].exists());
}

#[test]
fn any_files_can_be_read_without_labels() {
    let dir = scratch();
    let p = paths(&dir, 2);
    let data = pattern(3 * 65536 + 100, 4);
    fs::write(&p[0], &data[..2 * 65536 + 100]).unwrap();
    fs::write(&p[1], &data[65536..3 * 65536 + 100]).unwrap();
    let options = VolumeOptions::new().stripe_unit(65536);
    let before = contents(&p);
    let volume = Volume::open_unlabelled(&p, &options).unwrap();
    assert_eq!((volume.len(), volume.layout().members), (4 * 65536, 2));
    let mut back = vec![0; 4 * 65536];
    volume.read_at(0, &mut back).unwrap();
    assert!(back[..65536] == data[..65536] && back[65536..131072] == data[65536..131072]);
    assert!(back[131072..196608] == data[65536..131072]);
    assert!(volume.write_at(0, &back[..4096]).is_err());
    let one = Volume::open_unlabelled(&p[..1], &options).unwrap();
    assert_eq!(one.len(), 2 * 65536);
    assert!(contents(&p) == before);
    fs::write(&p[0], b"tiny").unwrap();
    let error = Volume::open_unlabelled(&p, &options).unwrap_err();
    assert!(
        matches!(error, VolumeError::Truncated { found: 4, .. }),
        "{error}"
    );
}

#[test]
fn a_volume_is_made_of_empty_files() {
    let dir = scratch();
    let paths = paths(&dir, 2);
    for path in &paths {
        fs::write(path, "").unwrap();
    }
    let volume = create(&paths);
    volume.grow(MIB).unwrap();
    // Another one that is to be made of them finds them in use, then taken.
    assert!(matches!(
        Volume::create(&paths, &VolumeOptions::new()),
        Err(VolumeError::AlreadyExists { .. })
    ));
    drop(volume);
    let before = contents(&paths);
    assert!(matches!(
        Volume::create(&paths, &VolumeOptions::new()),
        Err(VolumeError::AlreadyExists { .. })
    ));
    assert!(contents(&paths) == before);
    Volume::open(&paths, &VolumeOptions::new()).unwrap();

    // A creation that fails leaves them as they were: empty.
    let empty = dir.path().join("empty");
    fs::write(&empty, "").unwrap();
    let mixed = [empty.clone(), paths[0].clone()];
    assert!(Volume::create(&mixed, &VolumeOptions::new()).is_err());
    assert_eq!(fs::read(&empty).unwrap(), b"");
    Volume::create(std::slice::from_ref(&empty), &VolumeOptions::new())
        .unwrap()
        .undo_creation();
    assert_eq!(fs::read(&empty).unwrap(), b"");
}

#[test]
fn a_link_that_leads_to_nothing_is_told_as_one() {
    let dir = scratch();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("gone", &link).unwrap();
    let paths = std::slice::from_ref(&link);
    for result in [
        Volume::open(paths, &VolumeOptions::new()),
        Volume::create(paths, &VolumeOptions::new()),
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(&error, VolumeError::DanglingLink { target, .. } if target.as_os_str() == "gone"),
            "{error}"
        );
    }
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    // One that leads to an empty file leads to a volume then.
    fs::write(dir.path().join("gone"), "").unwrap();
    drop(Volume::create(paths, &VolumeOptions::new()).unwrap());
    Volume::open(&[dir.path().join("gone")], &VolumeOptions::new()).unwrap();
}

/// What a creation leaves that was cut off after its first, its second, ... write is replaced by
/// the next one; a file with anything behind its label is not.
#[test]
fn a_creation_that_was_cut_off_is_repeated() {
    let dir = scratch();
    let files = paths(&dir, 2);
    Volume::create(&files, &over_unfinished()).unwrap();
    let label = fs::read(&files[0]).unwrap();
    let (one, two) = (&files[0], &files[1]);
    let lengths: [(usize, usize); 4] = [(0, 0), (512, 0), (8192, 0), (8192, 4096)];
    for (first, second) in lengths {
        fs::write(one, &label[..first]).unwrap();
        fs::write(two, &label[..second]).unwrap();
        let volume = Volume::create(&files, &over_unfinished()).unwrap();
        volume.grow(MIB).unwrap();
        drop(volume);
        assert_eq!(
            Volume::open(&files, &VolumeOptions::new()).unwrap().len(),
            MIB
        );
    }
    // Grown, and nothing written: as good as new.
    let volume = Volume::create(&files, &over_unfinished()).unwrap();
    assert_eq!(volume.len(), 0);
    volume.grow(MIB).unwrap();
    volume.write_at(MIB - 4096, &[1; 4096]).unwrap();
    drop(volume);
    let error = refuse_creation(&files);
    assert!(
        matches!(error, VolumeError::AlreadyExists { .. }),
        "{error}"
    );
    // A foreign file.
    fs::remove_file(two).unwrap();
    for foreign in [&b"zeros behind\0\0\0\0"[..], b"ISO 9660", b"\0\0\0ISBN"] {
        fs::write(one, foreign).unwrap();
        let error = refuse_creation(&files);
        assert!(
            matches!(error, VolumeError::AlreadyExists { .. }),
            "{error}"
        );
        assert_eq!(fs::read(one).unwrap(), foreign);
        assert!(!two.exists());
    }
}

fn over_unfinished() -> VolumeOptions {
    VolumeOptions::new().over_unfinished(true)
}

fn refuse_creation(files: &[PathBuf]) -> VolumeError {
    Volume::create(files, &VolumeOptions::new()).unwrap_err()
}
