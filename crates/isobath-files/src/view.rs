//! Reading a tree: names, inodes, directories, walks.

use std::sync::Arc;

use isobath::{Snapshot, Transaction, Tree};

use crate::layout::{
    ABOVE_ROOT, FileKind, FileTime, Inode, Named, inode_key, name_key, names_prefix,
};
use crate::reader::FileReader;
use crate::{FilesError, path};

/// Entries of a directory that a walk reads at a time.
const ENTRIES_AT_ONCE: usize = 256;
/// Most directories above one another that are followed upwards: a longer chain is a cycle.
pub(crate) const MAX_DEPTH: usize = 1 << 20;

/// Attributes of a new file, directory or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions, set-user-id, set-group-id and sticky bit: the low 12 bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The owning group.
    pub gid: u32,
    /// When it was changed last. Entries that come and go do not change that of their directory, so
    /// that threads can work in one directory side by side.
    pub mtime: FileTime,
}

impl Attributes {
    /// This mode; this process's user and group, and this moment.
    #[must_use]
    pub fn with_mode(mode: u32) -> Attributes {
        Attributes {
            mode,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mtime: FileTime::now(),
        }
    }

    /// `rw-r--r--`
    #[must_use]
    pub fn file() -> Attributes {
        Attributes::with_mode(0o644)
    }

    /// `rwxr-xr-x`
    #[must_use]
    pub fn directory() -> Attributes {
        Attributes::with_mode(0o755)
    }
}

/// Properties of a file, directory or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its number, the same under all of its names and never used again.
    pub inode: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permissions, owner, time.
    pub attributes: Attributes,
    /// Its names; 1 for a directory.
    pub links: u32,
    /// Bytes of contents, or of a link's target; 0 for a directory.
    pub size: u64,
    /// CRC-32C of them.
    pub crc: u32,
}

impl Stat {
    pub(crate) fn of(number: u64, inode: &Inode) -> Stat {
        Stat {
            inode: number,
            kind: inode.kind,
            attributes: Attributes {
                mode: inode.mode,
                uid: inode.uid,
                gid: inode.gid,
                mtime: inode.mtime,
            },
            links: inode.links,
            size: inode.size,
            crc: inode.crc,
        }
    }
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name there.
    pub name: Vec<u8>,
    /// The inode's number.
    pub inode: u64,
    /// What it is.
    pub kind: FileKind,
}

/// The records of a tree as a transaction sees them.
#[derive(Clone, Copy)]
pub(crate) struct Records<'t> {
    pub(crate) tree: &'t Tree,
    pub(crate) transaction: &'t Transaction,
}

/// The place that a path leads to: a name in a directory, which may be free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) directory: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) named: Option<Named>,
}

impl Records<'_> {
    /// An inode; `path` names it in errors.
    pub(crate) fn inode(&self, number: u64, path: &[u8]) -> Result<Inode, FilesError> {
        let bytes = self.transaction.get(self.tree, inode_key(number))?;
        let Some(bytes) = bytes else {
            return Err(FilesError::corrupt(
                path,
                "the inode of this name is missing",
            ));
        };
        Inode::decode(&bytes).ok_or_else(|| FilesError::corrupt(path, "its inode is malformed"))
    }

    pub(crate) fn named(&self, directory: u64, name: &[u8]) -> Result<Option<Named>, FilesError> {
        let bytes = self.transaction.get(self.tree, name_key(directory, name))?;
        let decode = |bytes: Vec<u8>| {
            Named::decode(&bytes).ok_or_else(|| FilesError::corrupt(name, "its entry is malformed"))
        };
        bytes.map(decode).transpose()
    }

    pub(crate) fn root(&self) -> Result<Named, FilesError> {
        self.named(ABOVE_ROOT, b"")?
            .ok_or_else(|| FilesError::corrupt(b"/", "the root is missing"))
    }

    /// The directory that `names` lead to.
    fn directory(&self, names: &[&[u8]], path: &[u8]) -> Result<u64, FilesError> {
        let mut at = self.root()?;
        for name in names {
            let next = self.named(at.inode, name)?;
            at = next.ok_or_else(|| FilesError::NotFound { path: path.into() })?;
            if at.kind != FileKind::Directory {
                return Err(FilesError::NotADirectory { path: path.into() });
            }
        }
        Ok(at.inode)
    }

    /// The place of a path: all of its parts but the last are directories. The root's is the one
    /// above it.
    pub(crate) fn place(&self, path: &[u8]) -> Result<Place, FilesError> {
        let names = path::names(path)?;
        let Some((name, directories)) = names.split_last() else {
            return Ok(Place {
                directory: ABOVE_ROOT,
                name: Vec::new(),
                named: Some(self.root()?),
            });
        };
        let directory = self.directory(directories, path)?;
        Ok(Place {
            directory,
            name: name.to_vec(),
            named: self.named(directory, name)?,
        })
    }

    /// Resolves a path.
    pub(crate) fn resolve(&self, path: &[u8]) -> Result<Named, FilesError> {
        let named = self.place(path)?.named;
        named.ok_or_else(|| FilesError::NotFound { path: path.into() })
    }

    /// Entries of a directory in the order of their names, those behind `after`, at most `count`.
    pub(crate) fn entries(
        &self,
        directory: u64,
        after: Option<&[u8]>,
        count: usize,
    ) -> Result<Vec<Entry>, FilesError> {
        use std::ops::Bound;
        let prefix = names_prefix(directory);
        let first = name_key(directory, after.unwrap_or_default());
        let lower = match after {
            Some(_) => Bound::Excluded(first),
            None => Bound::Included(first),
        };
        let upper = Bound::Excluded(names_prefix(directory.saturating_add(1)));
        let mut entries = Vec::new();
        let range = self.transaction.range(self.tree, (lower, upper))?;
        for record in range.take(count) {
            let (key, value) = record?;
            let Some(name) = key.strip_prefix(&prefix[..]) else {
                break;
            };
            let named = Named::decode(&value)
                .ok_or_else(|| FilesError::corrupt(name, "its entry is malformed"))?;
            entries.push(Entry {
                name: name.to_vec(),
                inode: named.inode,
                kind: named.kind,
            });
        }
        Ok(entries)
    }
}

/// A tree as it was at one moment, from [`FileTree::view`](crate::FileTree::view). Clones share it.
///
/// Writers never wait for it, nor it for them. While one is open the store keeps what it may still
/// read; if that becomes too much, reads fail with [`isobath::Error::SnapshotTooOld`]. Views of a
/// store that is open for reading only have no such end.
#[derive(Clone)]
pub struct FileView(Arc<(Tree, Snapshot)>);

impl std::fmt::Debug for FileView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileView").finish_non_exhaustive()
    }
}

impl FileView {
    pub(crate) fn new(tree: Tree, snapshot: Snapshot) -> FileView {
        FileView(Arc::new((tree, snapshot)))
    }

    pub(crate) fn records(&self) -> Records<'_> {
        Records {
            tree: &self.0.0,
            transaction: &self.0.1,
        }
    }

    /// Properties of the entry at a path. Symbolic links are not followed.
    ///
    /// # Errors
    ///
    /// [`FilesError::NotFound`], [`FilesError::NotADirectory`] for a part of the path,
    /// [`FilesError::BadName`], [`FilesError::Corrupt`], or a failure of the engine.
    pub fn stat(&self, path: impl AsRef<[u8]>) -> Result<Stat, FilesError> {
        let path = path.as_ref();
        let named = self.records().resolve(path)?;
        self.stat_inode(named.inode, path)
    }

    /// Properties of an inode; `path` names it in errors.
    ///
    /// # Errors
    ///
    /// [`FilesError::Corrupt`] if there is no such inode, or a failure of the engine.
    pub fn stat_inode(&self, inode: u64, path: impl AsRef<[u8]>) -> Result<Stat, FilesError> {
        let found = self.records().inode(inode, path.as_ref())?;
        Ok(Stat::of(inode, &found))
    }

    /// The entry `name` of the directory with the number `directory`.
    ///
    /// # Errors
    ///
    /// [`FilesError::Corrupt`], or a failure of the engine.
    pub fn lookup(&self, directory: u64, name: &[u8]) -> Result<Option<Entry>, FilesError> {
        if path::check(name).is_err() {
            return Ok(None);
        }
        let named = self.records().named(directory, name)?;
        Ok(named.map(|named| Entry {
            name: name.to_vec(),
            inode: named.inode,
            kind: named.kind,
        }))
    }

    /// All entries of a directory, in the order of their names' bytes.
    ///
    /// # Errors
    ///
    /// As for [`FileView::stat`]; [`FilesError::NotADirectory`].
    pub fn list(&self, path: impl AsRef<[u8]>) -> Result<Vec<Entry>, FilesError> {
        let path = path.as_ref();
        let named = self.records().resolve(path)?;
        if named.kind != FileKind::Directory {
            return Err(FilesError::NotADirectory { path: path.into() });
        }
        self.list_inode(named.inode, None, usize::MAX)
    }

    /// Up to `count` entries of the directory with the number `directory`: those behind the name
    /// `after`.
    ///
    /// # Errors
    ///
    /// [`FilesError::Corrupt`], or a failure of the engine.
    pub fn list_inode(
        &self,
        directory: u64,
        after: Option<&[u8]>,
        count: usize,
    ) -> Result<Vec<Entry>, FilesError> {
        self.records().entries(directory, after, count)
    }

    /// The number of the directory that a directory is in; of the root its own.
    ///
    /// # Errors
    ///
    /// As for [`FileView::stat_inode`].
    pub fn parent_of(&self, directory: u64) -> Result<u64, FilesError> {
        let inode = self.records().inode(directory, b"")?;
        match inode.parent {
            ABOVE_ROOT => Ok(directory),
            parent => Ok(parent),
        }
    }

    /// The target of a symbolic link, verified.
    ///
    /// # Errors
    ///
    /// As for [`FileView::stat`]; [`FilesError::NotALink`], [`FilesError::Checksum`].
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>, FilesError> {
        let path = path.as_ref();
        let named = self.records().resolve(path)?;
        self.read_link_inode(named.inode, path)
    }

    /// The same by the link's number; `path` names it in errors.
    ///
    /// # Errors
    ///
    /// As for [`FileView::read_link`].
    pub fn read_link_inode(
        &self,
        inode: u64,
        path: impl AsRef<[u8]>,
    ) -> Result<Vec<u8>, FilesError> {
        let path = path.as_ref();
        let inode = self.records().inode(inode, path)?;
        if inode.kind != FileKind::Symlink {
            return Err(FilesError::NotALink { path: path.into() });
        }
        let found = crc32c::crc32c(&inode.target);
        if found != inode.crc {
            return Err(FilesError::Checksum {
                path: path.into(),
                offset: 0,
                found,
                expected: inode.crc,
            });
        }
        Ok(inode.target)
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    ///
    /// As for [`FileView::stat`]; [`FilesError::IsADirectory`], [`FilesError::NotAFile`].
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<FileReader, FilesError> {
        let path = path.as_ref();
        let named = self.records().resolve(path)?;
        self.open_inode(named.inode, path)
    }

    /// The same by the file's number; `path` names it in errors.
    ///
    /// # Errors
    ///
    /// As for [`FileView::open`].
    pub fn open_inode(&self, inode: u64, path: impl AsRef<[u8]>) -> Result<FileReader, FilesError> {
        let path = path.as_ref();
        let found = self.records().inode(inode, path)?;
        match found.kind {
            FileKind::File => Ok(FileReader::new(self.clone(), path, inode, found)),
            FileKind::Directory => Err(FilesError::IsADirectory { path: path.into() }),
            FileKind::Symlink => Err(FilesError::NotAFile { path: path.into() }),
        }
    }

    /// The whole contents of a regular file, verified.
    ///
    /// # Errors
    ///
    /// As for [`FileView::open`] and [`FileReader::read_at`].
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>, FilesError> {
        self.open(path)?.read_all()
    }

    /// Everything at and below a path, each directory before its entries, entries in the order of
    /// their names. Paths are absolute.
    ///
    /// # Errors
    ///
    /// As for [`FileView::stat`]; the iterator as for [`FileView::list`].
    pub fn walk(&self, path: impl AsRef<[u8]>) -> Result<Walk, FilesError> {
        let names = path::names(path.as_ref())?;
        let path = names.iter().fold(b"/".to_vec(), |at, n| path::join(&at, n));
        let named = self.records().resolve(&path)?;
        Ok(Walk {
            view: self.clone(),
            open: Vec::new(),
            next: Some((path, named)),
        })
    }
}

/// Everything below a directory, from [`FileView::walk`].
#[derive(Debug)]
pub struct Walk {
    view: FileView,
    /// The directories that the walk is in.
    open: Vec<Level>,
    next: Option<(Vec<u8>, Named)>,
}

#[derive(Debug)]
struct Level {
    path: Vec<u8>,
    directory: u64,
    entries: std::vec::IntoIter<Entry>,
    last: Option<Vec<u8>>,
}

impl Walk {
    fn advance(&mut self) -> Result<Option<(Vec<u8>, Named)>, FilesError> {
        if let Some((path, named)) = self.next.take() {
            self.enter(&path, named);
            return Ok(Some((path, named)));
        }
        while let Some(level) = self.open.last_mut() {
            if level.entries.as_slice().is_empty() {
                let records = self.view.records();
                let after = level.last.as_deref();
                let more = records.entries(level.directory, after, ENTRIES_AT_ONCE)?;
                level.entries = more.into_iter();
            }
            let Some(entry) = level.entries.next() else {
                self.open.pop();
                continue;
            };
            // Programs that copy a tree outside take names for single names.
            path::check(&entry.name).map_err(|reason| FilesError::corrupt(&level.path, reason))?;
            let path = path::join(&level.path, &entry.name);
            level.last = Some(entry.name);
            let named = Named {
                inode: entry.inode,
                kind: entry.kind,
            };
            self.enter(&path, named);
            return Ok(Some((path, named)));
        }
        Ok(None)
    }

    fn enter(&mut self, path: &[u8], named: Named) {
        if named.kind == FileKind::Directory {
            self.open.push(Level {
                path: path.to_vec(),
                directory: named.inode,
                entries: Vec::new().into_iter(),
                last: None,
            });
        }
    }

    /// The next path, with what it names.
    ///
    /// # Errors
    ///
    /// As for [`FileView::list`].
    fn step(&mut self) -> Result<Option<(Vec<u8>, Stat)>, FilesError> {
        let Some((path, named)) = self.advance()? else {
            return Ok(None);
        };
        let stat = self.view.stat_inode(named.inode, &path)?;
        Ok(Some((path, stat)))
    }
}

impl Iterator for Walk {
    type Item = Result<(Vec<u8>, Stat), FilesError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.step().transpose();
        if matches!(next, Some(Err(_))) {
            // An error ends the walk.
            (self.next, self.open) = (None, Vec::new());
        }
        next
    }
}
