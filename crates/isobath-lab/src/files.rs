//! Opening files that people name.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use crate::{LabError, Monitor};

/// Bytes that are read at a time from what may keep its reader waiting, and how many of such pieces are read ahead.
const PIECE: usize = 256 << 10;
const PIECES_AHEAD: usize = 4;
/// How often a reader that waits looks whether it should stop.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

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

/// A file, or standard input, that is read to its end. Where it keeps its reader waiting (a terminal, a pipe that
/// nothing comes through), the read ends as soon as the monitor says so.
pub struct InputFile<'m> {
    /// Its name; `-` for standard input.
    pub path: PathBuf,
    /// Bytes of it, where that is known.
    pub total: Option<u64>,
    reader: Box<dyn Read + Send + 'm>,
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
            return Ok(InputFile {
                path: PathBuf::from("-"),
                total: None,
                reader: Box::new(Waiting::for_reader(monitor, || Ok(io::stdin().lock()))),
            });
        };
        must_be(path, false)?;
        let meta = std::fs::metadata(path).map_err(LabError::io("read", path))?;
        let (total, reader): (_, Box<dyn Read + Send + 'm>) = if meta.is_file() {
            let file = File::open(path).map_err(LabError::io("open", path))?;
            (Some(meta.len()), Box::new(file))
        } else {
            // Opening a FIFO waits for its writer, too.
            let name = path.to_owned();
            let reader = Waiting::for_reader(monitor, move || File::open(name));
            (None, Box::new(reader))
        };
        Ok(InputFile {
            path: path.to_owned(),
            total,
            reader,
        })
    }
}

impl Read for InputFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

/// That the monitor had a read stop.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Stopped;

/// What a thread of its own reads, which may wait without end and is left behind then.
struct Waiting<'m> {
    /// An empty piece is the end.
    pieces: Receiver<io::Result<Vec<u8>>>,
    piece: Vec<u8>,
    taken: usize,
    monitor: &'m dyn Monitor,
}

impl<'m> Waiting<'m> {
    fn for_reader<R: Read>(
        monitor: &'m dyn Monitor,
        open: impl FnOnce() -> io::Result<R> + Send + 'static,
    ) -> Waiting<'m> {
        let (to, pieces) = sync_channel(PIECES_AHEAD);
        thread::spawn(move || read_all(open, &to));
        Waiting {
            pieces,
            piece: Vec::new(),
            taken: 0,
            monitor,
        }
    }

    /// Waits for the next piece.
    fn next(&mut self) -> io::Result<()> {
        loop {
            if self.monitor.cancelled() {
                return Err(io::Error::other(Stopped));
            }
            match self.pieces.recv_timeout(LOOK_AGAIN) {
                Ok(piece) => {
                    (self.piece, self.taken) = (piece?, 0);
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The thread ends after the end, or after an error.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

/// Sends what `open` opens, piece by piece, until its end, an error, or until there is no receiver any more.
fn read_all<R: Read>(open: impl FnOnce() -> io::Result<R>, to: &SyncSender<io::Result<Vec<u8>>>) {
    let mut reader = match open() {
        Ok(reader) => reader,
        Err(error) => return drop(to.send(Err(error))),
    };
    loop {
        let mut piece = vec![0; PIECE];
        let read = match reader.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return drop(to.send(Err(error))),
            Ok(read) => read,
        };
        piece.truncate(read);
        if to.send(Ok(piece)).is_err() || read == 0 {
            return;
        }
    }
}

impl Read for Waiting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.piece.len() {
            self.piece.clear();
            self.taken = 0;
            self.next()?;
        }
        let rest = &self.piece[self.taken..];
        let read = rest.len().min(buffer.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        self.taken += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::Stage;

    #[derive(Default)]
    struct Button(AtomicBool);

    impl Monitor for Button {
        fn begin(&self, _: Stage) {}
        fn advance(&self, _: u64) {}
        fn say(&self, _: &str) {}
        fn cancelled(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_pipe_is_read_to_its_end_in_whatever_pieces_it_comes() {
        let (reader, mut writer) = io::pipe().unwrap();
        let button = Button::default();
        let sent: Vec<u8> = (0..3 * PIECE).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        let writing = thread::spawn(move || {
            for piece in sent.chunks(7777) {
                io::Write::write_all(&mut writer, piece).unwrap();
            }
        });
        let mut waiting = Waiting::for_reader(&button, move || Ok(reader));
        let mut found = Vec::new();
        waiting.read_to_end(&mut found).unwrap();
        assert!(found == expected);
        assert_eq!(waiting.read(&mut [0; 8]).unwrap(), 0);
        writing.join().unwrap();
    }

    #[test]
    fn a_pipe_that_nothing_comes_through_is_left() {
        let (reader, writer) = io::pipe().unwrap();
        let button = Button::default();
        thread::scope(|scope| {
            let read = scope.spawn(|| {
                let mut waiting = Waiting::for_reader(&button, move || Ok(reader));
                waiting
                    .read(&mut [0; 8])
                    .map_err(LabError::io("read", Path::new("-")))
            });
            button.0.store(true, Ordering::Relaxed);
            assert!(matches!(read.join().unwrap(), Err(LabError::Interrupted)));
        });
        drop(writer);
    }

    #[test]
    fn a_failure_of_opening_comes_with_the_first_read() {
        let button = Button::default();
        let mut waiting = Waiting::for_reader(&button, || File::open("/nowhere/at/all"));
        let error = waiting.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
