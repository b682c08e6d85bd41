//! Backups of a store, and stores made of them; how they are made is in [`crate::backup`].

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use isobath_io::Volume;

use crate::backup::file::BackupFile;
use crate::backup::{self, restore};
use crate::checkpoint::SUPERBLOCK_OFFSETS;
use crate::error::{BackupError, OpenError, RestoreError};
use crate::page::PAGE_SIZE;
use crate::{BackupOptions, BackupReport, Options, RestoreReport, Store, Watch};

impl Store {
    /// Writes a full backup of the store to the file `to`, which must not exist, and reads it back:
    /// [`Store::backup`] with its defaults.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let at = |name: &str| directory.path().join(name);
    /// # use isobath::{Options, Store};
    /// # let store = Store::create(at("a.iso"), &Options::new().pool_bytes(16 << 20))?;
    /// let report = store.backup_to(at("monday.backup"))?;
    /// assert!(report.file_bytes > 0 && at("monday.backup").exists());
    /// # store.close()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Store::backup`].
    pub fn backup_to(&self, to: impl AsRef<Path>) -> Result<BackupReport, BackupError> {
        let go_on = &mut |_: &'static str, _, _| ControlFlow::Continue(());
        self.backup(to.as_ref(), &BackupOptions::new(), go_on)
    }

    /// Writes a backup of the whole store to the file `to`, while the store is in use: a state in
    /// which everything is that was acknowledged before the call, and of each transaction all or
    /// nothing.
    ///
    /// Copies the pages as they are on the volume, then those that changed during that, and in the
    /// end the little log that brings them to one point. Writers go on; only if they change pages
    /// faster than these can be copied, the last round slows them, as a full log does. Room for 24
    /// bytes per page is needed beside `to`. Blocks the calling thread; a task should leave it to
    /// an ordinary one, because writing the file blocks its worker.
    ///
    /// The file gets its name when it is complete and on the drive; until then, `.partial` is
    /// behind it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let at = |name: &str| directory.path().join(name);
    /// use std::ops::ControlFlow;
    /// use isobath::{BackupOptions, Options, Store};
    ///
    /// let options = Options::new().pool_bytes(16 << 20);
    /// let store = Store::create(&[at("a.iso")], &options)?;
    /// let tree = store.create_tree("t")?;
    /// tree.insert(b"one", b"1")?;
    /// let mut watch = |_: &str, _, _| ControlFlow::Continue(());
    /// store.backup(&at("monday"), &BackupOptions::new(), &mut watch)?;
    /// tree.insert(b"two", b"2")?;
    /// store.backup(&at("tuesday"), &BackupOptions::new().since(at("monday")), &mut watch)?;
    /// store.close()?;
    ///
    /// Store::restore(&[at("monday"), at("tuesday")], &[at("b.iso")], &options, &mut watch)?;
    /// let store = Store::open(&[at("b.iso")], &options)?;
    /// assert!(store.tree("t")?.contains(b"two")?);
    /// store.close()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BackupError::FileExists`], [`BackupError::OutputIsStore`], [`BackupError::File`] (as where
    /// its file system is full), [`BackupError::BackupNeedsLog`], [`BackupError::BackupRunning`];
    /// with a base [`BackupError::BadBackup`] and [`BackupError::BackupChain`];
    /// [`BackupError::Storage`] if the store cannot be read, is poisoned or closed;
    /// [`BackupError::BadOption`], [`BackupError::Interrupted`]. There is no file then.
    pub fn backup(
        &self,
        to: &Path,
        options: &BackupOptions,
        watch: Watch<'_>,
    ) -> Result<BackupReport, BackupError> {
        backup::take(self.runtime(), to, options, watch)
    }

    /// Makes a store on `paths`, files that do not exist yet or block devices that hold no data,
    /// from a full backup and the incremental ones that follow it, in order. Everything in them is
    /// verified. The restored store is a store of its own: backups of it do not add to those of the
    /// first one.
    ///
    /// `options` as for [`Store::create`]; the sizes of segments and log are those of the backup,
    /// and the log lies on the store's own volume, wherever that of the first store did. Takes 8
    /// bytes of memory per page beside the pool.
    ///
    /// # Errors
    ///
    /// [`RestoreError::BadBackup`], [`RestoreError::BackupChain`], [`RestoreError::File`],
    /// [`RestoreError::Interrupted`], and in [`RestoreError::Open`] what [`Store::create`] and
    /// [`Store::open`] fail with. Files that were made are removed, and on block devices is nothing
    /// that opens.
    pub fn restore<B: AsRef<Path>, P: AsRef<Path>>(
        backups: &[B],
        paths: &[P],
        options: &Options,
        watch: Watch<'_>,
    ) -> Result<RestoreReport, RestoreError> {
        let backups: Vec<&Path> = backups.iter().map(AsRef::as_ref).collect();
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.as_ref().to_owned()).collect();
        restore_at(&backups, paths, options, watch)
    }

    /// As [`Store::restore`], on an empty volume.
    ///
    /// # Errors
    ///
    /// As for [`Store::restore`]; the volume is of no further use then.
    pub fn restore_on_volume<B: AsRef<Path>>(
        backups: &[B],
        volume: Volume,
        options: &Options,
        watch: Watch<'_>,
    ) -> Result<RestoreReport, RestoreError> {
        let backups: Vec<&Path> = backups.iter().map(AsRef::as_ref).collect();
        checked(options).and_then(|options| {
            let chain = restore::open_chain(&backups)?;
            restore_chain(&chain, volume, Vec::new(), &options, watch)
        })
    }
}

fn restore_at(
    backups: &[&Path],
    paths: Vec<PathBuf>,
    options: &Options,
    watch: Watch<'_>,
) -> Result<RestoreReport, RestoreError> {
    let options = &checked(options)?;
    let chain = restore::open_chain(backups)?;
    let volume = Volume::create(&paths, &options.volume_options())?;
    let made = restore_chain(&chain, volume.clone(), paths, options, watch);
    if made.is_err() {
        volume.undo_creation();
    }
    made
}

/// The options that a restored store is opened with. It has its log on its own volume.
fn checked(options: &Options) -> Result<Options, RestoreError> {
    options.config()?;
    match options.is_read_only() {
        true => Err(OpenError::ReadOnly.into()),
        false => Ok(options.clone().with_log_on_volume()),
    }
}

fn restore_chain(
    chain: &[BackupFile],
    volume: Volume,
    paths: Vec<PathBuf>,
    options: &Options,
    watch: Watch<'_>,
) -> Result<RestoreReport, RestoreError> {
    let report = restore::build(chain, &volume, watch)?;
    // Recovery reads the log and every page that it concerns; a store that cannot be opened is
    // none.
    let opened = Store::open_on(volume.clone(), paths, options).and_then(Store::close_opened);
    if let Err(error) = opened {
        // On a volume of the caller's it would stay.
        for at in SUPERBLOCK_OFFSETS {
            // The error that led here matters more.
            let _ = volume.write_at(at, &[0; PAGE_SIZE]);
        }
        return Err(error.into());
    }
    Ok(report)
}
