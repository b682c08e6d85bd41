//! Values as streams.

use std::io;
use std::sync::{Arc, Weak};

use crate::api::record::{error_of, insert_in_task, newest_with, put_extent};
use crate::api::tree::{Tree, check_value};
use crate::btree::{ValueKind, fits_inline};
use crate::buffer::{ReadBuffer, SharedBuffer};
use crate::engine::WorkerState;
use crate::error::{Error, StorageError};
use crate::extent::{self, Extent, ExtentReader, ExtentWriter, payload_bytes};
use crate::runtime::Urgency;
use crate::sync::Mutex;
use crate::txn::snapshots::Registered;

/// A value that is being written as a stream, from [`Tree::writer`]. Dropping
/// it without [`ValueWriter::finish`] leaves the tree as it was.
pub struct ValueWriter {
    tree: Tree,
    key: Vec<u8>,
    /// Bytes that are not yet a full chunk.
    buffer: Vec<u8>,
    extent: Option<ExtentWriter>,
    payload: usize,
    written: u64,
}

impl std::fmt::Debug for ValueWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValueWriter").finish_non_exhaustive()
    }
}

impl ValueWriter {
    pub(crate) fn new(tree: Tree, key: &[u8]) -> ValueWriter {
        let payload = payload_bytes(tree.runtime.config());
        ValueWriter {
            key: key.to_vec(),
            buffer: Vec::new(),
            extent: Some(ExtentWriter::new()),
            payload,
            written: 0,
            tree,
        }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.written
    }

    /// Whether nothing was written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.written == 0
    }

    /// Appends `bytes` to the value.
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`]. Nothing of `bytes` was appended then: once there is space, they can
    /// be appended again.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.written + bytes.len() as u64;
        check_value(written)?;
        let room = self.payload - self.buffer.len();
        let rest = match bytes.split_at_checked(room) {
            Some((first, rest)) if !rest.is_empty() => self.write_chunks(first, rest)?,
            _ => bytes,
        };
        self.buffer.extend_from_slice(rest);
        self.written = written;
        Ok(())
    }

    /// Writes the chunk that `first` fills, and all chunks of `rest` but the last, which
    /// is what is left in the answer: only the value's end says how long that one is.
    fn write_chunks<'b>(&mut self, first: &[u8], rest: &'b [u8]) -> Result<&'b [u8], Error> {
        let before = self.buffer.len();
        self.buffer.extend_from_slice(first);
        let (whole, rest) = rest.split_at((rest.len() - 1) / self.payload * self.payload);
        let chunks = std::iter::once(&self.buffer[..]).chain(whole.chunks(self.payload));
        let extent = self.extent.get_or_insert_default();
        let result = self.tree.run(|local| Ok(extent.write_full(local, chunks)?));
        let kept = if result.is_ok() { 0 } else { before };
        self.buffer.truncate(kept);
        result.map(|()| rest)
    }

    /// Makes the value visible under its key.
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`]; the tree is unchanged then.
    pub fn finish(mut self) -> Result<(), Error> {
        let finished = self.take_finished()?;
        let (tree, key) = (&self.tree, &self.key);
        // In a tree that was dropped as well: the value has to be freed.
        let result = tree.runtime.run(Urgency::Ordinary, |local| match finished {
            Finished::Inline(bytes) => insert_in_task(local, &tree.state, key, &bytes),
            Finished::Extent(extent) => put_extent(local, &tree.state, key, extent),
        });
        tree.map_error(result)
    }

    /// Ends the value without putting it anywhere.
    pub(crate) fn take_finished(&mut self) -> Result<Finished, Error> {
        // Dropping the writer frees what it wrote.
        self.tree.alive()?;
        let mut extent = self.extent.take().unwrap_or_default();
        let buffer = std::mem::take(&mut self.buffer);
        if extent.length() == 0 && fits_inline(self.key.len(), buffer.len()) {
            return Ok(Finished::Inline(buffer));
        }
        let result = self.tree.runtime.run(Urgency::Ordinary, move |local| {
            let chunks = buffer.chunks(extent.payload(local));
            if let Err(error) = extent.write_full(local, chunks) {
                extent.abandon(local);
                return Err(error.into());
            }
            Ok(extent.finish(local).map(Finished::Extent)?)
        });
        self.tree.map_error(result)
    }
}

/// A whole value that no key has yet.
pub(crate) enum Finished {
    /// Small enough for a leaf.
    Inline(Vec<u8>),
    /// On the volume.
    Extent(Extent),
}

impl Drop for ValueWriter {
    fn drop(&mut self) {
        if let Some(extent) = self.extent.take()
            && extent.length() > 0
        {
            // Of a tree that was dropped, too. No caller is left to receive an error: closing the
            // store frees what cannot be freed any more, or the next opening does.
            let _ = self.tree.runtime.run(Urgency::Ordinary, move |local| {
                extent.abandon(local);
                Ok::<(), StorageError>(())
            });
        }
    }
}

/// As an error of the standard library, which has an [`Error`] inside.
pub(crate) fn as_io(error: impl Into<Error>) -> io::Error {
    io::Error::other(error.into())
}

impl io::Write for ValueWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(as_io)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A value that is being read as a stream, from [`Tree::reader`].
pub struct ValueReader {
    tree: Tree,
    extent: Option<ExtentReader>,
    keeper: Keeper,
    /// That of a large value is emptied while it is not read and others need the memory.
    buffer: SharedBuffer,
    /// Where the stream goes on.
    offset: u64,
    length: u64,
    /// Chunks that the next refill reads, at most: few where the stream has jumped, because only
    /// some bytes may be wanted there.
    ahead: usize,
}

/// The owner that keeps a large value while it is read, which decides the meaning of a read error.
pub(crate) enum Keeper {
    /// Its key, as long as that has no other value.
    Key(Vec<u8>),
    /// A snapshot that is open.
    Snapshot(Weak<Registered>),
    /// A transaction that has written it, until it writes something else or ends.
    Writer,
}

impl Keeper {
    /// Why the value could not be read, where reading it has failed with `error`.
    fn error_of(
        &self,
        local: &WorkerState,
        tree: &Tree,
        extent: Extent,
        error: StorageError,
    ) -> Error {
        match self {
            Keeper::Key(key) => error_of(local, tree.state.tree, key, &extent.encode(), error),
            Keeper::Snapshot(snapshot) => match snapshot.upgrade().map(|open| open.check()) {
                Some(Ok(())) => error.into(),
                Some(Err(too_old)) => too_old.into(),
                None => Error::ValueReplaced,
            },
            Keeper::Writer => Error::ValueReplaced,
        }
    }
}

impl std::fmt::Debug for ValueReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValueReader").finish_non_exhaustive()
    }
}

impl ValueReader {
    pub(crate) fn open(tree: Tree, key: &[u8]) -> Result<Option<ValueReader>, Error> {
        let inner = tree.state.tree;
        let found = tree.run(|local| {
            let transactions = &local.engine.transactions;
            transactions.read_one(local, inner.id, key, |old| {
                let mut value = Vec::new();
                let open =
                    |descriptor: &[u8]| ExtentReader::new(local, extent::decode(descriptor)?);
                Ok::<_, Error>(match old.map(|old| old.take(&mut value)) {
                    None => newest_with(local, inner, key, &mut value, |descriptor, _| {
                        Ok(open(descriptor)?)
                    })?
                    .map(|found| (value, found.map(|(_, reader)| reader))),
                    Some(None) => None,
                    Some(Some(ValueKind::Inline)) => Some((value, None)),
                    Some(Some(ValueKind::Extent)) => Some((Vec::new(), Some(open(&value)?))),
                })
            })
        })?;
        Ok(found.map(|(buffer, extent)| {
            ValueReader::new(tree, buffer, extent, Keeper::Key(key.to_vec()))
        }))
    }

    fn new(
        tree: Tree,
        buffer: Vec<u8>,
        extent: Option<ExtentReader>,
        keeper: Keeper,
    ) -> ValueReader {
        let length = extent.as_ref().map(ExtentReader::length);
        ValueReader {
            length: length.unwrap_or(buffer.len() as u64),
            tree,
            extent,
            keeper,
            buffer: Arc::new(Mutex::new(ReadBuffer {
                bytes: buffer,
                position: 0,
            })),
            offset: 0,
            ahead: usize::MAX,
        }
    }

    /// Reads a value that is in memory.
    pub(crate) fn of_bytes(tree: Tree, bytes: Vec<u8>) -> ValueReader {
        ValueReader::new(tree, bytes, None, Keeper::Writer)
    }

    /// Reads a large value that `keeper` keeps.
    pub(crate) fn of_extent(
        tree: Tree,
        extent: Extent,
        keeper: Keeper,
    ) -> Result<ValueReader, Error> {
        let reader = tree.run(|local| {
            let reader = ExtentReader::new(local, extent);
            reader.map_err(|error| keeper.error_of(local, &tree, extent, error))
        })?;
        Ok(ValueReader::new(tree, Vec::new(), Some(reader), keeper))
    }

    /// Bytes of the whole value.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Reads `length` bytes of the value from byte `offset` on, or as many as it has from there;
    /// only these are read, in whole chunks. Where the stream goes on stays as it is.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// # let films = store.create_tree("films")?;
    /// films.insert("k", vec![7; 3 << 20])?;
    /// let reader = films.reader("k")?.ok_or(isobath::Error::ValueReplaced)?;
    /// assert_eq!(reader.read_at(2 << 20, 5)?, [7; 5]);
    /// assert_eq!(reader.read_at((3 << 20) - 1, 5)?, [7]);
    /// # drop(reader);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::ValueReplaced`], [`Error::TreeDropped`], [`Error::Closed`], or a failed read.
    pub fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        self.tree.alive()?;
        let end = offset.saturating_add(length as u64).min(self.length);
        if offset >= end {
            return Ok(Vec::new());
        }
        let Some(extent) = &self.extent else {
            // Values without chunks are whole in the buffer, which no other reader empties.
            let buffer = self.buffer.lock();
            let part = buffer.bytes.get(offset as usize..end as usize);
            return Ok(part.unwrap_or_default().to_vec());
        };
        let result = self.tree.runtime.run(Urgency::Ordinary, |local| {
            let read = extent.read_range(local, offset..end);
            read.map_err(|error| (self.keeper).error_of(local, &self.tree, extent.extent(), error))
        });
        self.tree.map_error(result)
    }

    /// Refills the empty `buffer`, which is the reader's; `false` at the end.
    fn refill(&mut self, buffer: &mut ReadBuffer) -> Result<bool, Error> {
        let Some(extent) = self.extent.as_mut().filter(|_| self.offset < self.length) else {
            return Ok(false);
        };
        let buffers = self.tree.runtime.engine()?.buffer.read_buffers();
        let ahead = self.ahead.min(extent.read_ahead());
        let chunks = buffers.admit(&self.buffer, extent.chunk_bytes(), ahead);
        self.ahead = self.ahead.saturating_mul(2);
        buffer.bytes.clear();
        buffer.position = extent.seek(self.offset);
        let (bytes, tree, keeper) = (&mut buffer.bytes, &self.tree, &self.keeper);
        let result = tree.run(|local| {
            let read = extent.read_some(local, chunks, bytes);
            read.map_err(|error| keeper.error_of(local, tree, extent.extent(), error))
        });
        if !matches!(result, Ok(true)) {
            *buffer = ReadBuffer::default();
        }
        result
    }
}

impl Drop for ValueReader {
    fn drop(&mut self) {
        if self.extent.is_some()
            && let Ok(engine) = self.tree.runtime.engine()
        {
            engine.buffer.read_buffers().remove(&self.buffer);
        }
    }
}

impl io::Read for ValueReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // The parent may have been emptying the buffer when it forked.
        self.tree.runtime.check_open().map_err(as_io)?;
        let shared = Arc::clone(&self.buffer);
        let mut buffer = shared.lock();
        let is_empty = buffer.position == buffer.bytes.len();
        if is_empty && !self.refill(&mut buffer).map_err(as_io)? {
            return Ok(0);
        }
        // A value that is shorter than it says fails to be read, or ends here.
        let rest = buffer.bytes.get(buffer.position..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        buffer.position += count;
        self.offset += count as u64;
        Ok(count)
    }
}

/// The stream goes on anywhere in the value; behind its end there is nothing to read.
impl io::Seek for ValueReader {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.tree.runtime.check_open().map_err(as_io)?;
        let offset = match to {
            io::SeekFrom::Start(offset) => Some(offset),
            io::SeekFrom::End(distance) => self.length.checked_add_signed(distance),
            io::SeekFrom::Current(distance) => self.offset.checked_add_signed(distance),
        };
        let offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        let mut buffer = self.buffer.lock();
        if self.extent.is_none() {
            let end = buffer.bytes.len();
            buffer.position = usize::try_from(offset).map_or(end, |offset| offset.min(end));
        } else {
            // Bytes that are in the buffer are not read again.
            let first = self.offset.saturating_sub(buffer.position as u64);
            let within = offset.checked_sub(first);
            match within.filter(|within| *within <= buffer.bytes.len() as u64) {
                Some(within) => buffer.position = within as usize,
                None => {
                    *buffer = ReadBuffer::default();
                    self.ahead = 1;
                }
            }
        }
        drop(buffer);
        self.offset = offset;
        Ok(offset)
    }
}
