//! How long work reports progress and learns that it should stop.

use crate::LabError;

/// The unit of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Records, files, pages.
    Items,
    /// Milliseconds.
    Milliseconds,
}

/// A named part of long work.
#[derive(Debug, Clone, Copy)]
pub struct Stage {
    /// The stage's name: "loading files".
    pub name: &'static str,
    /// Its total, if that is known, in `unit`.
    pub total: Option<u64>,
    /// The unit.
    pub unit: Unit,
}

/// Watches long work; called from several threads. What it does not define shows nothing.
pub trait Monitor: Sync {
    /// A new stage begins; the one before it has ended.
    fn begin(&self, _: Stage) {}
    /// The present stage went on by so much of its unit.
    fn advance(&self, _: u64) {}
    /// One line that the user should read now.
    fn say(&self, _: &str) {}
    /// Whether the user asked to stop.
    fn cancelled(&self) -> bool {
        false
    }

    /// An error once the user asked to stop.
    ///
    /// # Errors
    /// [`LabError::Interrupted`].
    fn check(&self) -> Result<(), LabError> {
        if self.cancelled() {
            return Err(LabError::Interrupted);
        }
        Ok(())
    }
}

/// A monitor that shows nothing and never stops the work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Monitor for Silent {}

/// Shows nothing of work that stands beside other work, and ends it as that is ended.
pub(crate) struct Unseen<'m>(pub(crate) &'m dyn Monitor);

impl Monitor for Unseen<'_> {
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}
