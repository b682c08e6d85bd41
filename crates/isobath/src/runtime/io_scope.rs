//! I/O of a task that borrows its memory, as threads of [`std::thread::scope`] do: when the scope
//! ends, all of it has completed. So code that reads and writes needs no `unsafe`.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::marker::PhantomData;

use isobath_io::{AlignedBuf, Io, IoError};

use super::Worker;

/// The handle that [`Worker::io_scope`] lends to code that starts I/O. Memory that is read or
/// written is borrowed for `'scope`, which ends when every I/O has completed.
pub(crate) struct IoScope<'scope, 'env: 'scope> {
    worker: &'env Worker,
    /// Buffers that were handed over.
    owned: RefCell<Vec<AlignedBuf>>,
    copies: RefCell<Vec<Copied<'scope>>>,
    // Invariant in both, as the scope of threads is: neither may be taken for a shorter one.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A read of more than is wanted.
struct Copied<'scope> {
    from: AlignedBuf,
    skipped: usize,
    into: &'scope mut [u8],
}

/// Ends the process instead of unwinding: the kernel may be using memory that unwinding would free.
struct NoUnwinding;

impl Drop for NoUnwinding {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl<'scope> IoScope<'scope, '_> {
    /// Starts to write `bytes` at byte `at` of the volume. Both are multiples of the device's
    /// block, and so is the address in memory.
    pub(crate) fn write(&'scope self, at: u64, bytes: &'scope [u8]) {
        self.start(Io::write(at, bytes.as_ptr(), length(bytes), 0));
    }

    /// Starts to write all of `buffer`, which lives until it is written.
    pub(crate) fn write_owned(&'scope self, at: u64, buffer: AlignedBuf) {
        let io = Io::write(at, buffer.as_ptr(), length(buffer.as_slice()), 0);
        // The buffer moves, its memory does not.
        self.owned.borrow_mut().push(buffer);
        self.start(io);
    }

    /// Starts to read from byte `at` of the volume; aligned as for [`IoScope::write`].
    pub(crate) fn read(&'scope self, at: u64, into: &'scope mut [u8]) {
        self.start(Io::read(at, into.as_mut_ptr(), length(into), 0));
    }

    /// Starts to read `bytes` bytes from byte `at` of the volume, of which those behind the first
    /// `skipped` are copied to `into` when the scope ends.
    pub(crate) fn read_within(
        &'scope self,
        at: u64,
        bytes: usize,
        skipped: usize,
        into: &'scope mut [u8],
    ) {
        let mut from = AlignedBuf::new(bytes);
        let io = Io::read(at, from.as_mut_ptr(), length(from.as_slice()), 0);
        self.copies.borrow_mut().push(Copied {
            from,
            skipped,
            into,
        });
        self.start(io);
    }

    /// Starts to make all earlier writes durable, of any task.
    pub(crate) fn flush(&self) {
        self.start(Io::flush(0));
    }

    /// Starts to tell the device that it need not keep these bytes.
    pub(crate) fn discard(&self, at: u64, bytes: u32) {
        self.start(Io::discard(at, bytes, 0));
    }

    fn start(&self, io: Io) {
        // SAFETY: what it reads or writes is borrowed for `'scope` or the scope's own, and
        // `io_scope` does not return before `wait_io` has, nor does it unwind.
        unsafe { self.worker.start_io(io) };
    }
}

fn length(bytes: &[u8]) -> u32 {
    debug_assert!(u32::try_from(bytes.len()).is_ok());
    bytes.len() as u32
}

impl Worker {
    /// Runs `start`, which may start any number of I/Os of the running task, and waits until all of
    /// them have completed. A panic of `start` ends the process.
    ///
    /// # Errors
    ///
    /// The first error of any of them; all have completed then, too.
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn io_scope<'env, T>(
        &'env self,
        start: impl for<'scope> FnOnce(&'scope IoScope<'scope, 'env>) -> T,
    ) -> Result<T, IoError> {
        let scope = IoScope {
            worker: self,
            owned: RefCell::default(),
            copies: RefCell::default(),
            scope: PhantomData,
            env: PhantomData,
        };
        let no_unwinding = NoUnwinding;
        let value = start(&scope);
        let result = self.wait_io();
        std::mem::forget(no_unwinding);
        for Copied {
            from,
            skipped,
            into,
        } in scope.copies.borrow_mut().drain(..)
        {
            into.copy_from_slice(&from.as_slice()[skipped..][..into.len()]);
        }
        result.map(|()| value)
    }

    /// Reads from byte `at` of the volume.
    ///
    /// # Errors
    ///
    /// The device's.
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.io_scope(|io| io.read(at, into))
    }

    /// Writes to byte `at` of the volume.
    ///
    /// # Errors
    ///
    /// The device's.
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.io_scope(|io| io.write(at, bytes))
    }

    /// Makes all earlier writes durable, of any task.
    ///
    /// # Errors
    ///
    /// The device's.
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn flush(&self) -> Result<(), IoError> {
        self.io_scope(|io| io.flush())
    }
}
