//! Opening the store that the command line names.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use isobath::{Options, Store, Tree};

use crate::args::{CreateArgs, StoreArgs, TreeArgs};
use crate::failure::Failure;
use crate::output::size;

/// Pool for a verb that touches one key.
pub(crate) const SMALL_POOL: u64 = 64 << 20;
/// Pool for a verb that touches much.
pub(crate) const LARGE_POOL: u64 = 256 << 20;

fn options(args: &StoreArgs, pool: u64) -> Options {
    let mut options = Options::new().pool_bytes(args.pool.map_or(pool, |size| size.0));
    if let Some(path) = &args.log_path {
        options = options.log_path(path);
    }
    match args.workers {
        Some(workers) => options.workers(workers.get()),
        None => options,
    }
}

/// Opens for reading only.
pub(crate) fn read(args: &StoreArgs, pool: u64) -> Result<Store, Failure> {
    let store = Store::open(&args.store, &options(args, pool).read_only(true))?;
    refuse_as_stdout(&store)?;
    Ok(store)
}

/// Refuses a store that standard output goes to: what is printed would end up in it.
fn refuse_as_stdout(store: &Store) -> Result<(), Failure> {
    let stdout = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    match stdout.and_then(|file| file.metadata()) {
        Ok(found) if store.holds(&found) => Err(Failure::Usage(
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
    let last = AtomicU64::new(0);
    let options = options.on_recovery(move |done, total| {
        // A line for each tenth.
        let tenth = done * 10 / total.max(1);
        if last.fetch_max(tenth, Ordering::Relaxed) < tenth {
            eprintln!("the store was not closed; recovering: {} of 10", tenth);
        }
    });
    let store = Store::open(&args.store, &options)?;
    refuse_as_stdout(&store)?;
    let stats = store.stats();
    if stats.recovered_log_bytes > 0 {
        let seconds = stats.recovery_ns as f64 / 1e9;
        let log = size(stats.recovered_log_bytes);
        eprintln!("recovered from {log} of log in {seconds:.1} s");
    }
    Ok(store)
}

/// Opens for writing; makes the store where none of its files exists and
/// `--create` allows it.
pub(crate) fn write_or_create(
    args: &StoreArgs,
    create: &CreateArgs,
    pool: u64,
) -> Result<Store, Failure> {
    let mut options = options(args, pool);
    if let Some(limit) = create.limit {
        options = options.volume_limit_bytes(Some(limit.0));
    }
    if args.store.iter().any(|p| p.exists()) {
        return write_with(options, args);
    }
    if !create.create {
        let paths: Vec<_> = args.store.iter().map(|p| p.display().to_string()).collect();
        return Err(Failure::Lab(isobath_lab::LabError::NoStore {
            paths: paths.join(", "),
        }));
    }
    Ok(Store::create(&args.store, &options)?)
}

/// The tree that the command line names.
pub(crate) fn tree(store: &Store, args: &TreeArgs) -> Result<Tree, Failure> {
    Ok(store.tree(&args.tree)?)
}

/// The tree that the command line names, made where it is missing.
pub(crate) fn tree_or_new(store: &Store, args: &TreeArgs) -> Result<Tree, Failure> {
    Ok(store.open_or_create_tree(&args.tree)?)
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
