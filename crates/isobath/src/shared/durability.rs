//! When a commit is acknowledged.

/// When a commit is acknowledged. In all three, commits are logged, atomic, and
/// lost in reverse order if at all: after a crash the store holds everything
/// up to some commit, and nothing after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Once it is on the drive, its volatile cache included. Commits of many tasks
    /// share a flush.
    #[default]
    Synced,
    /// At once; it is on the drive at most `window_ms` milliseconds later, and the
    /// time that one flush takes.
    Buffered {
        /// Milliseconds of commits that a crash may lose.
        window_ms: u32,
    },
    /// At once; it is on the drive when something else makes it so: a later synced
    /// commit, much that was logged since, a checkpoint.
    None,
}
