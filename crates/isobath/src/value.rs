//! Values as streams.

use std::io;

use crate::Error;
use crate::btree::ValueKind;
use crate::engine::TaskContext;
use crate::extent::{ExtentReader, ExtentWriter, payload_bytes};
use crate::tree::{Tree, check_value, decode_extent, insert_in_task, put_extent};

/// A value that is being written as a stream, from [`Tree::writer`]. Dropping
/// it without [`ValueWriter::finish`] leaves the tree as it was.
pub struct ValueWriter {
    tree: Tree,
    key: Vec<u8>,
    /// What is not yet a full chunk.
    buffer: Vec<u8>,
    extent: Option<ExtentWriter>,
    payload: usize,
    written: u64,
}

impl ValueWriter {
    pub(crate) fn new(tree: Tree, key: &[u8]) -> ValueWriter {
        let payload = payload_bytes(&tree.runtime.engine.config);
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
    /// As for [`Tree::insert`].
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        check_value(self.written + bytes.len() as u64)?;
        self.written += bytes.len() as u64;
        while self.buffer.len() + bytes.len() > self.payload {
            let (now, later) = bytes.split_at(self.payload - self.buffer.len());
            self.buffer.extend_from_slice(now);
            bytes = later;
            self.write_chunk()?;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn write_chunk(&mut self) -> Result<(), Error> {
        let mut extent = self.extent.take().unwrap_or_default();
        let buffer = &self.buffer;
        let result = self.tree.run(|local| Ok(extent.write(local, buffer)));
        self.extent = Some(extent);
        self.buffer.clear();
        result?
    }

    /// Makes the value visible under its key.
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`]; the tree is unchanged then.
    pub fn finish(mut self) -> Result<(), Error> {
        let tree = self.tree.state.tree;
        let mut extent = self.extent.take().unwrap_or_default();
        let (key, buffer) = (&self.key, &self.buffer);
        self.tree.run(move |local| {
            if extent.length() == 0 {
                return insert_in_task(local, tree, key, buffer);
            }
            if !buffer.is_empty()
                && let Err(error) = extent.write(local, buffer)
            {
                extent.abandon(local);
                return Err(error);
            }
            put_extent(local, tree, key, extent.finish(local)?)
        })
    }
}

impl Drop for ValueWriter {
    fn drop(&mut self) {
        if let Some(extent) = self.extent.take()
            && extent.length() > 0
        {
            // Nobody is left to tell; what cannot be freed now is found and
            // freed by the next opening.
            let _ = self.tree.run(move |local| {
                extent.abandon(local);
                Ok(())
            });
        }
    }
}

impl io::Write for ValueWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(io::Error::other)?;
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
    buffer: Vec<u8>,
    position: usize,
    length: u64,
}

impl ValueReader {
    pub(crate) fn open(tree: Tree, key: &[u8]) -> Result<Option<ValueReader>, Error> {
        let inner = tree.state.tree;
        let found = tree.run(|local| {
            let mut value = Vec::new();
            Ok(match inner.get(&TaskContext { local }, key, &mut value)? {
                None => None,
                Some(ValueKind::Inline) => Some((value, None)),
                Some(ValueKind::Extent) => {
                    let reader = ExtentReader::new(local, decode_extent(&value)?)?;
                    Some((Vec::new(), Some(reader)))
                }
            })
        })?;
        Ok(found.map(|(buffer, extent)| ValueReader {
            length: extent
                .as_ref()
                .map_or(buffer.len() as u64, ExtentReader::length),
            tree,
            extent,
            buffer,
            position: 0,
        }))
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

    /// Refills the buffer; `false` at the end.
    fn refill(&mut self) -> Result<bool, Error> {
        let Some(mut extent) = self.extent.take() else {
            return Ok(false);
        };
        self.buffer.clear();
        self.position = 0;
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.tree.run(|local| extent.read(local, &mut buffer));
        self.buffer = buffer;
        self.extent = Some(extent);
        result
    }
}

impl io::Read for ValueReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.position == self.buffer.len() && !self.refill().map_err(io::Error::other)? {
            return Ok(0);
        }
        let rest = &self.buffer[self.position..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.position += count;
        Ok(count)
    }
}
