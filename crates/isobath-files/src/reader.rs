//! Contents that are being read.

use std::io;

use crate::content::{joined, of_zeros};
use crate::layout::{Inode, ParsedKey, Stretch, map_key, piece_key};
use crate::view::Stat;
use crate::{FileView, FilesError};

/// The contents of a file as a view has them, from [`FileView::open`].
///
/// Each piece is read as a whole and verified against its CRC-32C, whatever part of it is asked
/// for; the last one is kept in memory. A reader that goes from the beginning to the end also
/// verifies the checksum of the whole.
pub struct FileReader {
    view: FileView,
    path: Vec<u8>,
    number: u64,
    inode: Inode,
    /// The last piece read.
    loaded: Loaded,
    /// The position of [`std::io::Read`].
    position: u64,
    /// How much was verified from the beginning on without a gap, and its checksum.
    verified: (u64, u32),
}

/// A stretch of contents in memory.
#[derive(Default)]
struct Loaded {
    offset: u64,
    length: u64,
    /// None of a hole.
    bytes: Option<Vec<u8>>,
}

impl Loaded {
    fn contains(&self, offset: u64) -> bool {
        offset >= self.offset && offset - self.offset < self.length
    }
}

/// A stretch of a file's contents, from [`FileReader::next_span`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span<'r> {
    /// Bytes, verified.
    Bytes(&'r [u8]),
    /// So many zeros, which take no space.
    Hole(u64),
}

impl std::fmt::Debug for FileReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileReader")
            .field("path", &String::from_utf8_lossy(&self.path))
            .field("size", &self.inode.size)
            .finish_non_exhaustive()
    }
}

impl FileReader {
    pub(crate) fn new(view: FileView, path: &[u8], number: u64, inode: Inode) -> FileReader {
        FileReader {
            view,
            path: path.to_vec(),
            number,
            inode,
            loaded: Loaded::default(),
            position: 0,
            verified: (0, 0),
        }
    }

    /// Properties of the file.
    #[must_use]
    pub fn stat(&self) -> Stat {
        Stat::of(self.number, &self.inode)
    }

    fn corrupt(&self, what: &'static str) -> FilesError {
        FilesError::corrupt(&self.path, what)
    }

    /// Where the stretch begins that has `offset`, and what it is.
    fn stretch_at(&self, offset: u64) -> Result<(u64, Stretch), FilesError> {
        let inode = &self.inode;
        if !inode.is_mapped {
            let whole = Stretch {
                length: inode.size,
                crc: Some(inode.crc),
            };
            return Ok((0, whole));
        }
        let records = self.view.records();
        let bounds = map_key(inode.content, 0)..=map_key(inode.content, offset);
        let mut range = records.transaction.range(records.tree, bounds)?;
        let found = range.next_back().transpose()?;
        let (key, value) =
            found.ok_or_else(|| self.corrupt("a part of its contents is missing"))?;
        let (Some(ParsedKey::Map { offset: at, .. }), Some(stretch)) =
            (ParsedKey::of(&key), Stretch::decode(&value))
        else {
            return Err(self.corrupt("the map of its contents is malformed"));
        };
        let ends = at.saturating_add(stretch.length);
        match ends > offset && ends <= inode.size {
            true => Ok((at, stretch)),
            false => Err(self.corrupt("the map of its contents has a gap")),
        }
    }

    /// Reads and verifies the stretch that has `offset`, which is below the size.
    fn load(&mut self, offset: u64) -> Result<(), FilesError> {
        if self.loaded.contains(offset) {
            return Ok(());
        }
        let (at, stretch) = self.stretch_at(offset)?;
        let mut bytes = self.loaded.bytes.take().unwrap_or_default();
        self.loaded = Loaded::default();
        let crc = match stretch.crc {
            None => of_zeros(stretch.length),
            Some(expected) => {
                self.read_piece(at, stretch.length, expected, &mut bytes)?;
                expected
            }
        };
        self.loaded = Loaded {
            offset: at,
            length: stretch.length,
            bytes: stretch.crc.is_some().then_some(bytes),
        };
        if self.verified.0 == at {
            let crc = joined(self.verified.1, crc, stretch.length);
            self.verified = (at + stretch.length, crc);
            if self.verified.0 == self.inode.size && crc != self.inode.crc {
                self.loaded = Loaded::default();
                return Err(self.wrong_checksum(0, crc, self.inode.crc));
            }
        }
        Ok(())
    }

    fn read_piece(
        &self,
        at: u64,
        length: u64,
        expected: u32,
        bytes: &mut Vec<u8>,
    ) -> Result<(), FilesError> {
        let records = self.view.records();
        let key = piece_key(self.inode.content, at);
        if !records.transaction.get_into(records.tree, key, bytes)? {
            return Err(self.corrupt("a piece of its contents is missing"));
        }
        let found = crc32c::crc32c(bytes);
        if found != expected {
            return Err(self.wrong_checksum(at, found, expected));
        }
        match bytes.len() as u64 == length {
            true => Ok(()),
            false => Err(self.corrupt("a piece of its contents has another length")),
        }
    }

    fn wrong_checksum(&self, offset: u64, found: u32, expected: u32) -> FilesError {
        FilesError::Checksum {
            path: self.path.clone(),
            offset,
            found,
            expected,
        }
    }

    /// Reads from `offset` on; fewer bytes than `into` has only at the end of the file.
    ///
    /// # Errors
    ///
    /// [`FilesError::Checksum`], [`FilesError::Corrupt`], [`isobath::Error::SnapshotTooOld`], or a
    /// failed read.
    pub fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, FilesError> {
        let mut done = 0;
        while done < into.len() {
            let at = offset.saturating_add(done as u64);
            if at >= self.inode.size {
                break;
            }
            self.load(at)?;
            let skip = (at - self.loaded.offset) as usize;
            let rest = self.loaded.length - (at - self.loaded.offset);
            let count = (into.len() - done).min(usize::try_from(rest).unwrap_or(usize::MAX));
            let to = &mut into[done..done + count];
            match &self.loaded.bytes {
                None => to.fill(0),
                Some(bytes) => to.copy_from_slice(&bytes[skip..skip + count]),
            }
            done += count;
        }
        Ok(done)
    }

    /// The whole contents.
    ///
    /// # Errors
    ///
    /// As for [`FileReader::read_at`]; [`FilesError::OutOfMemory`].
    pub fn read_all(&mut self) -> Result<Vec<u8>, FilesError> {
        self.position = 0;
        let mut all: Vec<u8> = Vec::new();
        let (path, bytes) = (self.path.clone(), self.inode.size);
        while let Some(span) = self.next_span()? {
            let length = match span {
                Span::Bytes(bytes) => bytes.len() as u64,
                Span::Hole(length) => length,
            };
            let reserved = usize::try_from(length).map(|length| all.try_reserve(length));
            if !matches!(reserved, Ok(Ok(()))) {
                return Err(FilesError::OutOfMemory { path, bytes });
            }
            match span {
                Span::Bytes(bytes) => all.extend_from_slice(bytes),
                Span::Hole(length) => all.resize(all.len() + length as usize, 0),
            }
        }
        Ok(all)
    }

    /// The bytes from the present position to the end of a piece or hole; moves the position
    /// behind it. `None` at the end.
    ///
    /// # Errors
    ///
    /// As for [`FileReader::read_at`].
    pub fn next_span(&mut self) -> Result<Option<Span<'_>>, FilesError> {
        if self.position >= self.inode.size {
            return Ok(None);
        }
        self.load(self.position)?;
        let skip = self.position - self.loaded.offset;
        self.position = self.loaded.offset + self.loaded.length;
        Ok(Some(match &self.loaded.bytes {
            None => Span::Hole(self.loaded.length - skip),
            Some(bytes) => Span::Bytes(&bytes[skip as usize..]),
        }))
    }
}

impl io::Read for FileReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.inode.size || into.is_empty() {
            return Ok(0);
        }
        self.load(self.position)?;
        // Up to the end of the loaded piece.
        let rest = self.loaded.length - (self.position - self.loaded.offset);
        let count = into.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        let count = self.read_at(self.position, &mut into[..count])?;
        self.position += count as u64;
        Ok(count)
    }
}

impl io::Seek for FileReader {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let to = match to {
            io::SeekFrom::Start(offset) => Some(offset),
            io::SeekFrom::End(by) => self.inode.size.checked_add_signed(by),
            io::SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = to.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
