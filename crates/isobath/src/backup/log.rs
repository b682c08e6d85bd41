//! The log between the beginning and the end of a backup's last round: which copies it names that
//! the backup lacks, and its records as a restored store can use them.

use isobath_io::Volume;

use super::file::{BlockWriter, Kind as BlockKind, Scratch};
use super::source::RoundStart;
use crate::backup::MapEntry;
use crate::canary::{self, Canary};
use crate::error::{BackupError, StorageError};
use crate::log::record::{Body, Copied, Kind, Mapped, decode, mapping_body};
use crate::log::{LogArea, Reader};
use crate::page::{Lsn, PageId};
use crate::shared::Address;
use crate::sync::HashMap;

/// Bytes of a block of records, but for one long record.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes before a record's body in a block.
pub(super) const RECORD_HEADER: usize = 16;

/// A part of a store's log.
pub(super) struct LogPart<'v> {
    pub(super) volume: &'v Volume,
    pub(super) area: &'v LogArea,
    pub(super) pass: &'v RoundStart,
    pub(super) end: Lsn,
}

impl LogPart<'_> {
    /// Calls `each` with every record: position, kind, body as it is, and what it says.
    fn records(
        &self,
        mut each: impl FnMut(Lsn, Kind, &[u8], &Body<'_>) -> Result<(), BackupError>,
    ) -> Result<(), BackupError> {
        let pass = self.pass;
        let mut reader = Reader::new(
            self.volume,
            self.area,
            &pass.store_id,
            pass.start,
            pass.log_epoch,
        );
        while reader.position() < self.end {
            let from = reader.position();
            let Some(record) = reader.next_below(self.end)? else {
                break;
            };
            let body = decode(record.kind, record.body).ok_or(StorageError::UnknownLogRecord {
                position: from.0,
                kind: record.kind as u8,
            })?;
            each(record.lsn, record.kind, record.body, &body)?;
        }
        if reader.position() < self.end {
            return Err(StorageError::LogCorrupt {
                position: reader.position().0,
                durable: self.end.0,
            }
            .into());
        }
        Ok(())
    }

    /// Copies that the log names, that live at its end, and that `map` does not have: where they
    /// are.
    pub(super) fn missing(&self, map: &Scratch) -> Result<Vec<(PageId, MapEntry)>, BackupError> {
        let mut lives: HashMap<PageId, Life> = HashMap::default();
        self.records(|lsn, _, _, body| {
            note(&mut lives, lsn, body, self.pass.start);
            Ok(())
        })?;
        let mut missing = Vec::new();
        for (page, life) in lives {
            let Newest::Copy { at, is_chunk } = life.newest else {
                continue;
            };
            let known = map.get(page.0)?;
            let lacks = if is_chunk {
                known.version != at.version
            } else {
                // Any copy since its beginning will do: the log has what changed after it.
                !known.exists() || life.born.is_some_and(|born| known.version < born.0)
            };
            if lacks {
                missing.push((page, at));
            }
        }
        missing.sort_unstable_by_key(|(_, at)| at.address);
        Ok(missing)
    }

    /// Writes the records as blocks. What they say of copies becomes what is true of the backup's
    /// own; bytes of the records.
    pub(super) fn write(&self, map: &Scratch, into: &mut BlockWriter) -> Result<u64, BackupError> {
        let mut block: Vec<u8> = Vec::with_capacity(BLOCK_BYTES);
        let mut total = 0;
        self.records(|lsn, kind, bytes, body| {
            let rewritten;
            let bytes = match body {
                Body::Mapping { token, copies } => {
                    rewritten = own_copies(*token, copies, map, self.pass.start)?;
                    &rewritten[..]
                }
                _ => bytes,
            };
            if bytes.is_empty() {
                return Ok(());
            }
            if block.len() + RECORD_HEADER + bytes.len() > BLOCK_BYTES && !block.is_empty() {
                into.write(BlockKind::Log, &[&block])?;
                block.clear();
            }
            block.extend_from_slice(&lsn.0.to_le_bytes());
            block.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            block.extend_from_slice(&[kind as u8, 0, 0, 0]);
            block.extend_from_slice(bytes);
            total += (RECORD_HEADER + bytes.len()) as u64;
            Ok(())
        })?;
        if !block.is_empty() {
            into.write(BlockKind::Log, &[&block])?;
        }
        Ok(total)
    }
}

/// A page's history in the log.
#[derive(Default)]
struct Life {
    /// Where the log says that it ended, or that it began without an image.
    born: Option<Lsn>,
    newest: Newest,
}

#[derive(Default)]
enum Newest {
    #[default]
    Nothing,
    /// The log has an image of it.
    Image,
    Copy {
        at: MapEntry,
        is_chunk: bool,
    },
    Ended,
}

/// Whether an entry says nothing that the round has not seen. What a page held before the log's
/// start was on the volume then, and the round has copied that or something newer; unless the page
/// had ended while it was written: then the record of its end is older than the start, and only
/// that of the copy is not.
fn is_old_news(copy: &Mapped, start: Lsn) -> bool {
    copy.what == Copied::Page && copy.version < start
}

fn note(lives: &mut HashMap<PageId, Life>, lsn: Lsn, body: &Body<'_>, start: Lsn) {
    let end = |pages: &[PageId], lives: &mut HashMap<PageId, Life>| {
        for page in pages {
            let life = lives.entry(*page).or_default();
            (life.born, life.newest) = (Some(lsn), Newest::Ended);
        }
    };
    match body {
        Body::Commit { chunks, .. } | Body::Free { chunks, .. } => end(chunks, lives),
        Body::Structure { ended, images, .. } => {
            for image in images {
                lives.entry(image.page).or_default().newest = Newest::Image;
            }
            end(ended, lives);
        }
        Body::Mapping { copies, .. } => {
            for copy in copies.iter().filter(|copy| !is_old_news(copy, start)) {
                note_copy(lives.entry(copy.page).or_default(), lsn, copy);
            }
        }
    }
}

fn note_copy(life: &mut Life, lsn: Lsn, copy: &Mapped) {
    let at = MapEntry {
        address: copy.address.to_raw(),
        seq: copy.seq,
        version: copy.version.0,
    };
    match (copy.what, &life.newest) {
        (Copied::Provisional, _) => (life.born, life.newest) = (Some(lsn), Newest::Nothing),
        (Copied::NewChunk | Copied::UnflushedChunk, _) => {
            life.born = Some(lsn);
            life.newest = Newest::Copy { at, is_chunk: true };
        }
        (Copied::MovedChunk, Newest::Copy { at: before, .. }) if before.version == at.version => {
            life.newest = Newest::Copy { at, is_chunk: true };
        }
        // It existed when the round began, which has seen it; or it ended while it was moved, and
        // its id may be another's.
        (Copied::MovedChunk, _) => {}
        (Copied::Page, Newest::Image) => {}
        // It ended while it was written, and its id may be a chunk's by now.
        (Copied::Page, _)
            if life.born.is_some_and(|born| copy.version < born)
                && !canary::is_on(Canary::CopyEndedPages) => {}
        (Copied::Page, _) => {
            life.newest = Newest::Copy {
                at,
                is_chunk: false,
            }
        }
    }
}

/// The body of a mapping record that names the backup's copies, without their places; empty where
/// it has none.
fn own_copies(
    token: u64,
    copies: &[Mapped],
    map: &Scratch,
    start: Lsn,
) -> Result<Vec<u8>, BackupError> {
    let mut own = Vec::with_capacity(copies.len());
    for copy in copies.iter().filter(|copy| !is_old_news(copy, start)) {
        let known = map.get(copy.page.0)?;
        let here = Mapped {
            version: Lsn(known.version),
            address: Address::NONE,
            seq: 0,
            ..*copy
        };
        match copy.what {
            Copied::Provisional => own.push(*copy),
            Copied::Page if known.exists() && known.version >= copy.version.0 => own.push(here),
            // The backup has it as a whole, wherever the store had it.
            Copied::NewChunk | Copied::UnflushedChunk
                if known.exists() && known.version == copy.version.0 =>
            {
                own.push(Mapped {
                    what: Copied::NewChunk,
                    ..here
                });
            }
            // Ended before it was copied; its token still says whose it was.
            Copied::NewChunk | Copied::UnflushedChunk if token != 0 => own.push(Mapped {
                what: Copied::Provisional,
                ..here
            }),
            // The backup's own copy is where the checkpoint, or the chunk's first record, says.
            Copied::Page | Copied::NewChunk | Copied::UnflushedChunk | Copied::MovedChunk => {}
        }
    }
    if own.is_empty() {
        return Ok(Vec::new());
    }
    Ok(mapping_body(token, &own))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Lsn = Lsn(1000);
    const PAGE: PageId = PageId(7);

    fn copy(what: Copied, version: u64, segment: u32) -> Mapped {
        Mapped {
            what,
            page: PAGE,
            version: Lsn(version),
            address: Address::new(segment, 0, 4096),
            seq: 1,
        }
    }

    fn mapping(token: u64, what: Copied, version: u64, segment: u32) -> Body<'static> {
        let body = mapping_body(token, &[copy(what, version, segment)]);
        decode(Kind::Mapping, body.leak()).unwrap()
    }

    fn end() -> Body<'static> {
        Body::Free {
            tokens: Vec::new(),
            chunks: vec![PAGE],
        }
    }

    /// The place of the copy that the log names, after records at these LSNs.
    fn named(records: &[(u64, Body<'_>)]) -> Option<(u32, bool)> {
        let mut lives = HashMap::default();
        for (lsn, body) in records {
            note(&mut lives, Lsn(*lsn), body, START);
        }
        match lives.remove(&PAGE)?.newest {
            Newest::Copy { at, is_chunk } => {
                Some((Address::from_raw(at.address).segment(), is_chunk))
            }
            _ => None,
        }
    }

    /// A page ended while it was being written, and its id was given to a chunk.
    fn late_copy() -> Option<(u32, bool)> {
        named(&[
            (1100, end()),
            (1200, mapping(5, Copied::NewChunk, 1050, 2)),
            (1300, mapping(0, Copied::Page, 1040, 3)),
        ])
    }

    #[test]
    fn a_copy_of_what_has_ended_is_not_wanted() {
        assert_eq!(late_copy(), Some((2, true)));
        assert_eq!(
            named(&[(1100, end()), (1200, mapping(0, Copied::Page, 1040, 3))]),
            None
        );
        assert_eq!(
            named(&[
                (1100, end()),
                (1200, mapping(0, Copied::MovedChunk, 900, 3))
            ]),
            None
        );
        // Older than the log: the round has seen it, or its end.
        assert_eq!(
            named(&[(1200, mapping(0, Copied::MovedChunk, 900, 3))]),
            None
        );
        assert_eq!(named(&[(1200, mapping(0, Copied::Page, 900, 3))]), None);
        Canary::CopyEndedPages.switch_on();
        assert_eq!(late_copy(), Some((3, false)));
    }

    #[test]
    fn the_newest_copy_is_wanted() {
        assert_eq!(
            named(&[
                (1100, mapping(5, Copied::NewChunk, 900, 2)),
                (1200, mapping(0, Copied::MovedChunk, 900, 3)),
            ]),
            Some((3, true))
        );
        // A page of a bulk load.
        assert_eq!(
            named(&[
                (1100, mapping(5, Copied::Provisional, 0, 0)),
                (1200, mapping(0, Copied::Page, 1150, 3)),
                (1300, mapping(0, Copied::Page, 1250, 4)),
            ]),
            Some((4, false))
        );
    }
}
