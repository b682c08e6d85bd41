//! Waking a channel's [`wait`](crate::Channel::wait) from other threads.

use std::sync::Arc;

/// Something that can end a sleep.
pub trait Wake: Send + Sync {
    /// Ends the sleep of the channel's owner, or its next one if it is awake. Callable from any
    /// thread; any number of wakes may collapse into one.
    fn wake(&self);
}

/// Wakes the owner of a channel. Cheap to clone; may outlive the channel.
#[derive(Clone)]
pub struct Waker(Arc<dyn Wake>);

impl Waker {
    /// A waker over `wake`.
    pub fn new(wake: Arc<dyn Wake>) -> Waker {
        Waker(wake)
    }

    /// Ends the owner's [`wait`](crate::Channel::wait), or its next one if it is not waiting. Costs
    /// one atomic operation while the owner is awake, one system call when it sleeps.
    pub fn wake(&self) {
        self.0.wake();
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waker")
    }
}
