//! Putting, copying, renaming and deleting objects, each in one transaction.

use std::sync::Arc;

use chrono::Utc;
use isobath::{Error, Transaction, TransactionOptions};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, PutMode, PutOptions, PutPayload, PutResult, RenameTargetMode, Result,
    UpdateVersion,
};

use crate::error::{Failure, exists, generic, not_found};
use crate::id::Id;
use crate::record::{self, ObjectRecord};
use crate::trees::Trees;

/// Bytes of a part of an object that is put as a whole, at most: values of the engine are limited.
const PART_BYTES: usize = 256 << 20;
/// Bytes that a copy has in memory.
const COPIED_AT_ONCE: usize = 1 << 20;

/// Refuses attributes of a kind that this version does not know.
pub(crate) fn check_attributes(attributes: &Attributes) -> Result<()> {
    match record::are_known(attributes) {
        true => Ok(()),
        false => Err(object_store::Error::NotSupported {
            source: "an attribute is of a kind that Isobath does not store".into(),
        }),
    }
}

/// Refuses a path that parsing its text would not give back, such as one with an empty segment:
/// a listing could not name it.
pub(crate) fn check_path(location: &Path) -> Result<()> {
    let text = location.as_ref();
    match Path::parse(text) {
        Ok(parsed) if parsed.as_ref() == text => Ok(()),
        Ok(_) => Err(object_store::path::Error::EmptySegment { path: text.into() }.into()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn put_result(id: Id) -> PutResult {
    PutResult {
        e_tag: Some(id.e_tag()),
        version: None,
        extensions: object_store::Extensions::default(),
    }
}

/// Puts an object, if `options` allow it.
pub(crate) async fn put(
    trees: &Arc<Trees>,
    location: &Path,
    payload: PutPayload,
    options: PutOptions,
) -> Result<PutResult> {
    check_path(location)?;
    check_attributes(&options.attributes)?;
    let to = location.clone();
    let put = trees.transact(TransactionOptions::new(), move |trees, transaction| {
        let old = trees.record(transaction, &to)?;
        check_mode(&options.mode, &to, old.as_ref())?;
        let id = Id::new();
        let record = ObjectRecord {
            id,
            modified: Utc::now(),
            parts: write(trees, transaction, id, &payload)?,
            attributes: options.attributes.clone(),
        };
        trees.replace(transaction, &to, &record, old.as_ref())?;
        Ok(id)
    });
    let id = put.await.map_err(|error| error.at(location))?;
    Ok(put_result(id))
}

fn check_mode(mode: &PutMode, location: &Path, old: Option<&ObjectRecord>) -> Result<()> {
    match (mode, old) {
        (PutMode::Overwrite, _) | (PutMode::Create, None) => Ok(()),
        (PutMode::Create, Some(_)) => Err(exists(location)),
        (PutMode::Update(version), old) => check_version(version, location, old),
    }
}

fn check_version(
    version: &UpdateVersion,
    location: &Path,
    old: Option<&ObjectRecord>,
) -> Result<()> {
    let Some(expected) = &version.e_tag else {
        return Err(generic("an update needs the object's e_tag".to_owned()));
    };
    let found = old.map(|old| old.id.e_tag());
    let sentence = match &found {
        Some(found) if found == expected => return Ok(()),
        Some(found) => format!("the object has the e_tag {found}, not {expected}"),
        None => "there is no object".to_owned(),
    };
    Err(object_store::Error::Precondition {
        path: location.to_string(),
        source: sentence.into(),
    })
}

/// Writes contents; the bytes of each part.
fn write(
    trees: &Trees,
    transaction: &mut Transaction,
    id: Id,
    payload: &PutPayload,
) -> Result<Vec<u64>, Error> {
    // Slices of the payload, by the part that they belong to.
    let mut parts: Vec<(u64, Vec<&[u8]>)> = Vec::new();
    for slice in payload.iter().flat_map(|bytes| bytes.chunks(PART_BYTES)) {
        let length = slice.len() as u64;
        match parts.last_mut() {
            Some((bytes, slices)) if *bytes + length <= PART_BYTES as u64 => {
                *bytes += length;
                slices.push(slice);
            }
            _ => parts.push((length, vec![slice])),
        }
    }
    for (part, (_, slices)) in parts.iter().enumerate() {
        let mut writer = transaction.writer(&trees.contents, id.part_key(part as u32))?;
        for slice in slices {
            writer.append(slice)?;
        }
        writer.finish()?;
    }
    Ok(parts.into_iter().map(|(bytes, _)| bytes).collect())
}

/// Copies an object.
pub(crate) async fn copy(trees: &Arc<Trees>, from: &Path, to: &Path, mode: CopyMode) -> Result<()> {
    check_path(to)?;
    let (source, target) = (from.clone(), to.clone());
    let copied = trees.transact(TransactionOptions::new(), move |trees, transaction| {
        let record = trees.record(transaction, &source)?;
        let record = record.ok_or_else(|| not_found(&source))?;
        let old = trees.record(transaction, &target)?;
        if mode == CopyMode::Create && old.is_some() {
            return Err(exists(&target).into());
        }
        let copy = ObjectRecord {
            id: Id::new(),
            modified: Utc::now(),
            ..record.clone()
        };
        for part in 0..record.parts.len() as u32 {
            copy_part(trees, transaction, &record, copy.id, part)?;
        }
        Ok(trees.replace(transaction, &target, &copy, old.as_ref())?)
    });
    copied.await.map_err(|error: Failure| error.at(to))
}

fn copy_part(
    trees: &Trees,
    transaction: &mut Transaction,
    record: &ObjectRecord,
    id: Id,
    part: u32,
) -> Result<(), Error> {
    let source = transaction.reader(&trees.contents, record.id.part_key(part))?;
    let source = source.ok_or(Error::ValueReplaced)?;
    let mut writer = transaction.writer(&trees.contents, id.part_key(part))?;
    // Bound: each round appends bytes, or is the last.
    loop {
        let bytes = source.read_at(writer.len(), COPIED_AT_ONCE)?;
        if bytes.is_empty() {
            return writer.finish();
        }
        writer.append(&bytes)?;
    }
}

/// Gives an object another path; its contents stay where they are.
pub(crate) async fn rename(
    trees: &Arc<Trees>,
    from: &Path,
    to: &Path,
    mode: RenameTargetMode,
) -> Result<()> {
    check_path(to)?;
    let (source, target) = (from.clone(), to.clone());
    let renamed = trees.transact(TransactionOptions::new(), move |trees, transaction| {
        let record = trees.record(transaction, &source)?;
        let record = record.ok_or_else(|| not_found(&source))?;
        let old = trees.record(transaction, &target)?;
        if mode == RenameTargetMode::Create && old.is_some() {
            return Err(exists(&target).into());
        }
        if source == target {
            return Ok(());
        }
        let record = ObjectRecord {
            modified: Utc::now(),
            ..record
        };
        trees.replace(transaction, &target, &record, old.as_ref())?;
        transaction.remove(&trees.objects, source.as_ref())?;
        Ok(())
    });
    renamed.await.map_err(|error: Failure| error.at(to))
}

/// Removes an object; nothing if there is none, as most stores do.
pub(crate) async fn delete(trees: &Arc<Trees>, location: &Path) -> Result<()> {
    let of = location.clone();
    let deleted = trees.transact(TransactionOptions::new(), move |trees, transaction| {
        if let Some(record) = trees.record(transaction, &of)? {
            trees.remove_contents(transaction, &record)?;
            transaction.remove(&trees.objects, of.as_ref())?;
        }
        Ok(())
    });
    deleted.await.map_err(|error: Failure| error.at(location))
}
