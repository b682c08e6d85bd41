//! Reading objects.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use isobath::{Error, Snapshot, Transaction};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, Result};

use crate::error::{Failure, generic, not_found};
use crate::record::ObjectRecord;
use crate::trees::Trees;

/// Bytes that are read by one task; a larger range is a stream of such pieces.
const PIECE_BYTES: u64 = 1 << 20;
/// Pieces of a stream that are read at a time: one is ready while another one is awaited.
const PIECES_AHEAD: usize = 2;
/// Ranges of one call that are read at a time.
const RANGES_AT_ONCE: usize = 16;

/// An object as it was when a snapshot was taken.
struct Opened {
    snapshot: Snapshot,
    record: ObjectRecord,
}

fn open(trees: &Trees, location: &Path) -> Result<Opened, Failure> {
    let snapshot = trees.store.snapshot()?;
    let record = trees.record(&snapshot, location)?;
    let record = record.ok_or_else(|| not_found(location))?;
    Ok(Opened { snapshot, record })
}

/// What a request is about.
struct Found {
    meta: ObjectMeta,
    record: ObjectRecord,
    range: Range<u64>,
    payload: Payload,
}

enum Payload {
    Nothing,
    Whole(Vec<u8>),
    /// To be read from a snapshot.
    Long(Box<Snapshot>),
}

fn find(trees: &Trees, location: &Path, options: &GetOptions) -> Result<Found, Failure> {
    let Opened { snapshot, record } = open(trees, location)?;
    let meta = record.meta(location.clone());
    options.check_preconditions(&meta)?;
    let range = match &options.range {
        None => 0..meta.size,
        Some(range) => within(range, meta.size)?,
    };
    let payload = if options.head {
        Payload::Nothing
    } else if range.end - range.start <= PIECE_BYTES {
        Payload::Whole(bytes_of(trees, &snapshot, &record, range.clone())?)
    } else {
        Payload::Long(Box::new(snapshot))
    };
    Ok(Found {
        meta,
        record,
        range,
        payload,
    })
}

fn within(range: &GetRange, size: u64) -> Result<Range<u64>> {
    range
        .as_range(size)
        .map_err(|error| generic(error.to_string()))
}

/// Bytes of an object within `range`.
fn bytes_of(
    trees: &Trees,
    transaction: &Transaction,
    record: &ObjectRecord,
    range: Range<u64>,
) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let mut first = 0;
    for (part, length) in record.parts.iter().enumerate() {
        let (start, end) = (range.start.max(first), range.end.min(first + length));
        if start < end {
            let key = record.id.part_key(part as u32);
            let reader = transaction.reader(&trees.contents, key)?;
            let reader = reader.ok_or(Error::ValueReplaced)?;
            let read = reader.read_at(start - first, (end - start) as usize)?;
            match bytes.is_empty() {
                true => bytes = read,
                false => bytes.extend(read),
            }
        }
        first += length;
    }
    if bytes.len() as u64 != range.end - range.start {
        return Err(generic("contents are shorter than their record says".to_owned()).into());
    }
    Ok(bytes)
}

/// Reads an object, or what `options` want of it.
pub(crate) async fn get(
    trees: &Arc<Trees>,
    location: &Path,
    options: GetOptions,
) -> Result<GetResult> {
    if options.version.is_some() {
        return Err(object_store::Error::NotSupported {
            source: "objects have no older versions".into(),
        });
    }
    let of = location.clone();
    let found = trees.run(move |trees| find(trees, &of, &options)).await;
    let found = found.map_err(|error| error.at(location))?;
    let payload = match found.payload {
        Payload::Nothing => stream::empty().boxed(),
        Payload::Whole(bytes) => stream::iter([Ok(Bytes::from(bytes))]).boxed(),
        Payload::Long(snapshot) => {
            let opened = Opened {
                snapshot: *snapshot,
                record: found.record.clone(),
            };
            let pieces = pieces(trees, location, opened, found.range.clone());
            pieces.boxed()
        }
    };
    Ok(GetResult {
        payload: GetResultPayload::Stream(payload),
        meta: found.meta,
        range: found.range,
        attributes: found.record.attributes,
        extensions: object_store::Extensions::default(),
    })
}

fn pieces(
    trees: &Arc<Trees>,
    location: &Path,
    opened: Opened,
    range: Range<u64>,
) -> impl stream::Stream<Item = Result<Bytes>> + Send + 'static + use<> {
    let (trees, location) = (Arc::clone(trees), location.clone());
    let opened = Arc::new(opened);
    let starts = stream::iter(range.clone().step_by(PIECE_BYTES as usize));
    starts
        .map(move |start| {
            let piece = start..range.end.min(start + PIECE_BYTES);
            read_piece(
                Arc::clone(&trees),
                location.clone(),
                Arc::clone(&opened),
                piece,
            )
        })
        .buffered(PIECES_AHEAD)
}

async fn read_piece(
    trees: Arc<Trees>,
    location: Path,
    opened: Arc<Opened>,
    piece: Range<u64>,
) -> Result<Bytes> {
    let read = trees.run(move |trees| bytes_of(trees, &opened.snapshot, &opened.record, piece));
    let bytes = read.await.map_err(|error| error.at(&location))?;
    Ok(bytes.into())
}

/// Reads some ranges of an object, all of the same state.
pub(crate) async fn get_ranges(
    trees: &Arc<Trees>,
    location: &Path,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    let of = location.clone();
    let opened = trees.run(move |trees| open(trees, &of)).await;
    let opened = Arc::new(opened.map_err(|error| error.at(location))?);
    let size = opened.record.size();
    let ranges = ranges
        .iter()
        .map(|range| within(&GetRange::Bounded(range.clone()), size))
        .collect::<Result<Vec<_>>>()?;
    let reads = ranges.into_iter().map(|range| {
        read_piece(
            Arc::clone(trees),
            location.clone(),
            Arc::clone(&opened),
            range,
        )
    });
    stream::iter(reads)
        .buffered(RANGES_AT_ONCE)
        .try_collect()
        .await
}
