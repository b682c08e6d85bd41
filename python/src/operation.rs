//! Operations as tasks of the engine's workers, for an event loop: no thread waits for them, and no
//! worker needs the GIL. A worker that ends one notes its number and wakes the loop by a socket.

use std::future::Future;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::cursor::{Batch, Gives};
use crate::errors::Failure;

/// What an operation answers.
pub(crate) enum Answer {
    Nothing,
    Whether(bool),
    Value(Option<Vec<u8>>),
    Values(Vec<Option<Vec<u8>>>),
    /// Records, and whether these are the last.
    Records(Gives, Batch, bool),
}

impl Answer {
    fn give<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = |value: Vec<u8>| PyBytes::new(py, &value);
        match self {
            Answer::Nothing => Ok(py.None().into_bound(py)),
            Answer::Whether(answer) => answer.into_bound_py_any(py),
            Answer::Value(value) => value.map(bytes).into_bound_py_any(py),
            Answer::Values(values) => {
                let values = values.into_iter().map(|value| value.map(bytes));
                Ok(PyList::new(py, values)?.into_any())
            }
            Answer::Records(gives, batch, is_last) => {
                let records = (0..batch.len()).map(|at| batch.give(py, gives, at));
                let records = records.collect::<PyResult<Vec<_>>>()?;
                (PyList::new(py, records)?, is_last).into_bound_py_any(py)
            }
        }
    }
}

type Pending = Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send>>;

/// An operation under way, which goes on if this is forgotten.
#[pyclass(frozen, module = "isobath._native")]
pub(crate) struct Operation {
    /// Taken at once, while the GIL is held; `None` once it has ended.
    pending: Mutex<Option<Pending>>,
}

impl Operation {
    pub(crate) fn new(
        answer: impl Future<Output = Result<Answer, Failure>> + Send + 'static,
    ) -> Operation {
        Operation {
            pending: Mutex::new(Some(Box::pin(answer))),
        }
    }
}

#[pymethods]
impl Operation {
    /// A tuple of the answer; or `None`, and `completions` gets `number` later.
    fn poll<'py>(
        &self,
        py: Python<'py>,
        completions: &Bound<'py, Completions>,
        number: u64,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let waker = Waker::from(Arc::new(Waiter {
            queue: Arc::clone(&completions.get().queue),
            number,
        }));
        let polled = {
            let mut pending = self.pending.lock();
            let future = pending.as_mut().ok_or(Failure::Ended)?;
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            if polled.is_ready() {
                *pending = None;
            }
            polled
        };
        match polled {
            Poll::Pending => Ok(None),
            Poll::Ready(answer) => Ok(Some(PyTuple::new(py, [answer?.give(py)?])?)),
        }
    }
}

/// Numbers of operations that have ended, for one event loop.
struct Queue {
    ended: Mutex<Vec<u64>>,
    /// Has a byte if `ended` became non-empty.
    wakes: UnixStream,
}

struct Waiter {
    queue: Arc<Queue>,
    number: u64,
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        let was_empty = {
            let mut ended = self.queue.ended.lock();
            ended.push(self.number);
            ended.len() == 1
        };
        if was_empty {
            // The socket is full only if the loop is to wake anyhow, and closed only with it.
            let _ = (&self.queue.wakes).write(&[1]);
        }
    }
}

/// What an event loop reads to learn which operations have ended.
#[pyclass(frozen, module = "isobath._native")]
pub(crate) struct Completions {
    queue: Arc<Queue>,
    woken: UnixStream,
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> io::Result<Completions> {
        let (woken, wakes) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        Ok(Completions {
            queue: Arc::new(Queue {
                ended: Mutex::new(Vec::new()),
                wakes,
            }),
            woken,
        })
    }

    fn fileno(&self) -> i32 {
        self.woken.as_raw_fd()
    }

    /// The numbers of operations that have ended since the last call.
    fn take(&self) -> Vec<u64> {
        // The bytes first: one that is written later belongs to numbers that are taken later, or
        // wakes the loop once too often.
        let mut bytes = [0; 64];
        while matches!((&self.woken).read(&mut bytes), Ok(64)) {}
        std::mem::take(&mut *self.queue.ended.lock())
    }
}
