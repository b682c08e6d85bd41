//! The repository's own tools.
mod history;
fn main() {}
