//! Changes of names and inodes, each a transaction.

use isobath::{Transaction, Tree};

use crate::layout::{
    ABOVE_ROOT, FileKind, FileTime, Inode, Named, Pending, Stretch, inode_key, map_key, name_key,
    pending_key, piece_key,
};
use crate::view::{MAX_DEPTH, Place, Records};
use crate::{Attributes, FileTree, FilesError, path};

/// A rename's behaviour if the new name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replaces what can be replaced: a file or link by a file or link, an empty directory by a
    /// directory.
    #[default]
    Replace,
    /// Fails with [`FilesError::Exists`].
    NoReplace,
}

/// One transaction over names and inodes.
pub(crate) struct Change<'t> {
    tree: &'t Tree,
    transaction: &'t mut Transaction,
    /// Contents to be freed after the transaction.
    pub(crate) freed: Vec<u64>,
}

impl<'t> Change<'t> {
    pub(crate) fn new(tree: &'t Tree, transaction: &'t mut Transaction) -> Change<'t> {
        Change {
            tree,
            transaction,
            freed: Vec::new(),
        }
    }

    pub(crate) fn records(&self) -> Records<'_> {
        Records {
            tree: self.tree,
            transaction: self.transaction,
        }
    }

    pub(crate) fn put(&mut self, key: Vec<u8>, value: &[u8]) -> Result<(), FilesError> {
        Ok(self.transaction.insert(self.tree, key, value)?)
    }

    pub(crate) fn remove(&mut self, key: Vec<u8>) -> Result<bool, FilesError> {
        Ok(self.transaction.remove(self.tree, key)?)
    }

    pub(crate) fn put_inode(&mut self, number: u64, inode: &Inode) -> Result<(), FilesError> {
        self.put(inode_key(number), &inode.encode())
    }

    pub(crate) fn put_name(
        &mut self,
        directory: u64,
        name: &[u8],
        named: Named,
    ) -> Result<(), FilesError> {
        self.put(name_key(directory, name), &named.encode())
    }

    /// The place of a name that is free.
    pub(crate) fn free_place(&self, path: &[u8]) -> Result<Place, FilesError> {
        let place = self.records().place(path)?;
        match place.named {
            Some(_) => Err(FilesError::Exists { path: path.into() }),
            None => Ok(place),
        }
    }

    /// A place that is taken, and its entry. The root can neither be moved nor removed.
    fn taken_place(&self, path: &[u8]) -> Result<(Place, Named), FilesError> {
        let place = self.records().place(path)?;
        let Some(named) = place.named else {
            return Err(FilesError::NotFound { path: path.into() });
        };
        if place.directory == ABOVE_ROOT {
            return Err(FilesError::BadName {
                path: path.into(),
                reason: "the root can neither be moved nor removed",
            });
        }
        Ok((place, named))
    }

    /// Gives a new inode its first name.
    pub(crate) fn add(
        &mut self,
        place: &Place,
        number: u64,
        mut inode: Inode,
    ) -> Result<(), FilesError> {
        let named = Named {
            inode: number,
            kind: inode.kind,
        };
        if inode.kind == FileKind::Directory {
            inode.parent = place.directory;
        }
        self.put_inode(number, &inode)?;
        self.put_name(place.directory, &place.name, named)
    }

    /// Stores contents that are a single piece.
    pub(crate) fn put_piece(&mut self, content: u64, bytes: &[u8]) -> Result<(), FilesError> {
        self.put(piece_key(content, 0), bytes)
    }

    /// Stores a stretch of contents that have a map.
    pub(crate) fn put_stretch(
        &mut self,
        content: u64,
        offset: u64,
        stretch: Stretch,
        bytes: &[u8],
    ) -> Result<(), FilesError> {
        if stretch.crc.is_some() {
            self.put(piece_key(content, offset), bytes)?;
        }
        self.put(map_key(content, offset), &stretch.encode())
    }

    /// Takes the contents of a file away.
    pub(crate) fn free_content(&mut self, inode: &Inode) -> Result<(), FilesError> {
        match (inode.content, inode.is_mapped) {
            (0, _) => {}
            (content, false) => {
                self.remove(piece_key(content, 0))?;
            }
            (content, true) => {
                self.put(pending_key(content), &Pending::freed(false).encode())?;
                self.freed.push(content);
            }
        }
        Ok(())
    }

    /// One name fewer of a file or link; without its last one it is gone.
    pub(crate) fn drop_link(&mut self, number: u64, path: &[u8]) -> Result<(), FilesError> {
        let mut inode = self.records().inode(number, path)?;
        inode.links = inode.links.saturating_sub(1);
        if inode.links > 0 {
            return self.put_inode(number, &inode);
        }
        self.remove(inode_key(number))?;
        self.free_content(&inode)
    }

    /// One name more of a file or link.
    pub(crate) fn add_link(
        &mut self,
        directory: u64,
        name: &[u8],
        number: u64,
        path: &[u8],
    ) -> Result<(), FilesError> {
        let mut inode = self.records().inode(number, path)?;
        let links = inode.links.checked_add(1);
        inode.links = links.ok_or_else(|| FilesError::TooManyLinks { path: path.into() })?;
        self.put_inode(number, &inode)?;
        let named = Named {
            inode: number,
            kind: inode.kind,
        };
        self.put_name(directory, name, named)
    }

    fn is_empty(&self, directory: u64) -> Result<bool, FilesError> {
        Ok(self.records().entries(directory, None, 1)?.is_empty())
    }

    /// Takes the name of whatever has it away. A directory with entries is freed with all that is
    /// below it, if that is allowed.
    fn displace(
        &mut self,
        place: &Place,
        named: Named,
        path: &[u8],
        with_entries: bool,
    ) -> Result<(), FilesError> {
        self.remove(name_key(place.directory, &place.name))?;
        if named.kind != FileKind::Directory {
            return self.drop_link(named.inode, path);
        }
        if self.is_empty(named.inode)? {
            self.remove(inode_key(named.inode))?;
            return Ok(());
        }
        if !with_entries {
            return Err(FilesError::NotEmpty { path: path.into() });
        }
        let pending = Pending::freed(true);
        self.put(pending_key(named.inode), &pending.encode())?;
        self.freed.push(named.inode);
        Ok(())
    }

    /// Gives a finished directory or file that has no name yet a place. With `replace` it takes
    /// whatever is there away, and all that is below that; otherwise only the root is replaced,
    /// while it is empty.
    pub(crate) fn install(
        &mut self,
        number: u64,
        path: &[u8],
        replace: bool,
    ) -> Result<(), FilesError> {
        let place = self.records().place(path)?;
        let mut inode = self.records().inode(number, path)?;
        let is_root = place.directory == ABOVE_ROOT;
        if is_root && inode.kind != FileKind::Directory {
            return Err(FilesError::IsADirectory { path: path.into() });
        }
        if let Some(named) = place.named {
            let may_replace = replace || (is_root && self.is_empty(named.inode)?);
            if !may_replace {
                return Err(FilesError::Exists { path: path.into() });
            }
            self.displace(&place, named, path, true)?;
        }
        if inode.kind == FileKind::Directory {
            inode.parent = place.directory;
            self.put_inode(number, &inode)?;
        }
        let named = Named {
            inode: number,
            kind: inode.kind,
        };
        self.put_name(place.directory, &place.name, named)
    }

    /// Refuses to move `directory` to a place below itself.
    fn check_not_inside(
        &self,
        directory: u64,
        mut above: u64,
        from: &[u8],
        to: &[u8],
    ) -> Result<(), FilesError> {
        for _ in 0..MAX_DEPTH {
            if above == directory {
                return Err(FilesError::IntoItself {
                    from: from.into(),
                    to: to.into(),
                });
            }
            if above == ABOVE_ROOT {
                return Ok(());
            }
            above = self.records().inode(above, to)?.parent;
        }
        Err(FilesError::corrupt(to, "its directories are in a cycle"))
    }

    fn rename(&mut self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<(), FilesError> {
        let (old, moved) = self.taken_place(from)?;
        let new = self.records().place(to)?;
        if let Some(there) = new.named {
            if mode == RenameMode::NoReplace {
                return Err(FilesError::Exists { path: to.into() });
            }
            if there.inode == moved.inode {
                // The same place, or another name of the same file: nothing is done, as `rename(2)`
                // has it.
                return Ok(());
            }
        }
        let is_directory = moved.kind == FileKind::Directory;
        if is_directory {
            self.check_not_inside(moved.inode, new.directory, from, to)?;
        }
        if let Some(there) = new.named {
            match (is_directory, there.kind == FileKind::Directory) {
                (false, true) => return Err(FilesError::IsADirectory { path: to.into() }),
                (true, false) => return Err(FilesError::NotADirectory { path: to.into() }),
                _ => self.displace(&new, there, to, false)?,
            }
        }
        self.remove(name_key(old.directory, &old.name))?;
        self.put_name(new.directory, &new.name, moved)?;
        if is_directory && old.directory != new.directory {
            let mut inode = self.records().inode(moved.inode, from)?;
            inode.parent = new.directory;
            self.put_inode(moved.inode, &inode)?;
        }
        Ok(())
    }
}

/// Each operation is one transaction: all of it or nothing is there after a crash. They fail with
/// [`FilesError::NotFound`], [`FilesError::NotADirectory`] and [`FilesError::BadName`] if a path
/// leads nowhere, and with the engine's errors.
impl FileTree {
    /// Makes an empty directory.
    ///
    /// # Errors
    ///
    /// [`FilesError::Exists`], and as above.
    pub fn create_directory(
        &self,
        path: impl AsRef<[u8]>,
        attributes: &Attributes,
    ) -> Result<(), FilesError> {
        let path = path.as_ref();
        let number = self.new_number()?;
        let inode = Inode::new(FileKind::Directory, attributes);
        self.change(|change| {
            let place = change.free_place(path)?;
            change.add(&place, number, inode.clone())
        })
    }

    /// Makes a symbolic link. Its target is any text; it is not followed.
    ///
    /// # Errors
    ///
    /// [`FilesError::Exists`], [`FilesError::BadName`] for a target that cannot be, and as above.
    pub fn create_link(
        &self,
        path: impl AsRef<[u8]>,
        target: impl AsRef<[u8]>,
        attributes: &Attributes,
    ) -> Result<(), FilesError> {
        let (path, target) = (path.as_ref(), target.as_ref());
        path::check_target(path, target)?;
        let number = self.new_number()?;
        let inode = symlink(target, attributes);
        self.change(|change| {
            let place = change.free_place(path)?;
            change.add(&place, number, inode.clone())
        })
    }

    /// Stores the whole contents of a file, new or in place of what it had; that is seen under all
    /// of its names.
    ///
    /// # Errors
    ///
    /// [`FilesError::IsADirectory`], [`FilesError::NotAFile`], and as above.
    pub fn write(
        &self,
        path: impl AsRef<[u8]>,
        contents: &[u8],
        attributes: &Attributes,
    ) -> Result<(), FilesError> {
        let mut writer = self.writer(path, attributes)?;
        writer.append(contents)?;
        writer.finish()?;
        Ok(())
    }

    /// Gives a file or symbolic link a further name (hard link). Directories have one only: with
    /// more, a tree could contain itself.
    ///
    /// # Errors
    ///
    /// [`FilesError::Exists`], [`FilesError::IsADirectory`], [`FilesError::TooManyLinks`], and as
    /// above.
    pub fn link(
        &self,
        existing: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
    ) -> Result<(), FilesError> {
        let (existing, new) = (existing.as_ref(), new.as_ref());
        self.change(|change| {
            let named = change.records().resolve(existing)?;
            if named.kind == FileKind::Directory {
                return Err(FilesError::IsADirectory {
                    path: existing.into(),
                });
            }
            let place = change.free_place(new)?;
            change.add_link(place.directory, &place.name, named.inode, existing)
        })
    }

    /// Moves a file, link or directory, replacing the entry at `to`.
    ///
    /// # Errors
    ///
    /// As for [`FileTree::rename_with`].
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<(), FilesError> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// Moves a file, link or directory, as `rename(2)` does. The cost of moving a directory does
    /// not depend on its size.
    ///
    /// # Errors
    ///
    /// [`FilesError::Exists`] with [`RenameMode::NoReplace`]; [`FilesError::IntoItself`];
    /// [`FilesError::IsADirectory`], [`FilesError::NotADirectory`] and [`FilesError::NotEmpty`] for
    /// what cannot be replaced; and as above.
    pub fn rename_with(
        &self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        mode: RenameMode,
    ) -> Result<(), FilesError> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.change(|change| change.rename(from, to, mode))
    }

    /// Removes a name of a file or symbolic link, and with the last one the file. Readers that have
    /// it open go on.
    ///
    /// # Errors
    ///
    /// [`FilesError::IsADirectory`], and as above.
    pub fn remove(&self, path: impl AsRef<[u8]>) -> Result<(), FilesError> {
        let path = path.as_ref();
        self.change(|change| {
            let (place, named) = change.taken_place(path)?;
            match named.kind {
                FileKind::Directory => Err(FilesError::IsADirectory { path: path.into() }),
                _ => change.displace(&place, named, path, false),
            }
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// [`FilesError::NotADirectory`], [`FilesError::NotEmpty`], and as above.
    pub fn remove_directory(&self, path: impl AsRef<[u8]>) -> Result<(), FilesError> {
        let path = path.as_ref();
        self.change(|change| {
            let (place, named) = change.taken_place(path)?;
            match named.kind {
                FileKind::Directory => change.displace(&place, named, path, false),
                _ => Err(FilesError::NotADirectory { path: path.into() }),
            }
        })
    }

    /// Removes whatever has this name; of a directory, everything below it, in one step. The space
    /// is freed before this returns, or after a crash by the next opening.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn remove_all(&self, path: impl AsRef<[u8]>) -> Result<(), FilesError> {
        let path = path.as_ref();
        self.change(|change| {
            let (place, named) = change.taken_place(path)?;
            change.displace(&place, named, path, true)
        })
    }

    /// Changes permissions, owner and time.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn set_attributes(
        &self,
        path: impl AsRef<[u8]>,
        set: impl Fn(&mut Attributes),
    ) -> Result<(), FilesError> {
        let path = path.as_ref();
        self.change(|change| {
            let number = change.records().resolve(path)?.inode;
            let mut inode = change.records().inode(number, path)?;
            let mut attributes = crate::view::Stat::of(number, &inode).attributes;
            set(&mut attributes);
            inode.mode = attributes.mode & 0o7777;
            (inode.uid, inode.gid) = (attributes.uid, attributes.gid);
            let FileTime {
                seconds,
                nanoseconds,
            } = attributes.mtime;
            inode.mtime = FileTime {
                seconds,
                nanoseconds: nanoseconds.min(999_999_999),
            };
            change.put_inode(number, &inode)
        })
    }
}

/// The inode of a symbolic link.
pub(crate) fn symlink(target: &[u8], attributes: &Attributes) -> Inode {
    let mut inode = Inode::new(FileKind::Symlink, attributes);
    inode.size = target.len() as u64;
    inode.crc = crc32c::crc32c(target);
    inode.target = target.to_vec();
    inode
}
