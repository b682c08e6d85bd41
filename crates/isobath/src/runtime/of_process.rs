//! Values that only the process that made them may touch.

use crate::error::StorageError;

/// A value of the process that made it. A child that was forked since has a copy of it, whose locks
/// other threads of the parent may hold and whose workers do not exist: the child cannot reach it,
/// and forgets it instead of dropping it.
pub(crate) struct OfProcess<T> {
    /// `None` only after it was dropped.
    value: Option<T>,
    generation: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> OfProcess<T> {
        OfProcess {
            value: Some(value),
            generation: isobath_io::generation(),
        }
    }

    /// Whether this is a child that was forked from the process that made it.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.generation != isobath_io::generation()
    }

    /// The value.
    ///
    /// # Errors
    ///
    /// [`StorageError::Forked`] in a child.
    #[inline]
    pub(crate) fn get(&self) -> Result<&T, StorageError> {
        match &self.value {
            Some(value) if !self.is_forked() => Ok(value),
            _ => Err(StorageError::Forked),
        }
    }

    /// As [`OfProcess::get`].
    ///
    /// # Errors
    ///
    /// [`StorageError::Forked`] in a child.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> Result<&mut T, StorageError> {
        let is_forked = self.is_forked();
        match &mut self.value {
            Some(value) if !is_forked => Ok(value),
            _ => Err(StorageError::Forked),
        }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_forked() {
            std::mem::forget(self.value.take());
        }
    }
}
