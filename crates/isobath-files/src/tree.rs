//! A file tree in a store: opening, making, numbers, sessions.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isobath::{
    Durability, Isolation, StorageError, Store, Transaction, TransactionError, TransactionOptions,
    Tree,
};

use crate::change::Change;
use crate::layout::{ABOVE_ROOT, FileKind, HEADER_KEY, Header, Inode, Named, inode_key, name_key};
use crate::view::FileView;
use crate::{Attributes, FilesError};

/// Numbers that are taken from the header at a time.
const NUMBERS_AT_ONCE: u64 = 1024;
/// The number of the first root.
const FIRST_ROOT: u64 = 1;

/// Directories, files and links in one tree of a store. Clones share it; any number of threads may
/// use it.
///
/// One process at a time changes a tree, as only one has the store open for writing; a tree of a
/// store that is open for reading answers [`isobath::Error::ReadOnly`] to changes.
#[derive(Clone)]
pub struct FileTree {
    pub(crate) store: Store,
    pub(crate) tree: Tree,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for FileTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileTree")
            .field("name", &self.tree.name())
            .finish_non_exhaustive()
    }
}

struct Shared {
    /// Numbers for inodes and contents that this handle may still give out.
    free: Mutex<std::ops::Range<u64>>,
    session: u64,
}

/// Sessions of this process that may still be making something. What others have begun and not
/// finished is nothing any more.
static LIVE: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<u64>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether what a session has begun may still be finished.
pub(crate) fn is_live(session: u64) -> bool {
    live().contains(&session)
}

impl Drop for Shared {
    fn drop(&mut self) {
        live().remove(&self.session);
    }
}

impl FileTree {
    /// Opens the file tree `name` of a store. If the store is open for writing, what a crash has
    /// left unfinished is removed.
    ///
    /// # Errors
    ///
    /// [`isobath::Error::NoSuchTree`], [`FilesError::NotFiles`], [`FilesError::NewerFormat`], or a
    /// failure of the engine.
    pub fn open(store: &Store, name: &str) -> Result<FileTree, FilesError> {
        let files = FileTree::of(store, store.tree(name)?);
        match files.tree.get(HEADER_KEY)? {
            Some(header) => files.check(&header)?,
            None => return Err(files.holds_no_files()),
        }
        files.recovered()
    }

    /// Opens the file tree `name`, or makes it: a root directory.
    ///
    /// # Errors
    ///
    /// As for [`FileTree::open`]; [`FilesError::NotFiles`] for a tree that holds other records.
    pub fn open_or_create(store: &Store, name: &str) -> Result<FileTree, FilesError> {
        let files = FileTree::of(store, store.open_or_create_tree(name)?);
        match files.tree.get(HEADER_KEY)? {
            Some(header) => files.check(&header)?,
            None if files.tree.first()?.is_some() => return Err(files.holds_no_files()),
            None => files.format()?,
        }
        files.recovered()
    }

    fn of(store: &Store, tree: Tree) -> FileTree {
        let session = RandomState::new().build_hasher().finish() | 1;
        live().insert(session);
        FileTree {
            store: store.clone(),
            tree,
            shared: Arc::new(Shared {
                free: Mutex::new(0..0),
                session,
            }),
        }
    }

    fn holds_no_files(&self) -> FilesError {
        FilesError::NotFiles {
            name: self.tree.name().to_owned(),
        }
    }

    fn check(&self, header: &[u8]) -> Result<(), FilesError> {
        match Header::decode(header) {
            None => Err(self.holds_no_files()),
            Some(header) => header.map(drop),
        }
    }

    fn format(&self) -> Result<(), FilesError> {
        self.store
            .transact(TransactionOptions::new(), |transaction| {
                if transaction.contains(&self.tree, HEADER_KEY)? {
                    return Ok(());
                }
                let next = FIRST_ROOT + 1;
                transaction.insert(&self.tree, HEADER_KEY, Header { next }.encode())?;
                let root = Inode::new(FileKind::Directory, &Attributes::directory());
                transaction.insert(&self.tree, inode_key(FIRST_ROOT), root.encode())?;
                let named = Named {
                    inode: FIRST_ROOT,
                    kind: FileKind::Directory,
                };
                transaction.insert(&self.tree, name_key(ABOVE_ROOT, b""), named.encode())?;
                Ok(())
            })
    }

    /// Removes entries that ended sessions were making, and those that were being freed.
    fn recovered(self) -> Result<FileTree, FilesError> {
        match self.store.begin() {
            Ok(transaction) => transaction.rollback(),
            // For reading only.
            Err(
                TransactionError::ReadOnly
                | TransactionError::Storage(StorageError::Poisoned { .. }),
            ) => return Ok(self),
            Err(error) => return Err(error.into()),
        }
        self.remove_unfinished()?;
        Ok(self)
    }

    /// The tree's name in its store.
    #[must_use]
    pub fn name(&self) -> &str {
        self.tree.name()
    }

    /// The tree as it is now, for reading.
    ///
    /// # Errors
    ///
    /// [`StorageError::Closed`].
    pub fn view(&self) -> Result<FileView, FilesError> {
        Ok(FileView::new(self.tree.clone(), self.store.snapshot()?))
    }

    pub(crate) fn session(&self) -> u64 {
        self.shared.session
    }

    fn free(&self) -> MutexGuard<'_, std::ops::Range<u64>> {
        let free = self.shared.free.lock();
        free.unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no inode and no contents of the tree have or had.
    pub(crate) fn new_number(&self) -> Result<u64, FilesError> {
        if let Some(number) = self.free().next() {
            return Ok(number);
        }
        // Without the lock: a task that waits for the drive lets others of its thread run.
        let mut taken = self.run(|transaction| {
            let header = transaction.get(&self.tree, HEADER_KEY)?;
            let header = header.as_deref().and_then(Header::decode);
            let first = header.ok_or_else(|| self.holds_no_files())??.next;
            let next = first.saturating_add(NUMBERS_AT_ONCE);
            transaction.insert(&self.tree, HEADER_KEY, Header { next }.encode())?;
            Ok(first..next)
        })?;
        let number = taken.next();
        // The rest of another thread's range is never used.
        *self.free() = taken;
        number.ok_or_else(|| FilesError::corrupt(b"", "all numbers of inodes are used"))
    }

    /// Runs a transaction that concerns nothing that has a name. It is not waited for: a crash
    /// loses commits from the newest on, so it is there where the change is that gives what it made
    /// a name.
    pub(crate) fn run<T>(
        &self,
        work: impl FnMut(&mut Transaction) -> Result<T, FilesError>,
    ) -> Result<T, FilesError> {
        let options = TransactionOptions::new().durability(Durability::None);
        self.store.transact(options, work)
    }

    /// Runs a transaction over names and inodes, then frees inodes that have lost their last name.
    ///
    /// It is serializable: what a change has read, names on its path and the emptiness of a
    /// directory among it, is as it was when it commits.
    pub(crate) fn change<T>(
        &self,
        work: impl FnMut(&mut Change<'_>) -> Result<T, FilesError>,
    ) -> Result<T, FilesError> {
        self.change_with(TransactionOptions::new(), work)
    }

    /// The same below a directory that has no name; not waited for, as [`FileTree::run`].
    pub(crate) fn change_unnamed<T>(
        &self,
        work: impl FnMut(&mut Change<'_>) -> Result<T, FilesError>,
    ) -> Result<T, FilesError> {
        self.change_with(TransactionOptions::new().durability(Durability::None), work)
    }

    fn change_with<T>(
        &self,
        options: TransactionOptions,
        mut work: impl FnMut(&mut Change<'_>) -> Result<T, FilesError>,
    ) -> Result<T, FilesError> {
        let options = options.isolation(Isolation::Serializable);
        let done = self.store.transact(options, |transaction| {
            let mut change = Change::new(&self.tree, transaction);
            let value = work(&mut change)?;
            Ok::<_, FilesError>((value, change.freed))
        });
        let (value, freed) = done?;
        self.reclaim_now(freed);
        Ok(value)
    }
}
