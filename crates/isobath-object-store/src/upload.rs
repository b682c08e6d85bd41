//! Uploads in parts: parts are contents of an id that no path has yet. Completing gives the id to a
//! path.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use chrono::Utc;
use isobath::{Durability, Error, Isolation, Transaction, TransactionOptions};
use object_store::path::Path;
use object_store::{Attributes, PutPayload, PutResult, Result};

use crate::error::{Failure, generic};
use crate::id::Id;
use crate::record::{ObjectRecord, Upload};
use crate::trees::Trees;
use crate::write::put_result;

/// Uploads that one transaction removes.
const REMOVED_AT_ONCE: usize = 64;

/// Uploads of this process that can still go on.
static LIVE: LazyLock<Mutex<HashSet<Id>>> = LazyLock::new(Mutex::default);

fn live() -> MutexGuard<'static, HashSet<Id>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The id of an upload that no opening removes as long as this is there.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) id: Id,
}

impl Live {
    pub(crate) fn new() -> Live {
        let id = Id::new();
        live().insert(id);
        Live { id }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        live().remove(&self.id);
    }
}

/// Commits wait for no flush: a crash loses them in reverse order, and the one that completes the
/// upload comes after them. Serializable, so that no part arrives in an upload that has ended.
fn options() -> TransactionOptions {
    TransactionOptions::new()
        .isolation(Isolation::Serializable)
        .durability(Durability::None)
}

fn ended(id: Id) -> object_store::Error {
    generic(format!(
        "the upload {id} was completed or aborted, or never begun"
    ))
}

fn under_way(trees: &Trees, transaction: &Transaction, id: Id) -> Result<Upload, Failure> {
    let upload = transaction.get(&trees.uploads, id.key())?;
    let upload = upload.ok_or_else(|| ended(id))?;
    Ok(Upload::decode(&upload)?)
}

/// Begins an upload; one that does not last is removed by a later opening, if it is not [`Live`].
pub(crate) async fn begin(
    trees: &Arc<Trees>,
    location: &Path,
    id: Id,
    attributes: Attributes,
    lasts: bool,
) -> Result<()> {
    crate::write::check_path(location)?;
    crate::write::check_attributes(&attributes)?;
    let upload = Upload { lasts, attributes };
    let mut options = options();
    if lasts {
        // Its name may be written down elsewhere.
        options = options.durability(Durability::Synced);
    }
    let of = location.clone();
    let begun = trees.transact(options, move |trees, transaction| {
        // A path that is too long is refused before anything is uploaded.
        trees.record(transaction, &of)?;
        Ok(transaction.insert(&trees.uploads, id.key(), upload.encode())?)
    });
    begun.await.map_err(|error: Failure| error.at(location))
}

/// Writes a part.
pub(crate) async fn put_part(
    trees: Arc<Trees>,
    location: Path,
    id: Id,
    part: u32,
    payload: PutPayload,
    lasts: bool,
) -> Result<()> {
    let mut options = options();
    if lasts {
        options = options.durability(Durability::Synced);
    }
    let put = trees.transact(options, move |trees, transaction| {
        under_way(trees, transaction, id)?;
        let mut writer = transaction.writer(&trees.contents, id.part_key(part))?;
        for bytes in &payload {
            writer.append(bytes)?;
        }
        Ok(writer.finish()?)
    });
    put.await.map_err(|error: Failure| error.at(&location))
}

/// Makes the object of `count` parts.
pub(crate) async fn complete(
    trees: &Arc<Trees>,
    location: &Path,
    id: Id,
    count: usize,
) -> Result<PutResult> {
    let to = location.clone();
    let options = options().durability(Durability::Synced);
    let completed = trees.transact(options, move |trees, transaction| {
        let upload = under_way(trees, transaction, id)?;
        let record = ObjectRecord {
            id,
            modified: Utc::now(),
            parts: lengths(trees, transaction, id, count)?,
            attributes: upload.attributes,
        };
        let old = trees.record(transaction, &to)?;
        trees.replace(transaction, &to, &record, old.as_ref())?;
        transaction.remove(&trees.uploads, id.key())?;
        Ok(())
    });
    completed
        .await
        .map_err(|error: Failure| error.at(location))?;
    Ok(put_result(id))
}

/// The bytes of each part.
fn lengths(
    trees: &Trees,
    transaction: &Transaction,
    id: Id,
    count: usize,
) -> Result<Vec<u64>, Failure> {
    let mut lengths = Vec::new();
    for part in transaction.keys(&trees.contents, isobath::prefix_range(id.key()))? {
        let (key, length) = part?;
        let expected = lengths.len();
        if expected == count {
            return Err(generic(format!("the upload {id} has more than {count} parts")).into());
        }
        if key != id.part_key(expected as u32) {
            return Err(missing(id, expected));
        }
        lengths.push(length);
    }
    match lengths.len() {
        found if found == count => Ok(lengths),
        found => Err(missing(id, found)),
    }
}

fn missing(id: Id, part: usize) -> Failure {
    generic(format!("part {part} of the upload {id} is missing")).into()
}

/// Removes an upload with all of its parts; nothing if it has ended. This begins with the call.
pub(crate) fn abort(
    trees: &Arc<Trees>,
    id: Id,
    durability: Durability,
) -> impl Future<Output = Result<(), Failure>> + Send + 'static + use<> {
    trees.transact(
        options().durability(durability),
        move |trees, transaction| Ok(remove(trees, transaction, id)?),
    )
}

fn remove(trees: &Trees, transaction: &mut Transaction, id: Id) -> Result<(), Error> {
    if transaction.remove(&trees.uploads, id.key())? {
        trees.remove_parts(transaction, id)?;
    }
    Ok(())
}

/// Removes the uploads that cannot go on: those of processes that ended, and those of this one
/// whose handle is gone.
pub(crate) fn remove_left(trees: &Trees) -> Result<(), Error> {
    let mut left = Vec::new();
    for upload in trees.uploads.iter() {
        let (key, value) = upload?;
        let id = Id::of_key(&key)?;
        if !Upload::decode(&value)?.lasts && !live().contains(&id) {
            left.push(id);
        }
    }
    for ids in left.chunks(REMOVED_AT_ONCE) {
        let removed = trees.store.transact(options(), |transaction| {
            ids.iter()
                .try_for_each(|id| remove(trees, transaction, *id))
        });
        match removed {
            // An opening for writing removes them.
            Err(Error::ReadOnly) => return Ok(()),
            other => other?,
        }
    }
    Ok(())
}
