//! Opening files that people name to be read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file or block device that is read at any place of it. A pipe is refused: it has no
/// places, and opening a FIFO would wait for its writer.
///
/// # Errors
/// The system's, and [`io::ErrorKind::NotSeekable`].
pub fn open_to_read(path: &Path) -> io::Result<File> {
    let mut open = OpenOptions::new();
    let file = open.read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() || kind.is_block_device() || kind.is_dir() {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::NotSeekable,
            "it is a pipe or a terminal, and is read in more than one place; store it in a file first",
        )),
    }
}
