//! System calls that the kernel refuses, as in a container.

use super::*;

#[test]
fn a_forbidden_io_uring_falls_back_to_libaio_with_one_note() {
    in_thread(|| {
        forbid(&[libc::SYS_io_uring_setup]);
        let dir = scratch();
        let volume = Volume::create(&paths(&dir, 2), &VolumeOptions::new()).unwrap();
        exercise(&volume);
        let report = volume.backend_report();
        assert_eq!(report.backend, BackendKind::Libaio);
        assert_eq!(report.notes.len(), 1, "{report:?}");
        let note = &report.notes[0];
        assert!(
            note.contains("io_uring") && note.contains("not permitted"),
            "{note}"
        );
        assert!(note.contains("kernel.io_uring_disabled"), "{note}");
        drop(volume);

        let plain = Backend::IoUring {
            iopoll: false,
            sqpoll: false,
        };
        let options = VolumeOptions::new().backend(plain);
        let error = Volume::open(&paths(&dir, 2), &options).unwrap_err();
        assert!(
            matches!(
                error,
                VolumeError::BackendRefused {
                    backend: "io_uring",
                    ..
                }
            ),
            "{error}"
        );
    });
}

#[test]
fn with_libaio_forbidden_too_there_is_pread() {
    in_thread(|| {
        forbid(&[libc::SYS_io_uring_setup, libc::SYS_io_setup]);
        let dir = scratch();
        let volume = Volume::create(&paths(&dir, 1), &VolumeOptions::new()).unwrap();
        exercise(&volume);
        let report = volume.backend_report();
        assert_eq!(report.backend, BackendKind::Pread);
        assert_eq!(report.notes.len(), 1, "{report:?}");
        assert!(report.notes[0].contains("libaio neither"), "{report:?}");
        drop(volume);
        let options = VolumeOptions::new().backend(Backend::Libaio);
        let error = Volume::open(&paths(&dir, 1), &options).unwrap_err();
        assert!(
            matches!(
                error,
                VolumeError::BackendRefused {
                    backend: "libaio",
                    ..
                }
            ),
            "{error}"
        );
    });
}

/// What a limit on locked memory does: the short ring of a probe is within it, a worker's long one
/// is not.
const LONG_RINGS: Refused = Refused {
    call: libc::SYS_io_uring_setup,
    errno: libc::ENOMEM,
    argument: Some((0, 1024)),
};

#[test]
fn a_ring_that_only_a_worker_is_refused_falls_back_to_libaio() {
    if !uring_allowed() {
        return;
    }
    in_thread(|| {
        refuse(&[LONG_RINGS]);
        let dir = scratch();
        let volume = Volume::create(&paths(&dir, 2), &VolumeOptions::new()).unwrap();
        exercise(&volume);
        assert!(matches!(
            volume.backend_report().backend,
            BackendKind::IoUring { .. }
        ));
        let long = ChannelOptions::with_depth(1000);
        let mut channel = volume.channel(&long).unwrap();
        // SAFETY: a flush has no memory.
        unsafe { run(&mut *channel, Io::flush(1)) }.unwrap();
        let report = volume.backend_report();
        assert_eq!(report.backend, BackendKind::Libaio);
        assert_eq!(report.notes.len(), 1, "{report:?}");
        assert!(report.notes[0].contains("ulimit -l"), "{report:?}");
        drop((channel, volume));

        let named = VolumeOptions::new().backend(BACKENDS[2]);
        let volume = Volume::open(&paths(&dir, 2), &named).unwrap();
        let error = volume.channel(&long).err().unwrap();
        assert!(error.to_string().contains("ulimit -l"), "{error}");
    });
}

#[test]
fn with_libaio_refused_to_the_worker_too_there_is_pread() {
    if !uring_allowed() {
        return;
    }
    in_thread(|| {
        let contexts = Refused {
            call: libc::SYS_io_setup,
            errno: libc::EAGAIN,
            argument: None,
        };
        refuse(&[LONG_RINGS, contexts]);
        let dir = scratch();
        let volume = Volume::create(&paths(&dir, 1), &VolumeOptions::new()).unwrap();
        let mut channel = volume.channel(&ChannelOptions::with_depth(1000)).unwrap();
        // SAFETY: a flush has no memory.
        unsafe { run(&mut *channel, Io::flush(1)) }.unwrap();
        let report = volume.backend_report();
        assert_eq!(report.backend, BackendKind::Pread);
        assert_eq!(report.notes.len(), 2, "{report:?}");
    });
}

#[test]
fn a_refused_mode_of_a_worker_falls_back_to_interrupts() {
    if !uring_allowed() {
        return;
    }
    let dir = scratch();
    let options = VolumeOptions::new().backend(BACKENDS[3]);
    let volume = Volume::create(&paths(&dir, 1), &options).unwrap();
    in_thread(|| {
        // Starting the kernel's thread is what is refused; a plain ring is not looked at: it is
        // shorter.
        refuse(&[LONG_RINGS]);
        assert!(volume.channel(&ChannelOptions::with_depth(1000)).is_err());
        exercise(&volume);
        let report = volume.backend_report();
        let plain = BackendKind::IoUring {
            iopoll: false,
            sqpoll: false,
        };
        assert_eq!(report.backend, plain);
        assert!(
            report.notes.iter().any(|n| n.contains("SQPOLL is refused")),
            "{report:?}"
        );
    });
}

#[test]
fn a_failed_flush_fails_every_later_one_whoever_asks() {
    each_backend(|options| {
        let dir = scratch();
        let volume = Volume::create(&paths(&dir, 1), options).unwrap();
        volume.grow(MIB).unwrap();
        let mut channel = open(&volume);
        let page = pattern(4096, 1);
        in_thread(|| {
            // Growth flushes what it has allocated, through the descriptor that all flushers use.
            refuse(&[Refused {
                call: libc::SYS_fdatasync,
                errno: libc::EIO,
                argument: None,
            }]);
            let error = volume.grow(2 * MIB).unwrap_err();
            assert!(!error.is_no_space(), "{error}");
            assert!(matches!(error, VolumeError::Io(_)), "{error}");
        });
        assert_eq!(volume.len(), MIB);
        // The system has reported the error to growth, and would not report it again.
        // SAFETY: `page` outlives the calls.
        let (flush, durable) = unsafe {
            let write = Io::write(0, page.as_ptr(), 4096, 2);
            run(&mut *channel, write).unwrap();
            (
                run(&mut *channel, Io::flush(1)),
                run(&mut *channel, write.durable()),
            )
        };
        assert_eq!(flush.unwrap_err().kind(), IoErrorKind::Media);
        assert_eq!(durable.unwrap_err().kind(), IoErrorKind::Media);
        assert_eq!(volume.sync().unwrap_err().kind(), IoErrorKind::Media);
        assert!(volume.grow(2 * MIB).is_err());
    });
}

#[test]
fn an_error_that_another_flusher_was_told_of_is_found() {
    let dir = scratch();
    let options = VolumeOptions::new().backend(Backend::Pread);
    let volume = Volume::create(&paths(&dir, 1), &options).unwrap();
    volume.grow(MIB).unwrap();
    in_thread(|| {
        // The answer of the member's second description when the system has reported the error to
        // the first one already.
        refuse(&[Refused {
            call: libc::SYS_sync_file_range,
            errno: libc::EIO,
            argument: None,
        }]);
        assert_eq!(volume.sync().unwrap_err().kind(), IoErrorKind::Media);
    });
    assert_eq!(volume.sync().unwrap_err().kind(), IoErrorKind::Media);
}
