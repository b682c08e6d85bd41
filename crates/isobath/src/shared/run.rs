//! Neighbouring segments.

/// Neighbouring segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Run {
    /// Whether `segment` is one of them.
    pub(crate) fn contains(self, segment: u32) -> bool {
        (self.first..self.first.saturating_add(self.count)).contains(&segment)
    }
}
