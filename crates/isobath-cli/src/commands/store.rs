//! Opening the store that the command line names.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isobath::{DirectMode, Error, Options, Store, StoreInfo, Tree};
use isobath_lab::{LabError, VolumeError};

use crate::args::{CreateArgs, NewTreeArgs, Size, StoreArgs, TreeArgs};
use crate::failure::Failure;
use crate::interrupt::{self, InOrder};
use crate::output::size;

/// Pool for a verb that touches one key.
pub(crate) const SMALL_POOL: u64 = 64 << 20;
/// Pool for a verb that touches much.
pub(crate) const LARGE_POOL: u64 = 256 << 20;
/// The tree of verbs that name none.
pub(crate) const DEFAULT_TREE: &str = "main";
/// Pause between two attempts to open a store that another process has open.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Trees whose names are as alike as this, of 1, are suggested for each other.
const ALIKE: f64 = 0.7;

/// Options with the pool that the command line asks for, or with one of `most` bytes, less if there
/// is little memory.
pub(crate) fn with_pool(given: Option<Size>, most: u64) -> Options {
    match given {
        Some(size) => Options::new().pool_bytes(size.0),
        None => Options::new().pool_bytes_at_most(most),
    }
}

fn options(args: &StoreArgs, pool: u64) -> Options {
    let mut options = with_pool(args.pool, pool);
    if let Some(path) = &args.log_path {
        options = options.log_path(path);
    }
    if args.buffered {
        options = options.direct(DirectMode::Off);
    }
    match args.workers {
        Some(workers) => options.workers(workers.get()),
        None => options,
    }
}

/// After this much time a log that is replayed or recovered from says how far that is, with a line
/// for each tenth.
const QUIET: Duration = Duration::from_secs(1);

/// The options to read the store with.
pub(crate) fn reading(args: &StoreArgs, pool: u64) -> Options {
    options(args, pool).read_only(true)
}

/// Tells how far a log is, if that takes a while.
fn telling(options: Options, doing: &'static str) -> Options {
    let began = Instant::now();
    let last = AtomicU64::new(0);
    options.on_recovery(move |done, total| {
        let tenth = done * 10 / total.max(1);
        if began.elapsed() > QUIET && last.fetch_max(tenth, Ordering::Relaxed) < tenth {
            eprintln!("{doing}: {tenth}0%");
        }
    })
}

/// Opens for reading only.
pub(crate) fn read(args: &StoreArgs, pool: u64) -> Result<Store, Failure> {
    let options = telling(options(args, pool), "reading what is only in the log");
    open(args, &options.read_only(true))
}

/// Opens the store, and waits for it as long as the command line says where another process has it
/// open. Ctrl-C ends the wait.
fn open(args: &StoreArgs, options: &Options) -> Result<Store, Failure> {
    let store = waiting(args.wait, || Store::open(&args.store, options))?;
    refuse_as_stdout(&store)?;
    Ok(store)
}

/// Repeats `attempt` while another process has the store open, for as long as `wait` says.
pub(crate) fn waiting<T, E: Into<Error>>(
    wait: Option<Duration>,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, Failure> {
    let began = Instant::now();
    let wait = wait.unwrap_or_default();
    loop {
        match attempt().map_err(Into::into) {
            Err(error) if is_locked(&error) && began.elapsed() < wait => {
                interrupt::check()?;
                thread::sleep(LOCK_PAUSE.min(wait.saturating_sub(began.elapsed())));
            }
            other => return Ok(other?),
        }
    }
}

fn is_locked(error: &Error) -> bool {
    matches!(error, Error::Volume(error) if matches!(**error, VolumeError::Locked { .. }))
}

/// Whether the files hold no store, as after a creation that was cut off.
fn is_no_store(failure: &Failure) -> bool {
    match failure {
        Failure::Lab(LabError::Engine(Error::NotAStore { .. })) => true,
        Failure::Lab(LabError::Engine(Error::Volume(error))) => {
            matches!(
                **error,
                VolumeError::Foreign { .. } | VolumeError::Truncated { .. }
            )
        }
        _ => false,
    }
}

/// A store's properties as its files tell them.
pub(crate) fn info(args: &StoreArgs) -> Result<StoreInfo, Failure> {
    Ok(Store::info(&args.store, &options(args, SMALL_POOL))?)
}

/// Whether the store is not closed.
pub(crate) fn needs_recovery(args: &StoreArgs) -> Result<bool, Failure> {
    Ok(Store::needs_recovery(
        &args.store,
        &options(args, SMALL_POOL),
    )?)
}

/// Refuses a store that standard output goes to: what is printed would end up in it.
fn refuse_as_stdout(store: &Store) -> Result<(), Failure> {
    refuse_stdout(|stdout| store.holds(stdout))
}

/// Refuses standard output that is a file of a store, as `is_of_store` says.
fn refuse_stdout(is_of_store: impl FnOnce(&fs::Metadata) -> bool) -> Result<(), Failure> {
    let stdout = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    match stdout.and_then(|file| file.metadata()) {
        Ok(found) if is_of_store(&found) => Err(Failure::Usage(
            "standard output goes to a file of the store".into(),
        )),
        // A closed one takes nothing.
        _ => Ok(()),
    }
}

/// Opens for writing.
pub(crate) fn write(args: &StoreArgs, pool: u64) -> Result<Store, Failure> {
    write_with(options(args, pool), args)
}

fn write_with(options: Options, args: &StoreArgs) -> Result<Store, Failure> {
    let options = telling(options, "the store was not closed; recovering");
    let store = open(args, &options)?;
    let stats = store.stats();
    if stats.recovered_log_bytes > 0 {
        let seconds = stats.recovery_ns as f64 / 1e9;
        let log = size(stats.recovered_log_bytes);
        eprintln!("recovered from {log} of log in {seconds:.1} s");
    }
    Ok(store)
}

/// A store that is open for writing, and what was made for the work in it. As long as it is there,
/// Ctrl-C asks the work to stop.
pub(crate) struct Target {
    pub(crate) store: Store,
    /// Whether this command has made the store.
    pub(crate) is_new: bool,
    /// The tree that this command has made in a store that was there.
    new_tree: Option<String>,
    _in_order: InOrder,
}

/// Says that a verb stores what it has together at its end, or nothing: the files of a store that
/// it makes go with a second Ctrl-C.
pub(crate) fn remove_unfinished(args: &StoreArgs, create: &CreateArgs) {
    if !create.create || args.store.iter().any(|path| is_there(path)) {
        return;
    }
    let mut new: Vec<_> = args.store.iter().chain(&args.log_path).cloned().collect();
    new.retain(|path| !is_there(path));
    interrupt::remove_unfinished(&new);
}

/// Opens for writing; makes the store if none of its files exists and
/// `--create` allows it.
pub(crate) fn write_or_create(
    args: &StoreArgs,
    create: &CreateArgs,
    pool: u64,
) -> Result<Target, Failure> {
    write_or_create_for(args, create, pool, 0)
}

/// The same, where so many bytes will be stored at once.
pub(crate) fn write_or_create_for(
    args: &StoreArgs,
    create: &CreateArgs,
    pool: u64,
    bytes: u64,
) -> Result<Target, Failure> {
    let mut options = options(args, pool).expected_bytes(bytes);
    if let Some(limit) = create.limit {
        options = options.volume_limit_bytes(Some(limit.0));
    }
    let target = |store, is_new, in_order| Target {
        store,
        is_new,
        new_tree: None,
        _in_order: in_order,
    };
    let exists = match create.create {
        true => args.store.iter().any(|path| is_there(path)),
        false => args.store.iter().any(|path| path.exists()),
    };
    if exists {
        let found = write_with(options.clone(), args);
        if create.create && found.as_ref().is_err_and(is_no_store) {
            not_stdout(&args.store)?;
            // It goes over files that are empty or that a creation left unfinished, and no others.
            if let Ok(store) = Store::create(&args.store, &options) {
                return Ok(target(store, true, InOrder::begin()?));
            }
        }
        // What is recovered by half is recovered again.
        return Ok(target(found?, false, InOrder::begin()?));
    }
    if !create.create {
        return Err(no_store(args).into());
    }
    not_stdout(&args.store)?;
    let in_order = InOrder::begin()?;
    let store = Store::create(&args.store, &options)?;
    Ok(target(store, true, in_order))
}

/// Whether something is at `path` that is no empty file, of which a store may be made.
fn is_there(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() || found.len() > 0)
}

/// Refuses paths of which one is what standard output goes to, as an empty file may be: what is
/// printed would end up in it.
pub(crate) fn not_stdout(paths: &[PathBuf]) -> Result<(), Failure> {
    refuse_stdout(|stdout| {
        let is_stdout =
            |found: fs::Metadata| (found.dev(), found.ino()) == (stdout.dev(), stdout.ino());
        paths
            .iter()
            .any(|path| fs::metadata(path).is_ok_and(is_stdout))
    })
}

fn no_store(args: &StoreArgs) -> LabError {
    for path in &args.store {
        let why = VolumeError::missing(path);
        if !matches!(why, VolumeError::NotFound { .. }) {
            return LabError::Volume(why);
        }
    }
    let paths: Vec<_> = args.store.iter().map(|p| p.display().to_string()).collect();
    LabError::NoStore {
        paths: paths.join(", "),
    }
}

impl Target {
    /// Does `work` and closes the store. If it fails before anything was stored, what this command
    /// has made for it is removed: the new tree, the new store.
    pub(crate) fn finish<T>(
        mut self,
        work: impl FnOnce(&mut Target) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let done = work(&mut self);
        if done.is_ok() {
            self.store.close()?;
            return done;
        }
        if self.is_new && self.holds_nothing() {
            // The error that led here matters more.
            let _ = self.store.undo_creation();
            return done;
        }
        if let Some(name) = self.new_tree.as_deref().filter(|name| self.is_empty(name)) {
            // The error that led here matters more.
            let _ = self.store.drop_tree(name);
        }
        // What was stored before stays; closing makes it last. The first failure matters more than
        // one of closing.
        let _ = self.store.close();
        done
    }

    /// Whether no tree has a record. What cannot be read may be one.
    fn holds_nothing(&self) -> bool {
        let trees = self.store.trees();
        trees.is_ok_and(|trees| trees.iter().all(|tree| self.is_empty(&tree.name)))
    }

    fn is_empty(&self, tree: &str) -> bool {
        let first = self.store.tree(tree).and_then(|tree| tree.first());
        matches!(first, Ok(None) | Err(Error::NoSuchTree { .. }))
    }

    /// The tree that the command line names; made in a new store, where it is the default one, and
    /// where `--create-tree` says so. Any other name is a slip of the keyboard.
    pub(crate) fn tree(&mut self, args: &TreeArgs, new: &NewTreeArgs) -> Result<Tree, Failure> {
        match self.store.tree(&args.tree) {
            Err(Error::NoSuchTree { .. }) => {}
            other => return Ok(other?),
        }
        if !(self.is_new || new.create_tree || args.tree == DEFAULT_TREE) {
            return no_tree(&self.store, &args.tree, true);
        }
        let tree = self.store.open_or_create_tree(&args.tree)?;
        self.new_tree = Some(args.tree.clone());
        Ok(tree)
    }
}

/// The error that there is no tree `name`, with the tree of the most similar name.
fn no_tree<T>(store: &Store, name: &str, creates: bool) -> Result<T, Failure> {
    let mut best = None;
    for tree in store.trees()? {
        let likeness = strsim::jaro(&tree.name, name);
        if likeness > best.as_ref().map_or(ALIKE, |(least, _)| *least) {
            best = Some((likeness, tree.name));
        }
    }
    Err(Failure::NoTree {
        name: name.to_owned(),
        alike: best.map(|(_, name)| name),
        creates,
    })
}

/// The tree that the command line names.
pub(crate) fn tree(store: &Store, args: &TreeArgs) -> Result<Tree, Failure> {
    match store.tree(&args.tree) {
        Err(Error::NoSuchTree { name }) => no_tree(store, &name, false),
        other => Ok(other?),
    }
}

/// A key given as text or in hexadecimal; one that is too long is refused
/// before any store is made for it.
pub(crate) fn key(text: &str, hex: bool) -> Result<Vec<u8>, Failure> {
    let key = bytes(text, hex)?;
    if key.len() > isobath::MAX_KEY_BYTES {
        return Err(isobath::Error::KeyTooLong {
            length: key.len(),
            limit: isobath::MAX_KEY_BYTES,
        }
        .into());
    }
    Ok(key)
}

/// Bytes of a key or value given as text or in hexadecimal.
pub(crate) fn bytes(text: &str, hex: bool) -> Result<Vec<u8>, Failure> {
    if hex {
        isobath_lab::unhex(text).map_err(|e| Failure::Usage(format!("`{text}`: {e}")))
    } else {
        Ok(text.as_bytes().to_vec())
    }
}
