//! Records of a file tree: their keys and bytes. docs/files.md has the diagrams.
//!
//! All records of a tree of files are in one tree of the store, distinguished by the first byte of
//! their keys. Numbers in keys are big-endian, so that keys compare as numbers do; numbers in
//! values are little-endian.

use crate::FilesError;

/// Most bytes of a piece of a file's contents, which is read, verified and kept in memory at a
/// time.
pub const PIECE_BYTES: usize = 256 << 10;
/// Most bytes of a name.
pub const MAX_NAME_BYTES: usize = 255;
/// Most bytes of a symbolic link's target.
pub const MAX_TARGET_BYTES: usize = 4095;
/// Most bytes of a file: offsets are those of `lseek`.
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// The version of the records that this library writes and reads.
const VERSION: u8 = 1;
const MAGIC: [u8; 8] = *b"ISOFILES";

pub(crate) const HEADER_KEY: &[u8] = &[HEADER];
pub(crate) const HEADER: u8 = b'H';
pub(crate) const CONTENT: u8 = b'c';
pub(crate) const INODE: u8 = b'i';
pub(crate) const MAP: u8 = b'm';
pub(crate) const NAME: u8 = b'n';
pub(crate) const PENDING: u8 = b'p';
/// First bytes of keys, ascending.
pub(crate) const TAGS: [u8; 6] = [HEADER, CONTENT, INODE, MAP, NAME, PENDING];

/// The directory that has one entry, with an empty name: the root.
pub(crate) const ABOVE_ROOT: u64 = 0;

/// Numbers in keys.
#[allow(
    clippy::big_endian_bytes,
    reason = "keys compare as byte strings, so that these compare as numbers"
)]
mod big_endian {
    pub(super) fn put(key: &mut Vec<u8>, number: u64) {
        key.extend_from_slice(&number.to_be_bytes());
    }

    pub(super) fn take(bytes: &[u8]) -> Option<u64> {
        Some(u64::from_be_bytes(bytes.try_into().ok()?))
    }
}

fn numbered(tag: u8, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    key.push(tag);
    big_endian::put(&mut key, number);
    key
}

fn at_offset(tag: u8, content: u64, offset: u64) -> Vec<u8> {
    let mut key = numbered(tag, content);
    big_endian::put(&mut key, offset);
    key
}

/// The key of an inode.
pub(crate) fn inode_key(inode: u64) -> Vec<u8> {
    numbered(INODE, inode)
}

/// The key of a directory's entry.
pub(crate) fn name_key(directory: u64, name: &[u8]) -> Vec<u8> {
    let mut key = numbered(NAME, directory);
    key.extend_from_slice(name);
    key
}

/// The prefix of the keys of a directory's entries.
pub(crate) fn names_prefix(directory: u64) -> Vec<u8> {
    numbered(NAME, directory)
}

/// The key of the piece of contents that begins at an offset.
pub(crate) fn piece_key(content: u64, offset: u64) -> Vec<u8> {
    at_offset(CONTENT, content, offset)
}

/// The key of the map's entry for the stretch at an offset.
pub(crate) fn map_key(content: u64, offset: u64) -> Vec<u8> {
    at_offset(MAP, content, offset)
}

/// The prefix of the keys of a content's map.
pub(crate) fn map_prefix(content: u64) -> Vec<u8> {
    numbered(MAP, content)
}

/// The key of an entry that is being made or freed: contents, or a directory that has no name.
pub(crate) fn pending_key(number: u64) -> Vec<u8> {
    numbered(PENDING, number)
}

pub(crate) const PENDING_PREFIX: &[u8] = &[PENDING];

/// A key, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ParsedKey<'k> {
    Header,
    Inode(u64),
    Name { directory: u64, name: &'k [u8] },
    Map { content: u64, offset: u64 },
    Piece { content: u64, offset: u64 },
    Pending(u64),
}

impl ParsedKey<'_> {
    pub(crate) fn of(key: &[u8]) -> Option<ParsedKey<'_>> {
        if key == HEADER_KEY {
            return Some(ParsedKey::Header);
        }
        let (tag, rest) = key.split_first()?;
        let (number, rest) = rest.split_at_checked(8)?;
        let number = big_endian::take(number)?;
        let offset = big_endian::take(rest);
        Some(match (*tag, offset) {
            (INODE, None) if rest.is_empty() => ParsedKey::Inode(number),
            (PENDING, None) if rest.is_empty() => ParsedKey::Pending(number),
            (NAME, _) => ParsedKey::Name {
                directory: number,
                name: rest,
            },
            (MAP, Some(offset)) => ParsedKey::Map {
                content: number,
                offset,
            },
            (CONTENT, Some(offset)) => ParsedKey::Piece {
                content: number,
                offset,
            },
            _ => return None,
        })
    }
}

/// Takes little-endian numbers off bytes.
struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// The first record: what the tree is, and which numbers are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Inodes, contents and sessions below this number may exist.
    pub(crate) next: u64,
}

impl Header {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&u32::from(VERSION).to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        bytes.extend_from_slice(&self.next.to_le_bytes());
        bytes
    }

    /// `None` if the record is not ours.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Result<Header, FilesError>> {
        let mut fields = Fields(bytes.strip_prefix(&MAGIC)?);
        let found = fields.u32()?;
        if found != u32::from(VERSION) {
            return Some(Err(FilesError::NewerFormat {
                found,
                known: u32::from(VERSION),
            }));
        }
        let _reserved = fields.u32()?;
        let next = fields.u64()?;
        Some(Ok(Header { next }))
    }
}

/// The kind of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

impl FileKind {
    fn code(self) -> u8 {
        match self {
            FileKind::File => 0,
            FileKind::Directory => 1,
            FileKind::Symlink => 2,
        }
    }

    fn of(code: u8) -> Option<FileKind> {
        let all = [FileKind::File, FileKind::Directory, FileKind::Symlink];
        all.into_iter().find(|kind| kind.code() == code)
    }
}

/// A moment, since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct FileTime {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after that second, below 1,000,000,000.
    pub nanoseconds: u32,
}

impl FileTime {
    /// This moment.
    #[must_use]
    pub fn now() -> FileTime {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let since = since.unwrap_or_default();
        FileTime {
            seconds: since.as_secs().min(i64::MAX as u64) as i64,
            nanoseconds: since.subsec_nanos(),
        }
    }
}

/// A file, directory or link without its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) kind: FileKind,
    /// Permissions, set-user-id and the like: 12 bits.
    pub(crate) mode: u32,
    /// Names that it has; 1 for a directory.
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: FileTime,
    /// Bytes of contents, or of a link's target.
    pub(crate) size: u64,
    /// The number of a file's contents; 0 if it is empty.
    pub(crate) content: u64,
    /// Whether the contents are several pieces, or have holes: then a map says which.
    pub(crate) is_mapped: bool,
    /// CRC-32C of the contents, holes being zeros, or of a link's target.
    pub(crate) crc: u32,
    /// The directory that a directory is in.
    pub(crate) parent: u64,
    /// A link's target.
    pub(crate) target: Vec<u8>,
}

impl Inode {
    /// An empty one with one name.
    pub(crate) fn new(kind: FileKind, attributes: &crate::Attributes) -> Inode {
        Inode {
            kind,
            mode: attributes.mode & 0o7777,
            links: 1,
            uid: attributes.uid,
            gid: attributes.gid,
            mtime: attributes.mtime,
            size: 0,
            content: 0,
            is_mapped: false,
            crc: 0,
            parent: 0,
            target: Vec::new(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.target.len());
        bytes.extend_from_slice(&[VERSION, self.kind.code(), u8::from(self.is_mapped), 0]);
        for number in [self.mode, self.links, self.uid, self.gid] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.mtime.nanoseconds.to_le_bytes());
        bytes.extend_from_slice(&self.mtime.seconds.to_le_bytes());
        for number in [self.size, self.content, self.parent] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.crc.to_le_bytes());
        bytes.extend_from_slice(&self.target);
        bytes
    }

    /// `None` if the bytes are no inode of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Inode> {
        let mut fields = Fields(bytes);
        let [version, kind, mapped, _] = fields.take()?;
        if version != VERSION || mapped > 1 {
            return None;
        }
        let kind = FileKind::of(kind)?;
        let (mode, links) = (fields.u32()?, fields.u32()?);
        let (uid, gid) = (fields.u32()?, fields.u32()?);
        let nanoseconds = fields.u32()?;
        let seconds = fields.take().map(i64::from_le_bytes)?;
        let (size, content, parent) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let crc = fields.u32()?;
        Some(Inode {
            kind,
            mode,
            links,
            uid,
            gid,
            mtime: FileTime {
                seconds,
                nanoseconds,
            },
            size,
            content,
            is_mapped: mapped == 1,
            crc,
            parent,
            target: fields.0.to_vec(),
        })
    }
}

/// A directory's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) inode: u64,
    pub(crate) kind: FileKind,
}

impl Named {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = self.inode.to_le_bytes().to_vec();
        bytes.push(self.kind.code());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Named> {
        let mut fields = Fields(bytes);
        let inode = fields.u64()?;
        let kind = FileKind::of(fields.u8()?)?;
        fields.0.is_empty().then_some(Named { inode, kind })
    }
}

/// The kind of a stretch of contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Bytes; of a piece at most [`PIECE_BYTES`].
    pub(crate) length: u64,
    /// CRC-32C of a piece; `None` for a hole.
    pub(crate) crc: Option<u32>,
}

impl Stretch {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.crc.is_none()), 0, 0, 0];
        bytes.extend_from_slice(&self.crc.unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(&self.length.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Stretch> {
        let mut fields = Fields(bytes);
        let [hole, ..] = fields.take::<4>()?;
        let crc = fields.u32()?;
        let length = fields.u64()?;
        let fits = length > 0 && (hole == 1 || length <= PIECE_BYTES as u64);
        (hole <= 1 && fits && fields.0.is_empty()).then_some(Stretch {
            length,
            crc: (hole == 0).then_some(crc),
        })
    }
}

/// An entry that is being made or freed and has no name. The next opening removes it if its session
/// has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Contents, or a directory and all below it.
    pub(crate) is_directory: bool,
    /// The session that makes it; 0 if it is being freed.
    pub(crate) session: u64,
}

impl Pending {
    pub(crate) fn freed(is_directory: bool) -> Pending {
        Pending {
            is_directory,
            session: 0,
        }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.is_directory)];
        bytes.extend_from_slice(&self.session.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Pending> {
        let mut fields = Fields(bytes);
        let directory = fields.u8()?;
        let session = fields.u64()?;
        (directory <= 1 && fields.0.is_empty()).then_some(Pending {
            is_directory: directory == 1,
            session,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let inode = Inode {
            kind: FileKind::Symlink,
            mode: 0o4755,
            links: 3,
            uid: 1000,
            gid: 100,
            mtime: FileTime {
                seconds: -7,
                nanoseconds: 999_999_999,
            },
            size: 9,
            content: 1 << 40,
            is_mapped: true,
            crc: 0xdead_beef,
            parent: 5,
            target: b"../\xff file".to_vec(),
        };
        assert_eq!(inode.encode().len(), 60 + inode.target.len());
        assert_eq!(Inode::decode(&inode.encode()), Some(inode.clone()));
        assert_eq!(Inode::decode(&inode.encode()[..40]), None);
        let mut other = inode.encode();
        other[0] = 9;
        assert_eq!(Inode::decode(&other), None);
        let stretch = Stretch {
            length: 1 << 50,
            crc: None,
        };
        assert_eq!(Stretch::decode(&stretch.encode()), Some(stretch));
        let named = Named {
            inode: 77,
            kind: FileKind::Directory,
        };
        assert_eq!(Named::decode(&named.encode()), Some(named));
        let pending = Pending {
            is_directory: true,
            session: 12,
        };
        assert_eq!(Pending::decode(&pending.encode()), Some(pending));
        let header = Header { next: 4096 };
        let read = Header::decode(&header.encode()).unwrap();
        assert_eq!(read.unwrap(), header);
        let mut newer = header.encode();
        newer[8] = 2;
        assert!(Header::decode(&newer).unwrap().is_err());
        assert!(Header::decode(b"something").is_none());
    }

    #[test]
    fn keys_are_taken_apart_and_sort_as_numbers_do() {
        assert!(piece_key(1, 255) < piece_key(1, 256));
        assert!(map_key(2, 0) > map_key(1, u64::MAX));
        let name = b"12345678";
        assert_eq!(
            ParsedKey::of(&name_key(3, name)),
            Some(ParsedKey::Name { directory: 3, name })
        );
        assert_eq!(ParsedKey::of(&inode_key(3)), Some(ParsedKey::Inode(3)));
        assert_eq!(ParsedKey::of(&pending_key(4)), Some(ParsedKey::Pending(4)));
        assert_eq!(ParsedKey::of(b"x12345678"), None);
    }
}
