//! A result that may be incomplete: the part that could be read.

use crate::Error;

/// What a reading has found, and the error that ended it early, if one did. The one cannot be had
/// without a word on the other: a part that is taken for the whole is a wrong answer.
#[must_use]
pub(crate) struct AsFar<T> {
    found: T,
    ended_by: Option<Error>,
}

impl<T> AsFar<T> {
    pub(crate) fn new(found: T, ended_by: Option<Error>) -> AsFar<T> {
        AsFar { found, ended_by }
    }

    /// All that there is to read.
    ///
    /// # Errors
    ///
    /// The one that ended the reading early.
    pub(crate) fn whole(self) -> Result<T, Error> {
        self.ended_by.map_or(Ok(self.found), Err)
    }

    /// What was found, and why there is no more, for a caller that reports that.
    pub(crate) fn with_reason(self) -> (T, Option<Error>) {
        (self.found, self.ended_by)
    }
}
