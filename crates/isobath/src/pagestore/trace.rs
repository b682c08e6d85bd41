//! Observers of page writes.

/// Receives the page writes of a store, in the order in which the store accounts for them; see
/// [`Store::trace_pages`](crate::Store::trace_pages).
///
/// The calls come under a lock that every writer takes: an implementation only records its
/// arguments.
pub trait PageTrace: Send {
    /// Page number `page` was written because it changed. Not called for pages that the cleaner
    /// moves.
    fn written(&mut self, page: u64);
    /// Page number `page` exists no longer; the number may come back as another page's.
    fn freed(&mut self, page: u64);
}
