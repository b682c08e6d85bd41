//! The Rust blocks of the book, compiled and run as documentation tests.
//!
//! Links and shell blocks are tested in `crates/isobath-cli/tests/command/book.rs`, which has the
//! command.

#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../crates/isobath/README.md")]
    struct Crate;
    #[doc = include_str!("../../../docs/guide.md")]
    struct Guide;
    #[doc = include_str!("../../../docs/threads-and-async.md")]
    struct ThreadsAndAsync;
    #[doc = include_str!("../../../docs/object-store.md")]
    struct ObjectStores;
    #[doc = include_str!("../../../docs/raft.md")]
    struct Raft;
    #[doc = include_str!("../../../docs/advise.md")]
    struct Advise;
}
