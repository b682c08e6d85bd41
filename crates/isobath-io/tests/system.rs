//! Behaviour that needs a special kernel set-up: forbidden system calls, file systems without
//! O_DIRECT, full and read-only media, loop devices. Tests that need the superuser say so and pass
//! without doing anything otherwise.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

mod common;
#[path = "system/refused.rs"]
mod refused;

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use isobath_io::{
    Access, AlignedBuf, Backend, BackendKind, ChannelOptions, DirectMode, Io, IoErrorKind, Volume,
    VolumeError, VolumeOptions,
};

const MIB: u64 = 1 << 20;

/// Runs `test` in a thread of its own, because what it does to the thread cannot be undone.
fn in_thread(test: impl FnOnce() + Send) {
    std::thread::scope(|s| s.spawn(test).join().unwrap());
}

/// A system call that fails with an error number, if one of its arguments has this value at
/// least.
struct Refused {
    call: i64,
    errno: i32,
    argument: Option<(u32, u32)>,
}

/// Makes some system calls fail with EPERM for this thread, as a container's filter does.
fn forbid(calls: &[i64]) {
    let refused = |&call| Refused {
        call,
        errno: libc::EPERM,
        argument: None,
    };
    refuse(&calls.iter().map(refused).collect::<Vec<_>>());
}

/// Makes some system calls fail for this thread.
fn refuse(calls: &[Refused]) {
    let stmt = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let load = |at: u32| stmt(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let unless = |compare: u32, k: u32, skipped: u8| libc::sock_filter {
        jf: skipped,
        ..stmt(libc::BPF_JMP | compare | libc::BPF_K, k)
    };
    // Load the system call's number; for each refused one: if equal, and the argument is large
    // enough, answer so.
    let mut program = Vec::new();
    for refused in calls {
        program.push(load(0));
        let condition = refused.argument.map_or(vec![], |(index, least)| {
            vec![load(16 + 8 * index), unless(libc::BPF_JGE, least, 1)]
        });
        let skipped = condition.len() as u8 + 1;
        program.push(unless(libc::BPF_JEQ, refused.call as u32, skipped));
        program.extend(condition);
        let errno = libc::SECCOMP_RET_ERRNO | refused.errno as u32;
        program.push(stmt(libc::BPF_RET | libc::BPF_K, errno));
    }
    program.push(stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: both calls affect this thread only; the filter outlives the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter),
            0
        );
    }
}

/// Mounts a file system on `at`, visible to this thread only, gone with it.
fn mount(kind: &str, options: &str, at: &Path, flags: libc::c_ulong) {
    let text = |s: &str| CString::new(s).unwrap();
    let (kind, options) = (text(kind), text(options));
    let at = text(at.to_str().unwrap());
    let root = c"/";
    let none = std::ptr::null();
    // SAFETY: all strings outlive the calls. The thread gets mounts of its own first.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0);
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let result = libc::mount(none, root.as_ptr(), none, private, none.cast());
        assert_eq!(result, 0);
        let data = options.as_ptr().cast();
        let result = libc::mount(c"none".as_ptr(), at.as_ptr(), kind.as_ptr(), flags, data);
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Writes, reads back and flushes through a channel.
fn exercise(volume: &Volume) {
    volume.grow(MIB).unwrap();
    let mut channel = open(volume);
    let page = pattern(65536, 1);
    let mut back = AlignedBuf::new(65536);
    // SAFETY: the buffers outlive the calls.
    unsafe {
        run(
            &mut *channel,
            Io::write(4096, page.as_ptr(), 65536, 1).durable(),
        )
        .unwrap();
        run(&mut *channel, Io::flush(2)).unwrap();
        run(&mut *channel, Io::read(4096, back.as_mut_ptr(), 65536, 3)).unwrap();
    }
    assert!(*back == *page);
}

#[test]
fn a_write_back_that_fails_fails_every_flusher() {
    if !superuser() {
        return;
    }
    let dir = scratch();
    in_thread(|| {
        mount("tmpfs", "size=8m", dir.path(), 0);
        let Some(disk) = Loop::new(dir.path(), 32 * MIB, 4096) else {
            return;
        };
        let options = VolumeOptions::new().direct(DirectMode::Off);
        let volume = Volume::create(std::slice::from_ref(&disk.device), &options).unwrap();
        volume.grow(30 * MIB).unwrap();
        let (mut first, mut second) = (open(&volume), open(&volume));
        // The drive cannot store what it accepts: the file behind it has no space left.
        let page = pattern(MIB as usize, 1);
        let greedy = fs::File::create(dir.path().join("greedy")).unwrap();
        let mut at = 0;
        while std::os::unix::fs::FileExt::write_at(&greedy, &page, at).is_ok_and(|n| n > 0) {
            at += MIB;
        }
        // SAFETY: `page` outlives the calls.
        unsafe {
            run(&mut *first, Io::write(20 * MIB, page.as_ptr(), 4096, 1)).unwrap();
            run(&mut *second, Io::write(21 * MIB, page.as_ptr(), 4096, 1)).unwrap();
            assert!(run(&mut *first, Io::flush(2)).is_err());
            assert!(run(&mut *second, Io::flush(2)).is_err());
        }
        assert!(volume.sync().is_err());
    });
}

/// The generations of a member's two labels.
fn generations(member: &Path) -> [u64; 2] {
    let bytes = fs::read(member).unwrap();
    [0, 4096].map(|copy| u64::from_le_bytes(bytes[copy + 64..copy + 72].try_into().unwrap()))
}

#[test]
fn growth_that_fails_leaves_the_newest_label_alone() {
    let dir = scratch();
    let p = paths(&dir, 1);
    let volume = Volume::create(&p, &VolumeOptions::new()).unwrap();
    volume.grow(MIB).unwrap();
    assert_eq!(generations(&p[0]), [0, 1]);
    in_thread(|| {
        refuse(&[Refused {
            call: libc::SYS_pwrite64,
            errno: libc::ENOSPC,
            argument: None,
        }]);
        let error = volume.grow(2 * MIB).unwrap_err();
        assert!(error.is_no_space(), "{error}");
    });
    assert_eq!(generations(&p[0]), [0, 1]);
    // Torn now, this write may not hit the only copy that says how long the volume is.
    volume.grow(2 * MIB).unwrap();
    assert_eq!(generations(&p[0]), [2, 1]);
    drop(volume);
    assert_eq!(
        Volume::open(&p, &VolumeOptions::new()).unwrap().len(),
        2 * MIB
    );
}

#[test]
fn members_that_a_crash_left_apart_keep_their_newest_labels() {
    let dir = scratch();
    let p = paths(&dir, 2);
    let options = VolumeOptions::new().stripe_unit(4096);
    let volume = Volume::create(&p, &options).unwrap();
    volume.grow(MIB).unwrap();
    let old = fs::read(&p[1]).unwrap();
    volume.grow(2 * MIB).unwrap();
    drop(volume);
    // The crash came between the two labels.
    let file = fs::OpenOptions::new().write(true).open(&p[1]).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &old[..8192], 0).unwrap();
    assert_eq!((generations(&p[0]), generations(&p[1])), ([2, 1], [0, 1]));
    let volume = Volume::open(&p, &options).unwrap();
    assert_eq!(volume.len(), MIB);
    volume.grow(2 * MIB).unwrap();
    assert_eq!((generations(&p[0]), generations(&p[1])), ([2, 3], [2, 1]));
}

#[test]
fn a_failed_creation_leaves_a_block_device_as_it_was() {
    if !superuser() {
        return;
    }
    let dir = scratch();
    let Some(disk) = Loop::new(dir.path(), 32 * MIB, 512) else {
        return;
    };
    let before = fs::read(&disk.file).unwrap();
    // The second member is in the way.
    let taken = dir.path().join("taken");
    fs::write(&taken, b"something").unwrap();
    let new = dir.path().join("new");
    let p = [disk.device.clone(), new.clone(), taken];
    let error = Volume::create(&p, &VolumeOptions::new()).unwrap_err();
    assert!(
        matches!(error, VolumeError::AlreadyExists { .. }),
        "{error}"
    );
    assert!(!new.exists());
    assert!(fs::read(&disk.file).unwrap() == before);

    // Undoing a creation leaves the same, also on a device that may be overwritten.
    let one = [disk.device.clone(), new.clone()];
    let volume = Volume::create(&one, &VolumeOptions::new()).unwrap();
    volume.undo_creation();
    drop(volume);
    assert!(!new.exists());
    assert!(fs::read(&disk.file).unwrap() == before);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&disk.device)
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 512).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let before = fs::read(&disk.file).unwrap();
    let force = VolumeOptions::new().overwrite_device(true);
    let volume = Volume::create(&one, &force).unwrap();
    assert!(fs::read(&disk.file).unwrap() != before);
    volume.undo_creation();
    drop(volume);
    assert!(fs::read(&disk.file).unwrap() == before);
}

#[test]
fn a_mode_that_the_drive_refuses_falls_back_to_interrupts() {
    if !uring_allowed() {
        return;
    }
    // No file system in memory can be polled, whatever the drive below the build directory can do.
    for dir in [tempfile::TempDir::new_in("/dev/shm").unwrap(), scratch()] {
        let polled = Backend::IoUring {
            iopoll: true,
            sqpoll: false,
        };
        let options = VolumeOptions::new().backend(polled);
        let volume = Volume::create(&paths(&dir, 1), &options).unwrap();
        exercise(&volume);
        let report = volume.backend_report();
        let in_memory = dir.path().starts_with("/dev/shm");
        match report.backend {
            BackendKind::IoUring { iopoll: true, .. } => assert!(!in_memory, "{report:?}"),
            BackendKind::IoUring { .. } => {
                assert_eq!(report.notes.len(), 1);
                assert!(report.notes[0].contains("IOPOLL is refused"), "{report:?}");
            }
            other => panic!("{other}"),
        }
    }
}

/// As file systems in user space and some versions of ZFS do: opening works, reading and writing do
/// not.
#[test]
fn direct_io_that_is_refused_at_the_first_io() {
    if !superuser() {
        return;
    }
    let dir = scratch();
    in_thread(|| {
        let volume = Volume::create(&paths(&dir, 1), &VolumeOptions::new()).unwrap();
        volume.grow(MIB).unwrap();
        drop(volume);
        let invalid = |call| Refused {
            call,
            errno: libc::EINVAL,
            argument: None,
        };
        refuse(&[invalid(libc::SYS_pread64), invalid(libc::SYS_pwrite64)]);
        let required = VolumeOptions::new().direct(DirectMode::Required);
        let new = dir.path().join("new");
        for made in [
            Volume::open(&paths(&dir, 1), &required),
            Volume::create(std::slice::from_ref(&new), &required),
        ] {
            let error = made.unwrap_err();
            assert!(
                matches!(error, VolumeError::DirectRefused { .. }),
                "{error}"
            );
        }
        assert!(!new.exists());
    });
}

#[test]
fn a_file_system_without_direct_io_and_allocation() {
    if !superuser() {
        return;
    }
    let dir = scratch();
    in_thread(|| {
        mount("ramfs", "", dir.path(), 0);
        let required = VolumeOptions::new().direct(DirectMode::Required);
        let error = Volume::create(&paths(&dir, 1), &required).unwrap_err();
        assert!(
            matches!(error, VolumeError::DirectRefused { .. }),
            "{error}"
        );
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            0,
            "nothing is left behind"
        );

        let volume = Volume::create(&paths(&dir, 1), &VolumeOptions::new()).unwrap();
        exercise(&volume);
        let report = volume.backend_report();
        assert!(!report.direct);
        let notes: Vec<_> = report
            .notes
            .iter()
            .filter(|n| n.contains("O_DIRECT"))
            .collect();
        assert_eq!(notes.len(), 1, "{report:?}");
        // ramfs has no fallocate: the space was taken by writing zeros.
        let meta = fs::metadata(&paths(&dir, 1)[0]).unwrap();
        assert!(meta.len() >= MIB);
    });
}

#[test]
fn no_space_while_growing_and_while_writing() {
    if !superuser() {
        return;
    }
    let dir = scratch();
    in_thread(|| {
        mount("tmpfs", "size=8m", dir.path(), 0);
        let p = paths(&dir, 1);
        let volume = Volume::create(&p, &VolumeOptions::new()).unwrap();
        volume.grow(4 * MIB).unwrap();
        let size = fs::metadata(&p[0]).unwrap().len();
        let error = volume.grow(64 * MIB).unwrap_err();
        let expected = matches!(&error, VolumeError::NoSpace { path, needed } if *path == p[0] && *needed == 60 * MIB);
        assert!(expected, "{error}");
        assert_eq!(volume.len(), 4 * MIB);
        assert_eq!(
            fs::metadata(&p[0]).unwrap().len(),
            size,
            "what was taken is given back"
        );

        // A discarded range has lost its blocks; another file takes them.
        let mut channel = open(&volume);
        let page = pattern(MIB as usize, 1);
        // SAFETY: a discard has no memory.
        unsafe { run(&mut *channel, Io::discard(0, 4 << 20, 1)) }.unwrap();
        let greedy = fs::File::create(dir.path().join("greedy")).unwrap();
        let mut at = 0;
        while std::os::unix::fs::FileExt::write_at(&greedy, &page, at).is_ok_and(|n| n > 0) {
            at += MIB;
        }
        let mut failed = None;
        for i in 0..4 {
            let io = Io::write(i * MIB, page.as_ptr(), MIB as u32, i);
            // SAFETY: `page` outlives the call.
            failed = failed.or(unsafe { run(&mut *channel, io) }.err());
        }
        let error = failed.unwrap();
        assert_eq!(error.kind(), IoErrorKind::NoSpace, "{error}");
        assert!(
            error.to_string().contains("no space") && error.path() == Some(&p[0]),
            "{error}"
        );

        let full = dir.path().join("another");
        let error = Volume::create(std::slice::from_ref(&full), &VolumeOptions::new()).unwrap_err();
        assert!(matches!(error, VolumeError::NoSpace { .. }), "{error}");
        assert!(!full.exists());
    });
}

#[test]
fn read_only_media() {
    if !superuser() {
        return;
    }
    let dir = scratch();
    in_thread(|| {
        mount("tmpfs", "size=16m", dir.path(), 0);
        let p = paths(&dir, 1);
        drop(Volume::create(&p, &VolumeOptions::new()).unwrap());
        let at = CString::new(dir.path().to_str().unwrap()).unwrap();
        let none = std::ptr::null();
        let flags = libc::MS_REMOUNT | libc::MS_RDONLY;
        // SAFETY: the string outlives the call.
        let result = unsafe { libc::mount(none, at.as_ptr(), none, flags, none.cast()) };
        assert_eq!(result, 0);
        let error = Volume::open(&p, &VolumeOptions::new()).unwrap_err();
        assert!(
            matches!(&error, VolumeError::ReadOnly { path } if *path == p[0]),
            "{error}"
        );
        let new = dir.path().join("new");
        let error = Volume::create(&[new], &VolumeOptions::new()).unwrap_err();
        assert!(matches!(error, VolumeError::ReadOnly { .. }), "{error}");
        Volume::open(&p, &VolumeOptions::new().access(Access::ReadOnly)).unwrap();
    });
}

#[test]
fn a_file_that_becomes_shorter_under_an_open_volume() {
    each_backend(|options| {
        let dir = scratch();
        let p = paths(&dir, 1);
        let volume = Volume::create(&p, options).unwrap();
        volume.grow(MIB).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&p[0]).unwrap();
        let end = file.metadata().unwrap().len();
        file.set_len(end - 3 * 4096 - 512).unwrap();
        let mut channel = open(&volume);
        let mut buf = AlignedBuf::new(32768);
        let io = Io::read(MIB - 32768, buf.as_mut_ptr(), 32768, 1);
        // SAFETY: `buf` outlives the call.
        let error = unsafe { run(&mut *channel, io) }.unwrap_err();
        let IoErrorKind::Short { done } = error.kind() else {
            panic!("{error}")
        };
        assert!((16384..32768).contains(&done), "{done}");
        assert!(error.to_string().contains("member0"), "{error}");
        // SAFETY: `buf` outlives the call.
        unsafe { run(&mut *channel, Io::read(0, buf.as_mut_ptr(), 32768, 1)) }.unwrap();
    });
}

fn each_backend(test: impl Fn(&VolumeOptions)) {
    for backend in BACKENDS {
        if uring_allowed() || !matches!(backend, Backend::IoUring { .. }) {
            test(&VolumeOptions::new().backend(*backend));
        }
    }
}

/// A loop device over a sparse file, detached when dropped.
struct Loop {
    device: PathBuf,
    file: PathBuf,
}

impl Loop {
    fn new(dir: &Path, bytes: u64, sector: u32) -> Option<Loop> {
        let file = dir.join("backing");
        fs::File::create(&file).unwrap().set_len(bytes).unwrap();
        let sector = sector.to_string();
        let output = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &sector])
            .arg(&file)
            .output();
        match output {
            Ok(output) if output.status.success() => {
                let name = String::from_utf8(output.stdout).unwrap();
                let device = PathBuf::from(name.trim());
                Some(Loop { device, file })
            }
            _ => {
                skipped("no loop devices here");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("-d").arg(&self.device).status();
        assert!(detached.unwrap().success());
    }
}

#[test]
fn block_devices() {
    if !superuser() {
        return;
    }
    for sector in [512, 4096] {
        let dir = scratch();
        let Some(disk) = Loop::new(dir.path(), 32 * MIB, sector) else {
            return;
        };
        let p = vec![disk.device.clone()];
        let volume = Volume::create(&p, &VolumeOptions::new()).unwrap();
        assert_eq!(volume.logical_block(), sector);
        assert_eq!(volume.limit(), Some(30 * MIB));
        exercise(&volume);
        volume.grow(30 * MIB).unwrap();
        assert!(matches!(
            volume.grow(30 * MIB + 4096),
            Err(VolumeError::Limit { .. })
        ));
        let mut channel = open(&volume);
        let page = pattern(65536, 5);
        let mut back = AlignedBuf::new(65536);
        // SAFETY: the buffers outlive the calls.
        unsafe {
            run(
                &mut *channel,
                Io::write(30 * MIB - 65536, page.as_ptr(), 65536, 1),
            )
            .unwrap();
            run(&mut *channel, Io::discard(0, 8 << 20, 1)).unwrap();
            run(
                &mut *channel,
                Io::read(30 * MIB - 65536, back.as_mut_ptr(), 65536, 1),
            )
            .unwrap();
        }
        assert!(*back == *page);
        let busy = Volume::open(&p, &VolumeOptions::new()).unwrap_err();
        assert!(matches!(busy, VolumeError::Locked { .. }), "{busy}");
        drop((channel, volume));

        let volume = Volume::open(&p, &VolumeOptions::new()).unwrap();
        assert_eq!(volume.len(), 30 * MIB);
        drop(volume);
        let error = Volume::create(&p, &VolumeOptions::new()).unwrap_err();
        assert!(
            matches!(&error, VolumeError::DeviceInUse { what, .. } if what.contains("Isobath")),
            "{error}"
        );
        let force = VolumeOptions::new().overwrite_device(true);
        assert_eq!(Volume::create(&p, &force).unwrap().len(), 0);
    }
}

#[test]
fn a_block_device_with_other_data_is_left_alone() {
    if !superuser() {
        return;
    }
    let dir = scratch();
    let Some(disk) = Loop::new(dir.path(), 32 * MIB, 512) else {
        return;
    };
    // The place of the ext4 superblock.
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&disk.device)
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0x53, 0xef], 1080).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let before = fs::read(&disk.file).unwrap();
    let p = vec![disk.device.clone()];
    let error = Volume::create(&p, &VolumeOptions::new()).unwrap_err();
    assert!(matches!(error, VolumeError::DeviceInUse { .. }), "{error}");
    assert!(fs::read(&disk.file).unwrap() == before);
    let error = Volume::open(&p, &VolumeOptions::new()).unwrap_err();
    assert!(matches!(error, VolumeError::Foreign { .. }), "{error}");
}

#[test]
fn media_errors_reach_the_caller() {
    if !superuser() {
        return;
    }
    let dir = scratch();
    let Some(disk) = Loop::new(dir.path(), 32 * MIB, 512) else {
        return;
    };
    let p = vec![disk.device.clone()];
    drop(Volume::create(&p, &VolumeOptions::new()).unwrap());
    each_backend(|options| {
        let volume = Volume::open(&p, options).unwrap();
        volume.grow(30 * MIB).unwrap();
        // The loop driver answers EIO beyond the end of its file.
        let backing = fs::OpenOptions::new().write(true).open(&disk.file).unwrap();
        backing.set_len(16 * MIB).unwrap();
        let mut channel = open(&volume);
        let mut buf = AlignedBuf::new(4096);
        let io = Io::read(20 * MIB, buf.as_mut_ptr(), 4096, 1);
        // SAFETY: `buf` outlives the call.
        let error = unsafe { run(&mut *channel, io) }.unwrap_err();
        assert_eq!(error.kind(), IoErrorKind::Media, "{error}");
        assert_eq!(error.offset(), 20 * MIB);
        assert_eq!(
            volume.read_at(20 * MIB, &mut buf).unwrap_err().kind(),
            IoErrorKind::Media
        );
        let stats = channel.stats();
        assert_eq!((stats.read.completed, stats.read.failed), (1, 1));
        backing.set_len(32 * MIB).unwrap();
    });
}
