//! Lines of `key<TAB>value`.

use std::path::Path;

use isobath::Tree;

use super::{Input, Loaded, OnBad, Sink};
use crate::{LabError, Monitor};

/// Loads lines of `key<TAB>value` from a file, or from standard input where
/// `from` is `None`. The first tab separates; a later line replaces an earlier
/// one of the same key; empty lines are ignored.
///
/// # Errors
/// A line without a tab or with too long a key, unless bad records are
/// skipped; engine and I/O errors.
pub fn load_lines(
    tree: &Tree,
    from: Option<&Path>,
    on_bad: OnBad,
    monitor: &dyn Monitor,
) -> Result<Loaded, LabError> {
    let mut input = Input::open(from)?;
    input.begin(monitor);
    let mut sink = Sink::new(tree, &input.path, on_bad, monitor)?;
    let mut line = Vec::new();
    let mut number = 0;
    while input.line(&mut line)? {
        number += 1;
        monitor.advance(line.len() as u64 + 1);
        monitor.check()?;
        if line.is_empty() {
            continue;
        }
        match line.iter().position(|b| *b == b'\t') {
            Some(at) => sink.store(number, &line[..at], &line[at + 1..])?,
            None => sink.bad(number, "there is no tab between key and value")?,
        }
    }
    sink.finish()
}
