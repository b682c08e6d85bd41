//! Changing the volume's length while the worker's other tasks run (docs/decisions/0031).
//!
//! A file system takes milliseconds to seconds to allocate space or to give it back, and to flush
//! what it has noted about that. These calls block, so a thread makes them, which lives as long as
//! one call. The task that needs the call waits for its end as for an I/O. One task at a time
//! resizes the volume; others that need it longer wait in the same queue.
//!
//! The order of steps, and what each is for:
//!
//! | first | then | else |
//! | --- | --- | --- |
//! | files longer, durably ([`isobath_io::Volume::grow`]) | labels say so, durably (the same call) | a label speaks of more than there is, and the volume does not open |
//! | labels durable | segments handed out ([`SegmentAllocator::grow`](crate::pagestore::SegmentAllocator::grow)) | the log and superblocks name places that the volume does not have (canary `UseSpaceEarly`) |
//! | zeros written | segments handed out | zeros overwrite pages (canary `InitializeLate`) |
//! | segments handed out | capacity raised, waiters woken | waiters look too early, and sleep on |
//! | nothing named behind the new end | labels say so, then files cut ([`isobath_io::Volume::shrink`]) | `checkpoint/shrink.rs` |
//! | thread ended | files released by closing | the next opening finds them locked |
//!
//! A task that resizes the volume waits for the drive alone: for no page, no segment, no space in
//! the log and no other task. So tasks may wait for it whatever they hold across waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use isobath_io::{Volume, VolumeError};

use crate::error::StorageError;
use crate::error::panic_message;
use crate::pagestore::PageStore;
use crate::runtime::{WaitQueue, Worker};
use crate::shared::Shared;
use crate::small;
use crate::sync::Mutex;

/// In simulations, a call takes so long at most.
#[cfg(any(test, feature = "simulation"))]
const SIMULATED_CALL: std::time::Duration = std::time::Duration::from_millis(4);

/// A blocking call that changes the volume's length.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resize {
    /// Makes the volume at least this many bytes long.
    Grow(u64),
    /// Cuts off what it has behind this byte.
    Shrink(u64),
}

impl Resize {
    fn call(self, volume: &Volume) -> Result<(), VolumeError> {
        match self {
            Resize::Grow(bytes) => volume.grow(bytes),
            Resize::Shrink(bytes) => volume.shrink(bytes),
        }
    }

    /// The same, where a panic of the device is an error: a task waits for the answer.
    fn call_and_catch(self, volume: &Volume) -> Result<(), VolumeError> {
        let result = catch_unwind(AssertUnwindSafe(|| self.call(volume)));
        result.unwrap_or_else(|payload| {
            let message = panic_message(&*payload);
            Err(VolumeError::Device(format!(
                "resizing the volume: {message}"
            )))
        })
    }
}

/// Which task resizes the volume, and what is known to have no room.
pub(crate) struct Resizing {
    state: Mutex<ResizeState>,
    /// Tasks that wait for the end of a call, or for their turn.
    waiters: Arc<WaitQueue>,
    /// The thread of the newest call.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct ResizeState {
    is_running: bool,
    /// How often a task began to resize the volume.
    turns: u64,
    refusal: Option<Refusal>,
}

/// The volume found no room for this length in this turn.
struct Refusal {
    turn: u64,
    segments: u32,
    reason: Arc<VolumeError>,
}

impl Resizing {
    pub(crate) fn new() -> Resizing {
        Resizing {
            state: Mutex::default(),
            waiters: Arc::new(WaitQueue::new()),
            thread: Mutex::default(),
        }
    }

    /// How many tasks wait for that.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(super) fn waiters(&self) -> usize {
        self.waiters.waiters()
    }

    /// Whether a task resizes the volume now.
    pub(crate) fn is_running(&self) -> bool {
        self.state.lock().is_running
    }

    /// Has the tasks that wait for their turn look again once a write has failed.
    pub(super) fn wake_on_poison(&self, shared: &Shared) {
        let waiters = Arc::clone(&self.waiters);
        shared.on_poison(move || waiters.wake_all());
    }

    /// Waits until the thread of the last call has ended; blocks.
    pub(crate) fn join(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // It has caught what could panic.
            let _ = thread.join();
        }
    }
}

/// The right to resize the volume, until it is dropped.
pub(crate) struct Turn<'e> {
    resizing: &'e Resizing,
    number: u64,
    /// The turn that was under way when this one was asked for; this one if there was none.
    asked_in: u64,
}

impl Turn<'_> {
    /// Why there is no room for `segments` segments, if another task has found that out since this
    /// turn was asked for.
    pub(crate) fn refused(&self, segments: u32) -> Option<Arc<VolumeError>> {
        let state = self.resizing.state.lock();
        let refusal = state.refusal.as_ref()?;
        let counts = refusal.turn >= self.asked_in && refusal.segments <= segments;
        counts.then(|| Arc::clone(&refusal.reason))
    }

    /// Tells the tasks that wait for their turn that there is no room for `segments` segments.
    pub(crate) fn note_refusal(&self, segments: u32, reason: Arc<VolumeError>) {
        self.resizing.state.lock().refusal = Some(Refusal {
            turn: self.number,
            segments,
            reason,
        });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.resizing.state.lock().is_running = false;
        self.resizing.waiters.wake_all();
    }
}

/// Starts the thread of a call.
fn start(work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    #[cfg(test)]
    if tests::NO_THREADS.get() {
        return Err(std::io::ErrorKind::WouldBlock.into());
    }
    let thread = std::thread::Builder::new().name("isobath-resize".to_owned());
    #[allow(
        clippy::disallowed_methods,
        reason = "a call that blocks for long, of which no simulation has any"
    )]
    thread.spawn(work)
}

impl PageStore {
    /// Waits for the right to resize the volume; `None` once `is_met` says that there is no need
    /// to.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(crate) fn begin_resizing(
        &self,
        worker: &Worker,
        is_met: impl Fn() -> bool,
    ) -> Result<Option<Turn<'_>>, StorageError> {
        debug_assert!(worker.in_task(), "only tasks wait");
        let (resizing, shared) = (&self.resizing, &self.lower.shared);
        let mut asked_in = None;
        loop {
            if is_met() {
                return Ok(None);
            }
            shared.writable()?;
            let mut state = resizing.state.lock();
            if !state.is_running {
                state.is_running = true;
                state.turns += 1;
                let turn = Turn {
                    resizing,
                    number: state.turns,
                    asked_in: asked_in.unwrap_or(state.turns),
                };
                drop(state);
                // The task that had the turn before may have ended the need since that was looked
                // at.
                return Ok((!is_met()).then_some(turn));
            }
            asked_in.get_or_insert(state.turns);
            drop(state);
            resizing
                .waiters
                .wait(worker, 0, || !resizing.is_running() || shared.is_poisoned());
        }
    }

    /// Waits for the right to resize the volume.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(crate) fn resizing_turn(&self, worker: &Worker) -> Result<Turn<'_>, StorageError> {
        loop {
            if let Some(turn) = self.begin_resizing(worker, || false)? {
                return Ok(turn);
            }
        }
    }

    /// Changes the volume's length while the other tasks of this worker run.
    ///
    /// # Errors
    ///
    /// Those of [`Volume::grow`] and [`Volume::shrink`].
    pub(crate) fn resize(
        &self,
        worker: &Worker,
        turn: &Turn<'_>,
        volume: &Volume,
        resize: Resize,
    ) -> Result<(), VolumeError> {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(time) = worker.draw_time(SIMULATED_CALL) {
            // A simulation has one thread. Power cuts and other tasks come before or after the
            // call's effect.
            let now = crate::runtime::clock::now();
            worker.sleep_until(now + time / 2);
            let result = resize.call(volume);
            worker.sleep_until(now + time);
            return result;
        }
        let resizing = turn.resizing;
        let answer: Arc<Mutex<Option<Result<(), VolumeError>>>> = Arc::default();
        let work = {
            let (answer, volume) = (Arc::clone(&answer), volume.clone());
            let waiters = Arc::clone(&resizing.waiters);
            move || {
                let result = resize.call_and_catch(&volume);
                // The thread holds no file any more when the task goes on.
                drop(volume);
                *answer.lock() = Some(result);
                waiters.wake_all();
            }
        };
        // The thread of the call before has no more to do than to end.
        resizing.join();
        match start(small::inherited(work)) {
            Ok(thread) => *resizing.thread.lock() = Some(thread),
            // Where the system gives no thread, the worker stands still.
            Err(_) => return resize.call(volume),
        }
        loop {
            if let Some(result) = answer.lock().take() {
                return result;
            }
            let has_ended = || answer.lock().is_some();
            resizing.waiters.wait(worker, 0, has_ended);
        }
    }

    /// Whether the volume's length is being changed, which may take a slow file system long.
    pub(crate) fn is_resizing(&self) -> bool {
        self.resizing.is_running()
    }

    /// Waits until no thread uses the volume; the workers have ended.
    pub(crate) fn end_resizing(&self) {
        self.resizing.join();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Options, Store};

    thread_local! {
        /// As if the system gave no thread, to the worker of this thread.
        pub(crate) static NO_THREADS: Cell<bool> = const { Cell::new(false) };
    }

    #[test]
    fn a_worker_without_a_thread_resizes_the_volume_itself() {
        let options = Options::new()
            .pool_bytes(8 << 20)
            .segment_bytes(64 << 10)
            .log_bytes(4 << 20)
            .workers(1);
        let store = Store::create_on_volume(Volume::in_memory(0, None), &options).unwrap();
        store.spawn(|| NO_THREADS.set(true)).join().unwrap();
        let tree = store.create_tree("t").unwrap();
        let before = store.stats().volume_bytes;
        for n in 0..6000 {
            tree.insert(format!("{n:05}"), [7; 900]).unwrap();
        }
        assert!(store.stats().volume_bytes > before);
        let engine = store.runtime().engine().unwrap();
        assert!(
            engine.pagestore.resizing.thread.lock().is_none(),
            "a thread was had"
        );
        assert_eq!(tree.get("05999").unwrap().as_deref(), Some(&[7; 900][..]));
        store.close().unwrap();
    }
}
