//! The thread that runs callbacks if the program does not poll.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;

use crossbeam_queue::SegQueue;

use super::{Port, Request, generation};

thread_local! {
    /// This thread runs a callback: what it submits must not wait for completions, which only it
    /// hands over.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs a callback of the library.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.with(Cell::get)
}

/// Runs a callback.
pub(crate) fn run_callback(callback: impl FnOnce()) {
    let outer = IN_CALLBACK.with(|inside| inside.replace(true));
    callback();
    IN_CALLBACK.with(|inside| inside.set(outer));
}

/// Ports that have completions.
pub(crate) struct ReadyPorts<R> {
    /// Each port is in here once at most.
    ports: SegQueue<Arc<Port<R>>>,
    thread: std::sync::OnceLock<std::thread::Thread>,
    is_asleep: AtomicBool,
    has_ended: AtomicBool,
}

impl<R: Request> ReadyPorts<R> {
    pub(super) fn add(&self, port: &Arc<Port<R>>) {
        if !port.is_listed.swap(true, Ordering::AcqRel) {
            self.ports.push(Arc::clone(port));
            self.wake();
        }
    }

    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.is_asleep.swap(false, Ordering::AcqRel)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    fn serve(&self, complete: &impl Fn(R)) {
        // Bound: until the device is closed.
        loop {
            while let Some(port) = self.ports.pop() {
                // Before it is polled: what completes later lists it again.
                port.is_listed.store(false, Ordering::Release);
                fence(Ordering::SeqCst);
                while let Some(request) = port.poll() {
                    run_callback(|| complete(request));
                }
            }
            if self.has_ended.load(Ordering::Acquire) {
                return;
            }
            self.is_asleep.store(true, Ordering::Release);
            fence(Ordering::SeqCst);
            if self.ports.is_empty() && !self.has_ended.load(Ordering::Acquire) {
                std::thread::park();
            }
            self.is_asleep.store(false, Ordering::Release);
        }
    }
}

/// A thread that hands results over as they come.
pub(crate) struct CompletionThread<R> {
    ready: Arc<ReadyPorts<R>>,
    thread: Option<JoinHandle<()>>,
    /// Of the process that has the thread.
    generation: u32,
}

impl<R: Request> CompletionThread<R> {
    /// Starts the thread, which calls `complete` with each result.
    pub(crate) fn start(
        complete: impl Fn(R) + Send + 'static,
    ) -> std::io::Result<CompletionThread<R>> {
        let ready = Arc::new(ReadyPorts {
            ports: SegQueue::new(),
            thread: std::sync::OnceLock::new(),
            is_asleep: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        });
        let served = Arc::clone(&ready);
        let thread = std::thread::Builder::new()
            .name("isobath-complete".to_owned())
            .spawn(move || {
                // It is set once, here.
                let _ = served.thread.set(std::thread::current());
                served.serve(&complete);
            })?;
        Ok(CompletionThread {
            ready,
            thread: Some(thread),
            generation: generation(),
        })
    }

    /// Whether the calling thread is this one: what it waits for nothing else would hand over.
    pub(crate) fn is_current(&self) -> bool {
        let id = self.thread.as_ref().map(|thread| thread.thread().id());
        id == Some(std::thread::current().id())
    }

    /// Hands over completions, and ends the thread. In one of its own callbacks it does not
    /// wait for it.
    pub(crate) fn stop(&mut self) {
        let Some(thread) = self.take() else {
            return;
        };
        self.ready.has_ended.store(true, Ordering::Release);
        self.ready.wake();
        thread.thread().unpark();
        if thread.thread().id() != std::thread::current().id() {
            // A callback cannot unwind: the thread ends as it should.
            let _ = thread.join();
        }
    }
}

impl<R> CompletionThread<R> {
    /// The thread, but in a forked child, which has none: there its handle must not be used, not
    /// even to drop it.
    fn take(&mut self) -> Option<JoinHandle<()>> {
        let thread = self.thread.take()?;
        if self.generation == generation() {
            return Some(thread);
        }
        std::mem::forget(thread);
        None
    }

    /// The ports with completions, for the threads that complete requests.
    pub(crate) fn ready(&self) -> Arc<ReadyPorts<R>> {
        Arc::clone(&self.ready)
    }
}

impl<R> Drop for CompletionThread<R> {
    fn drop(&mut self) {
        self.ready.has_ended.store(true, Ordering::Release);
        if let Some(thread) = self.take() {
            thread.thread().unpark();
        }
    }
}
