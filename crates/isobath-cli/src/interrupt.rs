//! Handling of Ctrl-C, SIGTERM and SIGHUP.
//!
//! A signal ends the process at once, wherever it waits: opening a FIFO, writing to a pipe,
//! reading. Nothing is lost by that as long as the verb changes nothing. While it does, an
//! [`InOrder`] is alive: then the first signal only asks the work to stop, which removes what it
//! has made or keeps what it has stored, and the second one ends the process.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use isobath_lab::LabError;

use crate::failure::{Failure, INTERRUPTED};

/// Whether a signal has come.
static ASKED: AtomicBool = AtomicBool::new(false);
/// How many [`InOrder`] are alive.
static IN_ORDER: AtomicU32 = AtomicU32::new(0);
/// The message of an immediate end.
static LAST_WORDS: OnceLock<Vec<u8>> = OnceLock::new();
/// Files of unfinished work that an immediate end removes.
static UNFINISHED: OnceLock<Vec<CString>> = OnceLock::new();

/// Has signals do what this module says. A SIGHUP that is ignored, as under `nohup`, stays ignored.
pub(crate) fn listen(json: bool) -> Result<(), Failure> {
    let mut words = match json {
        true => format!("{{\"error\":\"interrupted\",\"exit_code\":{INTERRUPTED}}}\n"),
        false => "isobath: interrupted\n".to_owned(),
    };
    if io::stderr().is_terminal() {
        // A bar may stand there.
        words.insert_str(0, "\r\x1b[K");
    }
    LAST_WORDS.get_or_init(|| words.into_bytes());
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP]
        .into_iter()
        .try_for_each(handle)
        .map_err(|error| Failure::Usage(format!("cannot listen for Ctrl-C: {error}")))
}

fn handle(signal: c_int) -> io::Result<()> {
    // SAFETY: both structures are valid for the calls, all zeros being one of their values; the
    // handler is never removed and calls only what a handler may call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if signal == libc::SIGHUP
            && libc::sigaction(signal, ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
        {
            return Ok(());
        }
        action = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        match libc::sigaction(signal, &raw const action, ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// `InOrder::begin` counts itself before it looks whether a signal has come, and this does both the
/// other way round: one of them sees the other.
extern "C" fn on_signal(_: c_int) {
    let is_first = !ASKED.swap(true, Ordering::SeqCst);
    let is_in_order = IN_ORDER.load(Ordering::SeqCst) > 0;
    if is_first && is_in_order {
        return;
    }
    let unfinished = UNFINISHED.get().filter(|_| is_in_order);
    let words = LAST_WORDS.get().map_or(&b""[..], Vec::as_slice);
    // SAFETY: a handler may call these; the paths end with a zero, and nothing changes either.
    unsafe {
        for path in unfinished.into_iter().flatten() {
            libc::unlink(path.as_ptr());
        }
        libc::write(libc::STDERR_FILENO, words.as_ptr().cast(), words.len());
        libc::_exit(c_int::from(INTERRUPTED));
    }
}

/// Whether the user has asked to stop.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// An error once the user has asked to stop.
pub(crate) fn check() -> Result<(), Failure> {
    match asked() {
        true => Err(LabError::Interrupted.into()),
        false => Ok(()),
    }
}

/// Says what a second signal removes: files that do not exist yet and that work in order will make.
pub(crate) fn remove_unfinished(paths: &[PathBuf]) {
    let names = paths.iter().map(|path| path.as_os_str().as_bytes());
    UNFINISHED.get_or_init(|| names.flat_map(CString::new).collect());
}

/// Work that must end in order: it asks whether it shall stop, and waits for nothing else.
#[derive(Debug)]
#[must_use]
pub(crate) struct InOrder(());

impl InOrder {
    /// Begins such work, unless a signal has come before.
    pub(crate) fn begin() -> Result<InOrder, Failure> {
        IN_ORDER.fetch_add(1, Ordering::SeqCst);
        let begun = InOrder(());
        check().map(|()| begun)
    }

    /// Begins to write the file `to`, which is unfinished until its end. A target that is no
    /// regular file is written through: nothing is left of it, and it may keep its writer waiting,
    /// so there a signal goes on to end the process at once.
    pub(crate) fn for_output(to: &Path) -> Result<Option<InOrder>, Failure> {
        let is_through = to.as_os_str() == "-" || to.metadata().is_ok_and(|found| !found.is_file());
        match is_through {
            true => Ok(None),
            false => InOrder::begin().map(Some),
        }
    }
}

impl Drop for InOrder {
    fn drop(&mut self) {
        IN_ORDER.fetch_sub(1, Ordering::SeqCst);
    }
}
