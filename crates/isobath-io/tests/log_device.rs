//! A volume's log device: its own file, its own flushes, and its refusals.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::PathBuf;

use common::*;
use isobath_io::{
    Access, AlignedBuf, Backend, Io, IoErrorKind, LOG_OFFSET, Volume, VolumeError, VolumeOptions,
};

const MIB: u64 = 1 << 20;

fn options(backend: Backend) -> VolumeOptions {
    VolumeOptions::new().backend(backend).stripe_unit(8192)
}

/// A volume with a log device over every backend, on one and on three members.
fn each(test: impl Fn(&str, &Volume, PathBuf)) {
    for backend in BACKENDS {
        if matches!(backend, Backend::IoUring { .. }) && !uring_allowed() {
            continue;
        }
        for members in [1, 3] {
            let dir = scratch();
            let volume = Volume::create(&paths(&dir, members), &options(*backend)).unwrap();
            volume.grow(MIB).unwrap();
            let log = dir.path().join("log");
            volume.create_log(&log, 4 * MIB).unwrap();
            test(&format!("{backend:?} on {members}"), &volume, log);
        }
    }
}

#[test]
fn both_devices_keep_their_bytes() {
    each(|name, volume, log| {
        assert_eq!((volume.len(), volume.log_len()), (MIB, 4 * MIB), "{name}");
        let mut channel = open(volume);
        let (data, logged) = (pattern(65536, 1), pattern(65536, 2));
        let ios = [
            Io::write(4096, data.as_ptr(), 65536, 0),
            Io::write(LOG_OFFSET + 4096, logged.as_ptr(), 65536, 1).durable(),
        ];
        // SAFETY: the buffers outlive the call.
        for done in unsafe { run_all(&mut *channel, &ios) } {
            done.result.unwrap();
        }
        // A log write is not split, however many members there are.
        let mut back = AlignedBuf::new(65536);
        let before = channel.stats().device_requests;
        let io = Io::read(LOG_OFFSET + 4096, back.as_mut_ptr(), 65536, 2);
        // SAFETY: `back` outlives the call.
        unsafe { run(&mut *channel, io) }.unwrap();
        assert_eq!(channel.stats().device_requests - before, 1, "{name}");
        assert!(*back == *logged, "{name}");
        let mut unaligned = vec![0; 5000];
        volume.read_at(LOG_OFFSET + 5000, &mut unaligned).unwrap();
        assert!(unaligned[..] == logged[904..5904], "{name}");
        volume.read_at(5000, &mut unaligned).unwrap();
        assert!(unaligned[..] == data[904..5904], "{name}");
        volume
            .write_at(LOG_OFFSET + 4 * MIB - 4096, &data[..4096])
            .unwrap();
        volume.sync().unwrap();
        let file = fs::read(log).unwrap();
        assert!(file[4096..69632] == logged[..], "{name}");
        assert!(file[4 * MIB as usize - 4096..] == data[..4096], "{name}");
    });
}

#[test]
fn flushing_the_data_leaves_the_log_device_alone() {
    each(|name, volume, _| {
        let members = u64::from(volume.layout().members);
        let mut channel = open(volume);
        // SAFETY: a flush has no memory.
        unsafe { run(&mut *channel, Io::flush(1)) }.unwrap();
        assert_eq!(channel.stats().device_requests, members, "{name}");
    });
}

#[test]
fn nothing_lies_between_the_devices_or_beyond_them() {
    each(|name, volume, _| {
        let buf = pattern(8192, 1);
        let mut channel = open(volume);
        let ends = [MIB, LOG_OFFSET + 4 * MIB];
        for offset in ends
            .into_iter()
            .flat_map(|end| [end - 4096, end])
            .chain([LOG_OFFSET - 8192])
        {
            // SAFETY: `buf` outlives the call.
            let done = unsafe { run(&mut *channel, Io::write(offset, buf.as_ptr(), 8192, 1)) };
            assert_eq!(
                done.unwrap_err().kind(),
                IoErrorKind::OutOfRange,
                "{name} {offset}"
            );
            let done = volume.write_at(offset, &buf);
            assert_eq!(
                done.unwrap_err().kind(),
                IoErrorKind::OutOfRange,
                "{name} {offset}"
            );
        }
    });
}

#[test]
fn a_log_device_is_opened_again_for_writing_or_reading() {
    let dir = scratch();
    let (data, log) = (paths(&dir, 1), dir.path().join("log"));
    let volume = Volume::create(&data, &VolumeOptions::new()).unwrap();
    volume.create_log(&log, MIB).unwrap();
    let page = pattern(4096, 3);
    volume.write_at(LOG_OFFSET, &page).unwrap();
    drop(volume);
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let options = VolumeOptions::new().access(access);
        let volume = Volume::open(&data, &options).unwrap();
        assert_eq!(volume.log_len(), 0);
        volume.open_log(&log).unwrap();
        assert_eq!(volume.log_len(), MIB);
        let mut back = vec![0; 4096];
        volume.read_at(LOG_OFFSET, &mut back).unwrap();
        assert!(back == *page);
        let written = volume.write_at(LOG_OFFSET, &page);
        assert_eq!(written.is_ok(), access == Access::ReadWrite);
    }
}

#[test]
fn what_cannot_be_a_log_device() {
    let dir = scratch();
    let data = paths(&dir, 2);
    let volume = Volume::create(&data, &options(Backend::Auto)).unwrap();
    let free = dir.path().join("log");
    let refused = |made: Result<(), VolumeError>, words: &str| {
        let text = made.unwrap_err().to_string();
        assert!(text.contains(words), "{words:?} is missing in: {text}");
        assert_eq!(volume.log_len(), 0);
    };
    refused(volume.open_log(&free), "does not exist");
    refused(volume.open_log(dir.path()), "is a directory");
    refused(volume.create_log(dir.path(), MIB), "is a directory");
    refused(volume.open_log(&data[1]), "same file");
    refused(volume.create_log(&data[1], MIB), "same file");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&data[0], &link).unwrap();
    refused(volume.open_log(&link), "same file");
    refused(volume.create_log(&free, 4097), "multiple of 4096");
    refused(volume.create_log(&free, 1 << 60), "no more bytes");
    assert!(!free.exists(), "a refused log file was left behind");
    fs::write(&free, b"mine").unwrap();
    refused(volume.create_log(&free, MIB), "exists already");
    assert_eq!(fs::read(&free).unwrap(), b"mine");
    fs::remove_file(&free).unwrap();

    let other = Volume::create(&[dir.path().join("other")], &VolumeOptions::new()).unwrap();
    other.create_log(&free, MIB).unwrap();
    refused(volume.open_log(&free), "in use");
    let second = other.create_log(&dir.path().join("log2"), MIB);
    assert!(matches!(second, Err(VolumeError::LogRefused { .. })));
    assert!(!dir.path().join("log2").exists());
    drop(other);
    volume.open_log(&free).unwrap();

    let memory = Volume::in_memory(0, None);
    let made = memory.create_log(&dir.path().join("log3"), MIB);
    assert!(matches!(made, Err(VolumeError::LogRefused { .. })));
}
