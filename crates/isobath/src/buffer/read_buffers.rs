//! Read-ahead buffers of readers of large values. All readers of a store together hold a bounded
//! number of bytes: the next reader takes the buffers of those that have not read for the longest
//! time, and these read their chunks again when they continue.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sync::Mutex;

/// Bytes that all readers hold at most, beside the buffers of those that are reading
/// just now.
const LIMIT: usize = 32 << 20;

/// One reader's read-ahead buffer.
#[derive(Default, Debug)]
pub(crate) struct ReadBuffer {
    pub(crate) bytes: Vec<u8>,
    /// How many of these bytes are read.
    pub(crate) position: usize,
}

/// A reader's buffer, which others may empty while the reader does not hold its lock.
pub(crate) type SharedBuffer = Arc<Mutex<ReadBuffer>>;

/// The buffers of all readers of a store.
#[derive(Default)]
pub(crate) struct ReadBuffers(Mutex<Listed>);

#[derive(Default)]
struct Listed {
    /// With the bytes of each; the one that was filled last is the last.
    buffers: VecDeque<(SharedBuffer, usize)>,
    bytes: usize,
}

impl Listed {
    fn remove(&mut self, buffer: &SharedBuffer) {
        let at = self
            .buffers
            .iter()
            .position(|(listed, _)| Arc::ptr_eq(listed, buffer));
        if let Some((_, bytes)) = at.and_then(|at| self.buffers.remove(at)) {
            self.bytes -= bytes;
        }
    }
}

impl ReadBuffers {
    /// Lists `buffer`, whose lock the caller holds, as one that is about to have chunks of
    /// `chunk` bytes, and empties others if that is too much; how many chunks it may
    /// have, at most `most` and at least one.
    pub(crate) fn admit(&self, buffer: &SharedBuffer, chunk: usize, most: usize) -> usize {
        let mut listed = self.0.lock();
        listed.remove(buffer);
        let share = LIMIT / (listed.buffers.len() + 1);
        let chunks = (share / chunk).clamp(1, most);
        let bytes = chunks * chunk;
        // Bound: every other buffer once.
        for _ in 0..listed.buffers.len() {
            if listed.bytes + bytes <= LIMIT {
                break;
            }
            let Some((other, size)) = listed.buffers.pop_front() else {
                break;
            };
            // One that is being read stays.
            let emptied = match other.try_lock() {
                Some(mut other) => {
                    *other = ReadBuffer::default();
                    true
                }
                None => false,
            };
            if emptied {
                listed.bytes -= size;
            } else {
                listed.buffers.push_back((other, size));
            }
        }
        listed.buffers.push_back((Arc::clone(buffer), bytes));
        listed.bytes += bytes;
        chunks
    }

    /// A reader has ended.
    pub(crate) fn remove(&self, buffer: &SharedBuffer) {
        self.0.lock().remove(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 256 << 10;

    /// Fills `buffer` as a reader does.
    fn fill(buffers: &ReadBuffers, buffer: &SharedBuffer) -> usize {
        let mut held = buffer.lock();
        let chunks = buffers.admit(buffer, CHUNK, 8);
        held.bytes = vec![1; chunks * CHUNK];
        chunks
    }

    fn total(readers: &[SharedBuffer]) -> usize {
        readers
            .iter()
            .map(|reader| reader.lock().bytes.capacity())
            .sum()
    }

    #[test]
    fn however_many_are_idle_they_hold_no_more_than_the_limit() {
        let buffers = ReadBuffers::default();
        let readers: Vec<SharedBuffer> = (0..500).map(|_| SharedBuffer::default()).collect();
        for reader in &readers {
            assert!(fill(&buffers, reader) >= 1);
            assert!(total(&readers) <= LIMIT);
        }
        for reader in &readers {
            buffers.remove(reader);
        }
        assert_eq!(buffers.0.lock().bytes, 0);
        assert_eq!(
            fill(&buffers, &readers[0]),
            8,
            "one reader alone reads far ahead"
        );
    }

    #[test]
    fn a_buffer_in_use_is_not_given_to_another_reader() {
        let buffers = ReadBuffers::default();
        let readers: Vec<SharedBuffer> = (0..200).map(|_| SharedBuffer::default()).collect();
        assert_eq!(fill(&buffers, &readers[0]), 8);
        let reading = readers[0].lock();
        for reader in &readers[1..] {
            fill(&buffers, reader);
        }
        assert_eq!(reading.bytes.len(), 8 * CHUNK);
    }
}
