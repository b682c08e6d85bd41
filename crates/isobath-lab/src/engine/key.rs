//! Keys of the benchmarks.

/// Bytes that a key has at most.
pub(crate) const KEY_BYTES_MAX: usize = 48;

/// A key of the benchmarks, in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    len: u8,
}

impl Key {
    /// The first `len` of these bytes; the rest is not looked at.
    pub(crate) fn new(mut bytes: [u8; KEY_BYTES_MAX], len: usize) -> Key {
        let len = len.min(KEY_BYTES_MAX);
        bytes[len..].fill(0);
        Key {
            bytes,
            len: len as u8,
        }
    }
}

impl Default for Key {
    fn default() -> Key {
        Key::new([0; KEY_BYTES_MAX], 0)
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::hex(self))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> std::cmp::Ordering {
        self[..].cmp(&other[..])
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
