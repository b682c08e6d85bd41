//! Observers of page writes.

/// Hears of the page writes of a store, in the order in which the store accounts for them; see
/// [`Store::trace_pages`](crate::Store::trace_pages).
///
/// The calls come under a lock that every writer takes: an implementation only notes what it hears.
pub trait PageTrace: Send {
    /// Page number `page` was written because it changed. What the cleaner moves is not told.
    fn written(&mut self, page: u64);
    /// Page number `page` exists no longer; the number may come back as another page's.
    fn freed(&mut self, page: u64);
}
