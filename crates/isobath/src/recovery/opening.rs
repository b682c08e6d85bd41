//! What was found when the store was opened.

use super::Beside;
#[cfg(any(test, feature = "simulation"))]
use super::compare::Layout;
use crate::sync::Mutex;
#[cfg(any(test, feature = "simulation"))]
use crate::sync::OnceLock;

/// How the store was opened.
pub(crate) struct Opening {
    /// See [`Engine::reads_beside`](crate::engine::Engine::reads_beside).
    pub(super) beside: Mutex<Option<Beside>>,
    /// What the store said of itself when it was closed.
    #[cfg(any(test, feature = "simulation"))]
    layout: OnceLock<Layout>,
}

impl Opening {
    pub(crate) fn new() -> Opening {
        Opening {
            beside: Mutex::default(),
            #[cfg(any(test, feature = "simulation"))]
            layout: OnceLock::new(),
        }
    }

    /// Lets go of what a reader beside a writer pins.
    pub(crate) fn release(&self) {
        self.beside.lock().take();
    }

    /// Notes what the store says of itself, for a comparison with what is on the drive.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn note_layout(&self, layout: Layout) {
        let _ = self.layout.set(layout);
    }

    /// What the store said of itself when it was closed.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn closed_layout(&self) -> Option<&Layout> {
        self.layout.get()
    }
}
