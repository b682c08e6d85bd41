//! Keys and values between Python and the engine.

#![allow(unsafe_code, reason = "buffers of Python are memory by address")]

use std::ops::{Bound, Deref};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

/// The bytes of an argument. Those of a `bytes` object are borrowed, because no thread changes
/// them; those of any other buffer are copied while this thread holds the GIL.
pub(crate) enum Buffer<'a> {
    Borrowed(&'a [u8]),
    Copied(Vec<u8>),
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Buffer::Borrowed(bytes) => bytes,
            Buffer::Copied(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Buffer<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Buffer<'a> {
    type Error = PyErr;

    #[inline]
    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Buffer<'a>> {
        match <&'a [u8]>::extract(object) {
            Ok(bytes) => Ok(Buffer::Borrowed(bytes)),
            Err(_) => copied(&object).map(Buffer::Copied),
        }
    }
}

/// The bytes of a buffer.
fn copied(object: &pyo3::Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let buffer = PyUntypedBuffer::get(object).map_err(|_| {
        let name = object.get_type().name();
        let name = name.map_or_else(|_| "another type".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "keys and values are bytes or another buffer, not {name}"
        ))
    })?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err(
            "the buffer is not contiguous: copy it first",
        ));
    }
    let (first, length) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
    if length == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the buffer is contiguous and exported during the copy, and this thread holds the GIL.
    Ok(unsafe { std::slice::from_raw_parts(first, length) }.to_vec())
}

/// A range of keys.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) lower: Bound<Vec<u8>>,
    pub(crate) upper: Bound<Vec<u8>>,
}

impl Keys {
    /// The keys from `start` up to `stop`, which does not belong to them; with a prefix only those
    /// that begin with it.
    pub(crate) fn of(
        start: Option<Buffer<'_>>,
        stop: Option<Buffer<'_>>,
        prefix: Option<Buffer<'_>>,
    ) -> Keys {
        let (first, end) = match prefix {
            Some(prefix) => isobath::prefix_range(&prefix),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        let start = start.map(|start| start.to_vec());
        let stop = stop.map(|stop| stop.to_vec());
        let lower = match (start, first) {
            (Some(start), Bound::Included(first)) => Bound::Included(start.max(first)),
            (Some(start), _) => Bound::Included(start),
            (None, first) => first,
        };
        let upper = match (stop, end) {
            (Some(stop), Bound::Excluded(end)) => Bound::Excluded(stop.min(end)),
            (Some(stop), _) => Bound::Excluded(stop),
            (None, end) => end,
        };
        Keys { lower, upper }
    }

    /// Those of these keys that were cut off their beginning, `rest` being what is left.
    pub(crate) fn up_to(self, rest: &Keys) -> Keys {
        let upper = match &rest.lower {
            Bound::Excluded(last) => Bound::Included(last.clone()),
            _ => self.upper,
        };
        Keys { upper, ..self }
    }

    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (
            self.lower.as_ref().map(Vec::as_slice),
            self.upper.as_ref().map(Vec::as_slice),
        )
    }
}
