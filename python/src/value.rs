//! Large values as streams.

#![allow(unsafe_code, reason = "buffers of Python are memory by address")]

use std::ffi::c_int;
use std::io::{self, Read, Seek, SeekFrom};

use isobath::{Error, ValueReader, ValueWriter};
use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::Buffer;
use crate::errors::Failure;
use crate::waiting::Released;

/// Bytes that a reader gives at a time.
const READ_AT_ONCE: usize = 1 << 20;

/// The bytes of a value as the engine gave them, for Python's buffers.
#[pyclass(frozen, module = "isobath._native")]
pub(crate) struct Content(pub(crate) Vec<u8>);

#[pymethods]
impl Content {
    /// # Safety
    ///
    /// `view` is one that Python hands out to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (first, length) = (slf.get().0.as_ptr(), slf.get().0.len());
        // SAFETY: Python gives a view to be filled, which keeps the object then. Its bytes stay
        // where they are, and no code changes them.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                first.cast_mut().cast(),
                length.cast_signed(),
                1,
                flags,
            )
        };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// A value that is read piece by piece.
#[pyclass(frozen, module = "isobath._native")]
pub(crate) struct Reader {
    /// Taken without the GIL.
    reader: Released<Mutex<ValueReader>>,
    #[pyo3(get)]
    length: u64,
}

impl Reader {
    pub(crate) fn new(reader: ValueReader) -> Reader {
        Reader {
            length: reader.len(),
            reader: Released::new(Mutex::new(reader)),
        }
    }
}

/// The engine's error in one of the standard library's.
fn engine_error(error: io::Error) -> Failure {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(error) => Failure::Engine(error.clone()),
        None => Failure::Python(error.into()),
    }
}

#[pymethods]
impl Reader {
    /// The next bytes, up to `most`; none at the end.
    fn read<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyBytes>> {
        let reader = self.reader.get().ok_or(Failure::Ended)?;
        let bytes = py.detach(|| {
            let mut bytes = vec![0; most.min(READ_AT_ONCE)];
            let read = reader.lock().read(&mut bytes).map_err(engine_error)?;
            bytes.truncate(read);
            Ok::<_, Failure>(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Goes on at a byte of the value.
    fn seek(&self, py: Python<'_>, offset: u64) -> PyResult<()> {
        let reader = self.reader.get().ok_or(Failure::Ended)?;
        let sought = py.detach(|| reader.lock().seek(SeekFrom::Start(offset)));
        sought.map_err(engine_error)?;
        Ok(())
    }
}

/// A value that is written piece by piece.
#[pyclass(frozen, module = "isobath._native")]
pub(crate) struct Writer {
    /// Taken without the GIL; `None` once it has ended.
    writer: Released<Mutex<Option<ValueWriter>>>,
}

impl Writer {
    pub(crate) fn new(writer: ValueWriter) -> Writer {
        Writer {
            writer: Released::new(Mutex::new(Some(writer))),
        }
    }

    fn ended() -> Failure {
        Failure::Value("the value was finished or discarded".to_owned())
    }
}

#[pymethods]
impl Writer {
    /// Appends the bytes of a buffer; how many these are.
    fn append(&self, py: Python<'_>, bytes: Buffer<'_>) -> PyResult<usize> {
        let writer = self.writer.get().ok_or_else(Writer::ended)?;
        let appended = py.detach(|| -> Result<(), Failure> {
            let mut writer = writer.lock();
            Ok(writer.as_mut().ok_or_else(Writer::ended)?.append(&bytes)?)
        });
        appended?;
        Ok(bytes.len())
    }

    /// Makes the value visible under its key.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let writer = self.writer.get().ok_or_else(Writer::ended)?;
        let finished = py.detach(|| -> Result<(), Failure> {
            let writer = writer.lock().take();
            Ok(writer.ok_or_else(Writer::ended)?.finish()?)
        });
        Ok(finished?)
    }

    /// Leaves the tree as it was.
    fn discard(&self, py: Python<'_>) {
        py.detach(|| {
            let writer = self.writer.get().and_then(|writer| writer.lock().take());
            drop(writer);
        });
    }
}
