//! Waiting without the GIL, and for ^C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::Failure;

/// How often a waiting call looks for signals, and reports progress.
const INTERVAL: Duration = Duration::from_millis(50);

/// A value whose dropping may wait: it happens without the GIL.
pub(crate) struct Released<T: Send>(Option<T>);

impl<T: Send> Released<T> {
    pub(crate) fn new(value: T) -> Released<T> {
        Released(Some(value))
    }

    /// `None` only while it is dropped.
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T: Send> Drop for Released<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        let mut value = Some(value);
        // No interpreter is left to wait for at its end.
        if Python::try_attach(|py| py.detach(|| drop(value.take()))).is_none() {
            drop(value);
        }
    }
}

/// Shared by long work and the thread that waits for it.
#[derive(Default)]
pub(crate) struct Work {
    done: AtomicU64,
    total: AtomicU64,
    is_stopped: AtomicBool,
}

impl Work {
    /// Tells the waiting thread how much is done of how much; whether the work goes on.
    pub(crate) fn tell(&self, done: u64, total: u64) -> bool {
        self.total.store(total, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
        !self.is_stopped.load(Ordering::Relaxed)
    }
}

/// Reports to an object that has the protocol of tqdm: `total` is set, `update(n)` is called.
pub(crate) struct Progress<'a, 'py> {
    bar: Option<&'a Bound<'py, PyAny>>,
    told: u64,
    total: u64,
}

impl<'a, 'py> Progress<'a, 'py> {
    pub(crate) fn new(bar: Option<&'a Bound<'py, PyAny>>) -> Progress<'a, 'py> {
        Progress {
            bar,
            told: 0,
            total: 0,
        }
    }

    fn report(&mut self, work: &Work) -> PyResult<()> {
        let Some(bar) = self.bar else {
            return Ok(());
        };
        let total = work.total.load(Ordering::Relaxed);
        let done = work.done.load(Ordering::Relaxed);
        if total != self.total {
            self.total = total;
            bar.setattr("total", total)?;
        }
        if done > self.told {
            bar.call_method1("update", (done - self.told,))?;
            self.told = done;
        }
        Ok(())
    }
}

/// Runs long work on a thread of its own. This one releases the GIL, and looks for signals and
/// progress in between. An exception, such as that of ^C, stops work that asks [`Work::tell`], and
/// is raised once that has ended; other work goes on to its end without this call.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    mut progress: Progress<'_, '_>,
    is_stoppable: bool,
    work: impl FnOnce(&Work) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let shared = Arc::new(Work::default());
    let (sender, receiver) = channel();
    let at_work = Arc::clone(&shared);
    std::thread::Builder::new()
        .name("isobath-python".to_owned())
        .spawn(move || {
            let result = work(&at_work);
            // A caller that was interrupted does not wait for it.
            let _ = sender.send(result);
        })?;
    let mut receiver = Released::new(receiver);
    loop {
        let received = py.detach(|| {
            let receiver = receiver.0.as_mut();
            receiver.map(|receiver| receiver.recv_timeout(INTERVAL))
        });
        let interrupted = match received {
            Some(Ok(result)) => {
                let result = result?;
                let total = shared.total.load(Ordering::Relaxed);
                shared.done.store(total, Ordering::Relaxed);
                progress.report(&shared)?;
                return Ok(result);
            }
            Some(Err(RecvTimeoutError::Timeout)) => {
                py.check_signals().and_then(|()| progress.report(&shared))
            }
            _ => return Err(PyRuntimeError::new_err("the work has panicked")),
        };
        if let Err(error) = interrupted {
            shared.is_stopped.store(true, Ordering::Relaxed);
            if is_stoppable {
                py.detach(|| {
                    let receiver = receiver.0.take();
                    // How the interrupted work ended does not matter: the exception is raised.
                    let _ = receiver.map(|receiver| receiver.recv());
                });
            }
            return Err(error);
        }
    }
}
