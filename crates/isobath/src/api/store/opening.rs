//! Creating and opening stores.

use std::path::PathBuf;

use isobath_io::Volume;

use super::Store;
use crate::api::{catalog, reader};
use crate::checkpoint::{self, Superblock};
use crate::engine::{Engine, Runtime};
use crate::error::{Error, OpenError};
use crate::merging::Merging;
use crate::paths::StorePaths;
use crate::recovery::{self, Plan};
use crate::runtime::Urgency;
use crate::shared::{Config, uuid};
use crate::{Options, replay, trace};

impl Store {
    /// Creates a store on `paths`: files that do not exist yet or are empty, or block devices
    /// that hold no data. Several are striped, in this order.
    ///
    /// ```no_run
    /// # use isobath::{Options, Store};
    /// let store = Store::create("fruit.isobath", &Options::new())?;
    /// let striped = Store::create(["/mnt/a/s.isobath", "/mnt/b/s.isobath"], &Options::new())?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`OpenError::BadOption`], [`OpenError::ReadOnly`];
    /// [`StorageError::Volume`](crate::StorageError::Volume),
    /// [`StorageError::Memory`](crate::StorageError::Memory).
    pub fn create(paths: impl StorePaths, options: &Options) -> Result<Store, OpenError> {
        Store::create_at(&paths.store_paths(), options)
    }

    fn create_at(paths: &[PathBuf], options: &Options) -> Result<Store, OpenError> {
        options.config()?;
        if options.is_read_only() {
            return Err(OpenError::ReadOnly);
        }
        let volume = Volume::create(paths, &options.volume_options())?;
        let made = Store::create_with_log(volume.clone(), paths, options);
        if made.is_err() {
            volume.undo_creation();
        }
        made
    }

    /// Opens the store on `paths`, or creates it if nothing is there yet. Of several callers
    /// at the same time one creates it; the others open it, or find it in use.
    ///
    /// # Errors
    ///
    /// As for [`Store::open`] and [`Store::create`].
    pub fn open_or_create(paths: impl StorePaths, options: &Options) -> Result<Store, OpenError> {
        let paths = paths.store_paths();
        if options.is_read_only() {
            return Store::open(&paths, options);
        }
        match Store::create_at(&paths, options) {
            Err(error) if Error::from(error.clone()).is_already_there(&paths) => {
                Store::open(&paths, options)
            }
            other => other,
        }
    }

    fn create_with_log(
        volume: Volume,
        paths: &[PathBuf],
        options: &Options,
    ) -> Result<Store, OpenError> {
        let mut config = options.config()?;
        let Some((path, bytes)) = options.log_place() else {
            return Store::create_on(volume, paths.to_vec(), config, options);
        };
        config.log_path = checkpoint::create_log(&volume, paths, path, bytes)?;
        Store::create_on(volume, paths.to_vec(), config, options)
    }

    /// A store in memory, gone when it is closed.
    ///
    /// # Errors
    ///
    /// [`OpenError::BadOption`], [`StorageError::Memory`](crate::StorageError::Memory).
    pub fn in_memory(options: &Options) -> Result<Store, OpenError> {
        let volume = Volume::in_memory(0, options.volume_limit());
        Store::create_on_volume(volume, options)
    }

    /// Creates a store on an empty volume, for example a simulated one.
    ///
    /// # Errors
    ///
    /// As for [`Store::create`].
    pub fn create_on_volume(volume: Volume, options: &Options) -> Result<Store, OpenError> {
        if let Some(path) = &options.log_path {
            return Err(OpenError::NoSeparateLog {
                paths: Vec::new(),
                path: path.clone(),
            });
        }
        let config = options.config()?;
        Store::create_on(volume, Vec::new(), config, options)
    }

    fn create_on(
        volume: Volume,
        paths: Vec<PathBuf>,
        config: Config,
        options: &Options,
    ) -> Result<Store, OpenError> {
        let store_id = uuid();
        let (frames, policy) = (options.frames(), options.policy()?);
        let parts = recovery::create(volume, config, frames, policy, store_id)?;
        let (engine, plan) = Engine::new(parts);
        Store::created(Runtime::start(engine)?, plan, paths)
    }

    /// Opens an existing store; `paths` in the order of its creation. One that
    /// was not closed is recovered first: everything that was acknowledged is
    /// there, and nothing of a commit that was not complete. That takes a few
    /// seconds for each GiB of log. [`Options::read_only`] says how a store is
    /// opened for reading, also while a process writes it.
    ///
    /// # Errors
    ///
    /// Any [`OpenError`]; nothing was changed on the volume then.
    pub fn open(paths: impl StorePaths, options: &Options) -> Result<Store, OpenError> {
        Store::open_at(paths.store_paths(), options)
    }

    fn open_at(paths: Vec<PathBuf>, options: &Options) -> Result<Store, OpenError> {
        options.config()?;
        let volume = || Ok(Volume::open(&paths, &options.volume_options())?);
        match options.is_read_only() {
            true => reader::open(volume, &paths, options),
            false => Store::open_on(volume()?, paths, options),
        }
    }

    /// Opens the store on `volume`.
    ///
    /// # Errors
    ///
    /// As for [`Store::open`].
    pub fn open_on_volume(volume: Volume, options: &Options) -> Result<Store, OpenError> {
        Store::open_on(volume, Vec::new(), options)
    }

    pub(crate) fn open_on(
        volume: Volume,
        paths: Vec<PathBuf>,
        options: &Options,
    ) -> Result<Store, OpenError> {
        let _span = trace::span!("open");
        if options.is_read_only() {
            return reader::open(|| Ok(volume.clone()), &paths, options);
        }
        let superblock = recovery::read_superblock(&volume, &paths)?;
        Store::open_with(volume, superblock, &paths, options)
    }

    /// Opens the store whose newest superblock this is.
    pub(crate) fn open_with(
        volume: Volume,
        mut superblock: Superblock,
        paths: &[PathBuf],
        options: &Options,
    ) -> Result<Store, OpenError> {
        let mut config = options.config()?;
        let given = options.log_path.as_deref();
        checkpoint::open_log(&volume, &mut superblock, paths, given)?;
        config.sizes = superblock.sizes;
        let policy = options.policy_of(&superblock)?;
        let parts = recovery::open(volume, superblock, paths, config, options.frames(), policy)?;
        let (engine, mut plan) = Engine::new(parts);
        plan.listener = options.on_recovery.0.clone();
        let store = Store::opened(Runtime::start(engine)?, plan, paths.to_vec())?;
        let segments = store.0.runtime.engine()?.pagestore.segments();
        trace::tell!(info, "the store is open", segments = segments);
        Ok(store)
    }

    /// Whether the store on `paths` is not closed: a process has it open for writing, or has ended
    /// without closing it. The next opening for writing then recovers it.
    ///
    /// # Errors
    ///
    /// As for [`Store::open`].
    pub fn needs_recovery(paths: impl StorePaths, options: &Options) -> Result<bool, OpenError> {
        reader::needs_recovery(&paths.store_paths(), options)
    }

    /// The new store of an engine whose workers run.
    pub(crate) fn created(
        runtime: Runtime,
        _plan: Plan,
        paths: Vec<PathBuf>,
    ) -> Result<Store, OpenError> {
        let store = Store::on(runtime, paths);
        store.0.runtime.run(Urgency::Ordinary, catalog::create)?;
        store.0.runtime.engine()?.merging.end_opening();
        Ok(store)
    }

    /// The existing store of an engine whose workers run.
    pub(crate) fn opened(
        runtime: Runtime,
        plan: Plan,
        paths: Vec<PathBuf>,
    ) -> Result<Store, OpenError> {
        let read_only = runtime.config().read_only;
        if !read_only {
            let marked = runtime.engine()?.checkpoints.mark_open(plan.log_end());
            let marked = marked.map_err(OpenError::from);
            let recovered = marked.and_then(|()| replay::run(plan, &runtime));
            if let Err(error) = recovered {
                runtime.stop();
                return Err(error);
            }
        }
        let store = Store::on(runtime, paths);
        let runtime = &store.0.runtime;
        runtime.run(Urgency::Ordinary, |local| Merging::restore(local).map(drop))?;
        if !read_only {
            // Its creation may have been interrupted.
            runtime.run(Urgency::Ordinary, catalog::create)?;
            runtime.run(Urgency::Ordinary, catalog::resume_drops)?;
            runtime.run(Urgency::Ordinary, |local| {
                let engine = &local.engine;
                engine.merging.resume(&engine.transactions, local)
            })?;
            runtime.engine()?.merging.end_opening();
        }
        Ok(store)
    }
}
