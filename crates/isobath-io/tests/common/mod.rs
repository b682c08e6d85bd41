//! Helpers shared by the tests.
#![allow(
    dead_code,
    unreachable_pub,
    unsafe_code,
    missing_docs,
    clippy::unwrap_used
)]

#[path = "../../../../xtask/skipped.rs"]
mod skipped;

use std::path::PathBuf;

use isobath_io::{
    AlignedBuf, Backend, Channel, ChannelOptions, Completion, Io, IoError, Volume, VolumeOptions,
};
use tempfile::TempDir;

pub use skipped::skipped;

/// A directory on the file system that holds the build, so that O_DIRECT and real drives are met.
pub fn scratch() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub fn paths(dir: &TempDir, n: usize) -> Vec<PathBuf> {
    (0..n)
        .map(|i| dir.path().join(format!("member{i}")))
        .collect()
}

pub const BACKENDS: &[Backend] = &[
    Backend::Pread,
    Backend::Libaio,
    Backend::IoUring {
        iopoll: false,
        sqpoll: false,
    },
    Backend::IoUring {
        iopoll: false,
        sqpoll: true,
    },
];

/// Whether this machine lets us use io_uring at all; containers often do not. Says so if it does
/// not.
pub fn uring_allowed() -> bool {
    let mut params = [0u8; 120];
    // SAFETY: one entry, and a zeroed `struct io_uring_params` (120 bytes) that the kernel fills
    // in.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if fd >= 0 {
        // SAFETY: the descriptor was just returned to us.
        unsafe { libc::close(fd as i32) };
    } else {
        skipped("io_uring is not allowed here");
    }
    fd >= 0
}

fn usable(backend: Backend) -> bool {
    !matches!(backend, Backend::IoUring { .. }) || uring_allowed()
}

/// Volumes over every backend, on one and on three members with a small stripe unit, and in memory.
pub fn each_volume(test: impl Fn(&str, &Volume)) {
    test("memory", &Volume::in_memory(0, None));
    for backend in BACKENDS.iter().filter(|b| usable(**b)) {
        for members in [1, 3] {
            let dir = scratch();
            let options = VolumeOptions::new().backend(*backend).stripe_unit(8192);
            let volume = Volume::create(&paths(&dir, members), &options).unwrap();
            test(&format!("{backend:?} on {members}"), &volume);
        }
    }
}

pub fn open(volume: &Volume) -> Box<dyn Channel> {
    volume.channel(&ChannelOptions::with_depth(32)).unwrap()
}

/// Submits, waits for all that are in flight, and returns the completions.
///
/// # Safety
/// As for `Channel::submit`, until this function returns.
pub unsafe fn run_all(channel: &mut dyn Channel, ios: &[Io]) -> Vec<Completion> {
    let mut out = Vec::new();
    for io in ios {
        // SAFETY: by contract.
        unsafe { channel.submit(*io) }.unwrap();
    }
    while channel.in_flight() > 0 {
        channel.wait(channel.in_flight(), None, &mut out).unwrap();
    }
    assert_eq!(out.len(), ios.len());
    out.sort_by_key(|c| c.user_data);
    out
}

/// Runs one I/O.
///
/// # Safety
/// As for `Channel::submit`, until this function returns.
pub unsafe fn run(channel: &mut dyn Channel, io: Io) -> Result<(), IoError> {
    // SAFETY: by contract.
    let mut out = unsafe { run_all(channel, &[io]) };
    assert_eq!(out[0].user_data, io.user_data);
    out.remove(0).result
}

/// A buffer whose every 8 bytes differ, by `seed`.
pub fn pattern(len: usize, seed: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::new(len);
    for (i, word) in buf.chunks_exact_mut(8).enumerate() {
        let value = (seed << 32 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&value.to_le_bytes());
    }
    buf
}

/// Whether this process may do what only the superuser may; says so where not.
pub fn superuser() -> bool {
    use std::os::unix::fs::MetadataExt;
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        skipped("needs the superuser");
    }
    root
}
