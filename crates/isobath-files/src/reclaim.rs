//! Freeing contents and whole directories that have no name, in transactions of bounded size.

use crate::change::Change;
use crate::layout::{
    FileKind, PENDING_PREFIX, ParsedKey, Pending, Stretch, inode_key, map_key, map_prefix,
    name_key, pending_key, piece_key,
};
use crate::tree::is_live;
use crate::{FileTree, FilesError};

/// Records of one kind that a transaction removes: some kilobytes of log.
const RECORDS_AT_ONCE: usize = 128;
/// Numbers of unfinished things that are read at a time.
const PENDING_AT_ONCE: usize = 1024;

impl FileTree {
    /// Frees `pending` and all that becomes free by that. What cannot be freed now the next opening
    /// frees: the operation that left it has taken effect.
    pub(crate) fn reclaim_now(&self, pending: Vec<u64>) {
        if !pending.is_empty() {
            // Entries that stay pending are reclaimed next time.
            let _ = self.reclaim(pending);
        }
    }

    pub(crate) fn reclaim(&self, mut pending: Vec<u64>) -> Result<(), FilesError> {
        // Directories free directories; each is one that the tree has a record of.
        while let Some(number) = pending.pop() {
            while self.free_part(number, &mut pending)? {}
        }
        Ok(())
    }

    /// Frees some of what belongs to an unfinished thing; whether there is more.
    fn free_part(&self, number: u64, pending: &mut Vec<u64>) -> Result<bool, FilesError> {
        let done = self.run(|transaction| {
            let record = transaction.get(&self.tree, pending_key(number))?;
            let Some(record) = record else {
                return Ok((false, Vec::new()));
            };
            let record = Pending::decode(&record)
                .ok_or_else(|| FilesError::corrupt(b"", "a record of what is freed is malformed"));
            let is_directory = record?.is_directory;
            let mut change = Change::new(&self.tree, transaction);
            let more = match is_directory {
                true => free_entries(&mut change, number)?,
                false => free_stretches(&mut change, number)?,
            };
            if !more {
                change.remove(pending_key(number))?;
            }
            Ok::<_, FilesError>((more, change.freed))
        });
        let (more, freed) = done?;
        pending.extend(freed);
        Ok(more)
    }

    /// Removes entries that are being freed, and those that ended sessions were making.
    pub(crate) fn remove_unfinished(&self) -> Result<(), FilesError> {
        let mut after: Option<u64> = None;
        loop {
            let mut found = Vec::new();
            let first = after.map_or(PENDING_PREFIX.to_vec(), |at| {
                pending_key(at.saturating_add(1))
            });
            self.tree.scan(first.., |key, value| {
                let Some(ParsedKey::Pending(number)) = ParsedKey::of(key) else {
                    return false;
                };
                found.push((number, Pending::decode(value)));
                found.len() < PENDING_AT_ONCE
            })?;
            let Some((last, _)) = found.last() else {
                return Ok(());
            };
            after = Some(*last);
            for (number, record) in found {
                if record.is_some_and(|record| !is_live(record.session)) {
                    self.reclaim(vec![number])?;
                }
            }
        }
    }
}

/// Frees stretches of contents that have a map; whether there are more.
fn free_stretches(change: &mut Change<'_>, content: u64) -> Result<bool, FilesError> {
    let records = change.records();
    let mut offsets = Vec::new();
    for record in records
        .transaction
        .prefix(records.tree, map_prefix(content))?
        .take(RECORDS_AT_ONCE)
    {
        let (key, value) = record?;
        if let Some(ParsedKey::Map { offset, .. }) = ParsedKey::of(&key) {
            // Of a malformed entry the piece goes, too, if there is one.
            let is_hole = Stretch::decode(&value).is_some_and(|stretch| stretch.crc.is_none());
            offsets.push((offset, is_hole));
        }
    }
    for (offset, is_hole) in &offsets {
        if !is_hole {
            change.remove(piece_key(content, *offset))?;
        }
        change.remove(map_key(content, *offset))?;
    }
    Ok(offsets.len() == RECORDS_AT_ONCE)
}

/// Frees entries of a directory, and at last the directory; whether there are more.
fn free_entries(change: &mut Change<'_>, directory: u64) -> Result<bool, FilesError> {
    let entries = change.records().entries(directory, None, RECORDS_AT_ONCE)?;
    for entry in &entries {
        change.remove(name_key(directory, &entry.name))?;
        if entry.kind == FileKind::Directory {
            let pending = Pending::freed(true);
            change.put(pending_key(entry.inode), &pending.encode())?;
            change.freed.push(entry.inode);
        } else {
            change.drop_link(entry.inode, &entry.name)?;
        }
    }
    let more = entries.len() == RECORDS_AT_ONCE;
    if !more {
        change.remove(inode_key(directory))?;
    }
    Ok(more)
}
