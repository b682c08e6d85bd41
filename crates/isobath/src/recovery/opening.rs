//! Facts found when the store was opened.

use std::sync::Arc;

use super::Beside;
#[cfg(any(test, feature = "simulation"))]
use super::compare::Layout;
use crate::shared::Shared;
use crate::sync::Mutex;
#[cfg(any(test, feature = "simulation"))]
use crate::sync::OnceLock;

/// How the store was opened.
pub(crate) struct Opening {
    /// See [`Opening::reads_beside`].
    pub(super) beside: Mutex<Option<Beside>>,
    /// The store's layout when it was closed.
    #[cfg(any(test, feature = "simulation"))]
    layout: OnceLock<Layout>,
    pub(super) shared: Arc<Shared>,
}

impl Opening {
    pub(crate) fn new(shared: &Arc<Shared>) -> Opening {
        Opening {
            beside: Mutex::default(),
            #[cfg(any(test, feature = "simulation"))]
            layout: OnceLock::new(),
            shared: Arc::clone(shared),
        }
    }

    /// Lets go of what a reader beside a writer pins.
    pub(crate) fn release(&self) {
        self.beside.lock().take();
    }

    /// Notes the store's layout, for a comparison with the drive.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn note_layout(&self, layout: Layout) {
        // Only the first one counts.
        let _ = self.layout.set(layout);
    }

    /// The store's layout when it was closed.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn closed_layout(&self) -> Option<&Layout> {
        self.layout.get()
    }
}
