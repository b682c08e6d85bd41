//! Facts about a store that are read without opening it.

use std::path::PathBuf;

use isobath_io::Volume;

use crate::error::OpenError;
use crate::recovery;
use crate::{Options, Store, StorePaths};

/// Whether a store is in use, and how it was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreState {
    /// It was closed.
    Closed,
    /// The process that had it open for writing has ended without closing it. The next one that
    /// opens it for writing recovers it.
    NotClosed,
    /// A process has it open for writing.
    InUse {
        /// Which one, as far as the system says.
        pid: Option<u32>,
    },
}

/// A store's properties as its files tell them; see [`Store::info`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreInfo {
    /// Whether it is in use, and how it was left.
    pub state: StoreState,
    /// Bytes that it may grow to, in whole segments; `None` without a limit.
    pub limit_bytes: Option<u64>,
}

impl Store {
    /// Reads the properties of the store on `paths` without opening it: one read of its first
    /// bytes, also while a writer has it open.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("a.iso");
    /// use isobath::{Options, Store, StoreState};
    ///
    /// let options = Options::new().pool_bytes(16 << 20);
    /// let store = Store::create(&path, &options)?;
    /// assert!(matches!(Store::info(&path, &options)?.state, StoreState::InUse { .. }));
    /// store.close()?;
    /// assert_eq!(Store::info(&path, &options)?.state, StoreState::Closed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Store::open`], as far as that is found out at its beginning.
    pub fn info(paths: impl StorePaths, options: &Options) -> Result<StoreInfo, OpenError> {
        look(&paths.store_paths(), options)
    }
}

fn look(paths: &[PathBuf], options: &Options) -> Result<StoreInfo, OpenError> {
    let options = options.clone().read_only(true);
    let volume = Volume::open(paths, &options.volume_options())?;
    let superblock = recovery::read_superblock(&volume, paths)?;
    let limit = superblock.limit_segments;
    Ok(StoreInfo {
        state: match (volume.has_writer(), superblock.clean) {
            (true, _) => StoreState::InUse {
                pid: volume.writer_pid(),
            },
            (false, true) => StoreState::Closed,
            (false, false) => StoreState::NotClosed,
        },
        limit_bytes: (limit > 0).then(|| superblock.sizes.start_of(limit)),
    })
}
