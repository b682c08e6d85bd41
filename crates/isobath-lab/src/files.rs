//! Files that people name: reading, locking and removing them.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::{LabError, Monitor};

/// How often a reader that waits looks whether it should stop. A signal ends the wait at once.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// The time in which a signal reaches all processes of a pipeline: the end of a pipe may be the
/// first sign of it.
const SIGNAL_SPREADS: Duration = Duration::from_millis(20);
const STEP: Duration = Duration::from_millis(1);

/// Checks that `path` exists and is a directory, or that it exists and is none.
///
/// # Errors
/// A sentence that says which of both is not so.
pub fn must_be(path: &Path, directory: bool) -> Result<(), LabError> {
    let meta = std::fs::metadata(path).map_err(LabError::io("open", path))?;
    match (directory, meta.is_dir()) {
        (true, false) => Err(LabError::input(path, "is a file; name a directory")),
        (false, true) => Err(LabError::input(path, "is a directory; name a file")),
        _ => Ok(()),
    }
}

/// The outcome of removing `path`, which may be missing already.
pub(crate) fn removed(path: &Path, outcome: io::Result<()>) -> Result<(), LabError> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(LabError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Locks the file or directory `path`; `taken` says what to do if another process has it.
pub(crate) fn locked(file: File, path: &Path, taken: &str) -> Result<File, LabError> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LabError::input(path, taken)),
        Err(TryLockError::Error(error)) => Err(LabError::io("lock", path)(error)),
    }
}

/// Reads until `into` is full or the input ends; answers how much.
pub(crate) fn read_full(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match from.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A file, or standard input, that is read to its end.
///
/// Where it keeps its reader waiting (a terminal, a pipe that nothing comes through, a FIFO that
/// has no writer), opening does not wait, and a read ends as soon as the monitor says so. The end
/// of a pipe counts only if the monitor does not say so a moment later either: Ctrl-C ends the
/// program that writes the pipe, too, and what came before is not all.
pub struct InputFile<'m> {
    /// Its name; `-` for standard input.
    pub path: PathBuf,
    /// Bytes of it, if that is known.
    pub total: Option<u64>,
    file: File,
    may_wait: bool,
    ended: bool,
    monitor: &'m dyn Monitor,
}

impl std::fmt::Debug for InputFile<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InputFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl<'m> InputFile<'m> {
    /// Opens the file `from`, or standard input for `None` and `-`.
    ///
    /// # Errors
    /// A file that is missing, or a directory.
    pub fn open(from: Option<&Path>, monitor: &'m dyn Monitor) -> Result<InputFile<'m>, LabError> {
        let Some(path) = from.filter(|path| path.as_os_str() != "-") else {
            let path = Path::new("-");
            let stdin = io::stdin().as_fd().try_clone_to_owned();
            let file = stdin.map_err(LabError::io("read", path))?.into();
            return InputFile::over(file, path, monitor);
        };
        must_be(path, false)?;
        let mut open = OpenOptions::new();
        // Opening a FIFO would wait for its writer otherwise.
        open.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = open.open(path).map_err(LabError::io("open", path))?;
        InputFile::over(file, path, monitor)
    }

    /// Reads an open file from where it stands.
    fn over(
        mut file: File,
        path: &Path,
        monitor: &'m dyn Monitor,
    ) -> Result<InputFile<'m>, LabError> {
        let meta = file.metadata().map_err(LabError::io("read", path))?;
        let before = file.stream_position().unwrap_or(0);
        Ok(InputFile {
            path: path.to_owned(),
            total: meta.is_file().then(|| meta.len().saturating_sub(before)),
            may_wait: !meta.is_file(),
            file,
            ended: false,
            monitor,
        })
    }

    /// The whole file `path` as text.
    ///
    /// # Errors
    /// A file that is missing, a directory, or not UTF-8.
    pub fn text(path: &Path, monitor: &dyn Monitor) -> Result<String, LabError> {
        let mut text = String::new();
        let read = InputFile::open(Some(path), monitor)?.read_to_string(&mut text);
        read.map_err(LabError::io("read", path))?;
        Ok(text)
    }

    fn check(&self) -> io::Result<()> {
        match self.monitor.cancelled() {
            true => Err(io::Error::other(Stopped)),
            false => Ok(()),
        }
    }

    /// Waits until there is something to read, or the end.
    fn wait(&self) -> io::Result<()> {
        loop {
            self.check()?;
            let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut fds, Some(&LOOK_AGAIN)) {
                Ok(0) | Err(Errno::INTR) => {}
                // Whatever it is, reading says what.
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Accepts the end, unless an interruption comes with it.
    fn end(&mut self) -> io::Result<usize> {
        let began = Instant::now();
        while !self.ended && began.elapsed() < SIGNAL_SPREADS {
            self.check()?;
            thread::sleep(STEP);
        }
        self.check()?;
        self.ended = true;
        Ok(0)
    }
}

impl Read for InputFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.may_wait || buffer.is_empty() {
            return self.file.read(buffer);
        }
        loop {
            self.wait()?;
            match self.file.read(buffer) {
                // Another process has read the data.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) => return self.end(),
                other => return other,
            }
        }
    }
}

/// The error that the monitor stopped a read.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Stopped;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::Silent;

    /// Asks to stop once it was asked so often.
    struct Button(AtomicU32);

    impl Monitor for Button {
        fn cancelled(&self) -> bool {
            let left = self.0.load(Ordering::Relaxed);
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
            left == 0
        }
    }

    fn over(reader: io::PipeReader, monitor: &dyn Monitor) -> InputFile<'_> {
        let file = std::os::fd::OwnedFd::from(reader).into();
        InputFile::over(file, Path::new("-"), monitor).unwrap()
    }

    fn interrupted(error: io::Error) -> bool {
        matches!(
            LabError::io("read", Path::new("-"))(error),
            LabError::Interrupted
        )
    }

    #[test]
    fn a_pipe_is_read_to_its_end_in_whatever_pieces_it_comes() {
        let (reader, mut writer) = io::pipe().unwrap();
        let sent: Vec<u8> = (0..300_000).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        let writing = thread::spawn(move || {
            for piece in sent.chunks(7777) {
                writer.write_all(piece).unwrap();
            }
        });
        let mut input = over(reader, &Silent);
        let mut found = Vec::new();
        input.read_to_end(&mut found).unwrap();
        assert!(found == expected);
        assert_eq!(input.read(&mut [0; 8]).unwrap(), 0);
        writing.join().unwrap();
    }

    #[test]
    fn a_pipe_that_nothing_comes_through_is_left() {
        let (reader, writer) = io::pipe().unwrap();
        let button = Button(AtomicU32::new(3));
        let error = over(reader, &button).read(&mut [0; 8]).unwrap_err();
        assert!(interrupted(error));
        drop(writer);
    }

    #[test]
    fn an_end_that_comes_with_an_interruption_is_none() {
        for looks in 1..5 {
            let (reader, mut writer) = io::pipe().unwrap();
            writer.write_all(b"half").unwrap();
            drop(writer);
            // The first look is that before the bytes.
            let button = Button(AtomicU32::new(1 + looks));
            let mut input = over(reader, &button);
            assert_eq!(input.read(&mut [0; 8]).unwrap(), 4);
            assert!(interrupted(input.read(&mut [0; 8]).unwrap_err()), "{looks}");
        }
    }

    #[test]
    fn a_fifo_is_waited_for_when_it_is_read() {
        let place = tempfile::tempdir().unwrap();
        let fifo = place.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        let button = Button(AtomicU32::new(3));
        let mut input = InputFile::open(Some(&fifo), &button).unwrap();
        assert!(interrupted(input.read(&mut [0; 8]).unwrap_err()));
        let mut input = InputFile::open(Some(&fifo), &Silent).unwrap();
        let mut writer = OpenOptions::new().write(true).open(&fifo).unwrap();
        writer.write_all(b"late").unwrap();
        drop(writer);
        let mut text = String::new();
        input.read_to_string(&mut text).unwrap();
        assert_eq!(text, "late");
    }

    #[test]
    fn what_is_left_of_an_open_file_is_its_total() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        file.seek(io::SeekFrom::Start(4)).unwrap();
        let mut input = InputFile::over(file, Path::new("-"), &Silent).unwrap();
        assert_eq!(input.total, Some(6));
        let mut rest = String::new();
        input.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "456789");
    }
}
