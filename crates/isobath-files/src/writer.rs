//! Contents that are being written.

use std::io;

use crate::change::Change;
use crate::content::{joined, of_zeros};
use crate::layout::{
    FileKind, Inode, MAX_FILE_BYTES, Named, PIECE_BYTES, Pending, Stretch, pending_key,
};
use crate::view::Stat;
use crate::{Attributes, FileTree, FilesError};

/// Pieces that are kept in memory before a transaction stores them.
const PIECES_AT_ONCE: usize = 16;
/// Stretches that a transaction stores: holes take no memory, but log.
const STRETCHES_AT_ONCE: usize = 256;
/// Shorter holes are stored as zeros.
const MIN_HOLE_BYTES: u64 = 64 << 10;

/// The place of contents once they are complete.
enum Target {
    /// A file's path.
    Path(Vec<u8>),
    /// A free name in a directory that has no name itself yet.
    Hidden { directory: u64, name: Vec<u8> },
}

/// A stretch that is not stored yet.
struct Unstored {
    offset: u64,
    stretch: Stretch,
    bytes: Vec<u8>,
}

/// The contents of a file, written as a stream, from [`FileTree::writer`].
///
/// The file changes when [`FileWriter::finish`] returns, as a whole. Dropping the writer before
/// leaves it as it was.
pub struct FileWriter {
    files: FileTree,
    target: Target,
    /// The file's path, for errors.
    path: Vec<u8>,
    attributes: Attributes,
    /// Less than a piece.
    buffer: Vec<u8>,
    /// Stretches not stored yet, in order, up to `buffer`.
    stretches: Vec<Unstored>,
    /// Bytes before `buffer`.
    size: u64,
    /// Their checksum.
    crc: u32,
    /// The number under which stretches were stored already.
    content: Option<u64>,
}

impl std::fmt::Debug for FileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileWriter")
            .field("path", &String::from_utf8_lossy(&self.path))
            .field("written", &self.len())
            .finish_non_exhaustive()
    }
}

impl FileTree {
    /// Writes the contents of a file as a stream: a new one, which gets the attributes, or an
    /// existing one, which gets its time from them. Contents may have any number of bytes up to
    /// [`MAX_FILE_BYTES`].
    ///
    /// # Errors
    ///
    /// [`FilesError::BadName`]; [`FileWriter::finish`] reports what else is wrong with the path.
    pub fn writer(
        &self,
        path: impl AsRef<[u8]>,
        attributes: &Attributes,
    ) -> Result<FileWriter, FilesError> {
        let path = path.as_ref();
        if crate::path::names(path)?.is_empty() {
            return Err(FilesError::IsADirectory { path: path.into() });
        }
        let target = Target::Path(path.to_vec());
        Ok(FileWriter::new(self, target, path, attributes))
    }
}

impl FileWriter {
    fn new(files: &FileTree, target: Target, path: &[u8], attributes: &Attributes) -> FileWriter {
        FileWriter {
            files: files.clone(),
            target,
            path: path.to_vec(),
            attributes: *attributes,
            buffer: Vec::new(),
            stretches: Vec::new(),
            size: 0,
            crc: 0,
            content: None,
        }
    }

    /// For a free name in a directory that this session makes.
    pub(crate) fn hidden(
        files: &FileTree,
        directory: u64,
        name: &[u8],
        path: &[u8],
        attributes: &Attributes,
    ) -> FileWriter {
        let name = name.to_vec();
        let target = Target::Hidden { directory, name };
        FileWriter::new(files, target, path, attributes)
    }

    /// Bytes written so far, holes included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.size + self.buffer.len() as u64
    }

    /// Whether nothing was written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn check_length(&self, more: u64) -> Result<(), FilesError> {
        match self.len().checked_add(more) {
            Some(length) if length <= MAX_FILE_BYTES => Ok(()),
            _ => Err(FilesError::TooLarge {
                path: self.path.clone(),
                limit: MAX_FILE_BYTES,
            }),
        }
    }

    /// Appends bytes.
    ///
    /// # Errors
    ///
    /// [`FilesError::TooLarge`], or a failure of the engine; the writer is of no use then.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<(), FilesError> {
        self.check_length(bytes.len() as u64)?;
        while !bytes.is_empty() {
            // A full piece waits for the next bytes: contents of one piece need no map.
            if self.buffer.len() == PIECE_BYTES {
                self.end_piece()?;
            }
            let room = PIECE_BYTES - self.buffer.len();
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = rest;
        }
        Ok(())
    }

    /// Appends zeros that take no space: a hole. Short ones are stored as other bytes are.
    ///
    /// # Errors
    ///
    /// As for [`FileWriter::append`].
    pub fn append_hole(&mut self, bytes: u64) -> Result<(), FilesError> {
        self.check_length(bytes)?;
        if bytes < MIN_HOLE_BYTES {
            return self.append(&vec![0; bytes as usize]);
        }
        self.end_piece()?;
        let hole = Stretch {
            length: bytes,
            crc: None,
        };
        self.push(hole, of_zeros(bytes), Vec::new())
    }

    fn end_piece(&mut self) -> Result<(), FilesError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.buffer);
        let crc = crc32c::crc32c(&bytes);
        let piece = Stretch {
            length: bytes.len() as u64,
            crc: Some(crc),
        };
        self.push(piece, crc, bytes)
    }

    fn push(&mut self, stretch: Stretch, crc: u32, bytes: Vec<u8>) -> Result<(), FilesError> {
        self.stretches.push(Unstored {
            offset: self.size,
            stretch,
            bytes,
        });
        self.crc = joined(self.crc, crc, stretch.length);
        self.size += stretch.length;
        let pieces = self.stretches.iter().filter(|s| s.stretch.crc.is_some());
        if pieces.count() >= PIECES_AT_ONCE || self.stretches.len() >= STRETCHES_AT_ONCE {
            return self.store_stretches();
        }
        Ok(())
    }

    /// Stores stretches under a number that belongs to this session until a file has it.
    fn store_stretches(&mut self) -> Result<(), FilesError> {
        let content = match self.content {
            Some(content) => content,
            None => self.files.new_number()?,
        };
        let pending = Pending {
            is_directory: false,
            session: self.files.session(),
        };
        let is_first = self.content.is_none();
        self.files.run(|transaction| {
            let mut change = Change::new(&self.files.tree, transaction);
            if is_first {
                change.put(pending_key(content), &pending.encode())?;
            }
            put_stretches(&mut change, content, &self.stretches)
        })?;
        self.content = Some(content);
        self.stretches.clear();
        Ok(())
    }

    /// Gives the file its contents, in one transaction.
    ///
    /// # Errors
    ///
    /// [`FilesError::NotFound`], [`FilesError::NotADirectory`], [`FilesError::IsADirectory`],
    /// [`FilesError::NotAFile`] if the path leads nowhere or to something else; or a failure of
    /// the engine. The file is as it was then.
    pub fn finish(mut self) -> Result<Stat, FilesError> {
        let is_mapped = !self.stretches.is_empty() || self.content.is_some();
        if is_mapped {
            self.end_piece()?;
        }
        let crc = match is_mapped {
            true => self.crc,
            false => crc32c::crc32c(&self.buffer),
        };
        let has_content = is_mapped || !self.buffer.is_empty();
        let content = match self.content {
            Some(content) => content,
            None if has_content => self.files.new_number()?,
            None => 0,
        };
        let number = self.files.new_number()?;
        let mut inode = Inode::new(FileKind::File, &self.attributes);
        (inode.size, inode.crc) = (self.len(), crc);
        (inode.content, inode.is_mapped) = (content, is_mapped);
        let writer = &self;
        let work = |change: &mut Change<'_>| {
            if writer.content.is_some() {
                change.remove(pending_key(content))?;
            }
            match is_mapped {
                true => put_stretches(change, content, &writer.stretches)?,
                false if has_content => change.put_piece(content, &writer.buffer)?,
                false => {}
            }
            writer.put_file(change, number, inode.clone())
        };
        let stat = match self.target {
            Target::Path(_) => self.files.change(work),
            Target::Hidden { .. } => self.files.change_unnamed(work),
        }?;
        // The contents are the file's now.
        self.content = None;
        Ok(stat)
    }

    fn put_file(
        &self,
        change: &mut Change<'_>,
        number: u64,
        inode: Inode,
    ) -> Result<Stat, FilesError> {
        let path = match &self.target {
            Target::Path(path) => path,
            Target::Hidden { directory, name } => {
                let named = Named {
                    inode: number,
                    kind: FileKind::File,
                };
                change.put_inode(number, &inode)?;
                change.put_name(*directory, name, named)?;
                return Ok(Stat::of(number, &inode));
            }
        };
        let place = change.records().place(path)?;
        let Some(named) = place.named else {
            let stat = Stat::of(number, &inode);
            change.add(&place, number, inode)?;
            return Ok(stat);
        };
        let mut old = change.records().inode(named.inode, path)?;
        match old.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(FilesError::IsADirectory { path: path.clone() }),
            FileKind::Symlink => return Err(FilesError::NotAFile { path: path.clone() }),
        }
        change.free_content(&old)?;
        (old.size, old.crc, old.mtime) = (inode.size, inode.crc, inode.mtime);
        (old.content, old.is_mapped) = (inode.content, inode.is_mapped);
        change.put_inode(named.inode, &old)?;
        Ok(Stat::of(named.inode, &old))
    }
}

fn put_stretches(
    change: &mut Change<'_>,
    content: u64,
    stretches: &[Unstored],
) -> Result<(), FilesError> {
    for unstored in stretches {
        change.put_stretch(content, unstored.offset, unstored.stretch, &unstored.bytes)?;
    }
    Ok(())
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        if let Some(content) = self.content.take() {
            self.files.reclaim_now(vec![content]);
        }
    }
}

impl io::Write for FileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
