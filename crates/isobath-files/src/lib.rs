//! Directory trees in an [Isobath](isobath) store.
//!
//! A [`FileTree`] holds directories, regular files and symbolic links, as a file system does:
//! inodes apart from names, so that a file may have several (hard links), permissions, owners and
//! times. It lies in one tree of a store, beside others.
//!
//! - Each operation is one transaction: a crash leaves all of it or nothing. A rename of a
//!   directory changes one name, however much is below it; a whole directory is imported, replaced
//!   and removed in one step.
//! - Contents are stored in pieces of [`PIECE_BYTES`], each with its CRC-32C, which is verified
//!   whenever the piece is read. So files may be larger than a value of the store, and are read at
//!   any offset.
//! - [`FileView`] is a state of the tree that no writer changes any more.
//!
//! ```
//! use isobath::{Options, Store};
//! use isobath_files::{Attributes, FileTree};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
//! let files = FileTree::open_or_create(&store, "files")?;
//! files.create_directory("photos", &Attributes::directory())?;
//! files.write("photos/beach.jpg", b"sand", &Attributes::file())?;
//! files.link("photos/beach.jpg", "favourite.jpg")?;
//! files.rename("photos", "holidays")?;
//!
//! let view = files.view()?;
//! assert_eq!(view.read("holidays/beach.jpg")?, b"sand");
//! assert_eq!(view.stat("favourite.jpg")?.links, 2);
//! files.remove("favourite.jpg")?;
//! assert_eq!(view.stat("favourite.jpg")?.links, 2); // as it was
//! drop(view);
//! drop(files);
//! store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! The mechanisms of paper 004 (KV-SiPC): its table of application data and keys (`kvs_map`),
//! checksums against readback errors, and directory metadata as key-value pairs with hard links and
//! renames, with the crash consistency that it leaves open. Parents and names as keys are those of
//! TableFS, which the paper follows.

mod change;
mod check;
mod content;
mod error;
mod export;
mod import;
mod layout;
#[cfg(feature = "mount")]
mod mount;
mod path;
mod reader;
mod reclaim;
mod tree;
mod unmount;
mod view;
mod writer;

pub use change::RenameMode;
pub use check::{FilesReport, MAX_PROBLEMS};
pub use error::FilesError;
pub use import::ImportOptions;
pub use layout::{
    FileKind, FileTime, MAX_FILE_BYTES, MAX_NAME_BYTES, MAX_TARGET_BYTES, PIECE_BYTES,
};
#[cfg(feature = "mount")]
pub use mount::{MountOptions, serve};
pub use reader::{FileReader, Span};
pub use tree::FileTree;
pub use unmount::{is_mounted, resolve, unmount};
pub use view::{Attributes, Entry, FileView, Stat, Walk};
pub use writer::FileWriter;

/// Counts of a copy into a tree, or out of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    /// Directories.
    pub directories: u64,
    /// Regular files, further names of the same file not counted.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names (hard links).
    pub hard_links: u64,
    /// Bytes of contents, holes included.
    pub bytes: u64,
    /// Sockets, pipes and devices that an import has left out.
    pub skipped: u64,
}

/// Receives the progress of long work, and answers whether it is to go on.
pub trait Watcher {
    /// So many more files, directories and links were done, and so many bytes of contents.
    fn advance(&self, entries: u64, bytes: u64);
    /// Whether the work is to stop, and to leave nothing of itself.
    fn cancelled(&self) -> bool;
}

/// Watches nothing.
impl Watcher for () {
    fn advance(&self, _: u64, _: u64) {}

    fn cancelled(&self) -> bool {
        false
    }
}
