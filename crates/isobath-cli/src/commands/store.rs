//! Opening the store that the command line names.

use isobath::{Options, Store, Tree};

use crate::args::{CreateArgs, StoreArgs, TreeArgs};
use crate::failure::Failure;

/// Pool for a verb that touches one key.
pub(crate) const SMALL_POOL: u64 = 64 << 20;
/// Pool for a verb that touches much.
pub(crate) const LARGE_POOL: u64 = 256 << 20;

fn options(args: &StoreArgs, pool: u64) -> Options {
    let options = Options::new().pool_bytes(args.pool.map_or(pool, |size| size.0));
    match args.workers {
        Some(workers) => options.workers(workers.get()),
        None => options,
    }
}

/// Opens for reading only.
pub(crate) fn read(args: &StoreArgs, pool: u64) -> Result<Store, Failure> {
    Ok(Store::open(
        &args.store,
        &options(args, pool).read_only(true),
    )?)
}

/// Opens for writing.
pub(crate) fn write(args: &StoreArgs, pool: u64) -> Result<Store, Failure> {
    Ok(Store::open(&args.store, &options(args, pool))?)
}

/// Opens for writing; makes the store where none of its files exists and
/// `--create` allows it.
pub(crate) fn write_or_create(
    args: &StoreArgs,
    create: &CreateArgs,
    pool: u64,
) -> Result<Store, Failure> {
    if args.store.iter().any(|p| p.exists()) {
        return write(args, pool);
    }
    if !create.create {
        let paths: Vec<_> = args.store.iter().map(|p| p.display().to_string()).collect();
        return Err(Failure::Lab(isobath_lab::LabError::NoStore {
            paths: paths.join(", "),
        }));
    }
    let limit = create.limit.map(|size| size.0);
    Ok(Store::create(
        &args.store,
        &options(args, pool).volume_limit_bytes(limit),
    )?)
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
