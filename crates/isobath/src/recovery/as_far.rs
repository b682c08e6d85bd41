//! A result that may be incomplete: the part that could be read.

use crate::error::OpenError;

/// The result of a read, and the error that ended it early, if one did. A caller cannot take the
/// one without handling the other: a part taken for the whole is a wrong answer.
#[must_use]
pub(crate) struct AsFar<T> {
    found: T,
    ended_by: Option<OpenError>,
}

impl<T> AsFar<T> {
    pub(crate) fn new(found: T, ended_by: Option<OpenError>) -> AsFar<T> {
        AsFar { found, ended_by }
    }

    /// All that there is to read.
    ///
    /// # Errors
    ///
    /// The one that ended the reading early.
    pub(crate) fn whole(self) -> Result<T, OpenError> {
        self.ended_by.map_or(Ok(self.found), Err)
    }

    /// The result and the error that ended it, for a caller that reports both.
    pub(crate) fn with_reason(self) -> (T, Option<OpenError>) {
        (self.found, self.ended_by)
    }
}
