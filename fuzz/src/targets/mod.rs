//! The targets of fuzzing.

mod files;
mod text;
mod volume;

use std::path::PathBuf;

use crate::piece::{PAGE_KINDS, Piece, Seal};

/// A valid input.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) bytes: Vec<u8>,
    /// The parts of it that are mutated; the whole of it, if there are none.
    pub(crate) pieces: Vec<Piece>,
    /// It keeps its length.
    pub(crate) is_fixed: bool,
}

impl Input {
    fn whole(bytes: impl Into<Vec<u8>>) -> Input {
        Input {
            bytes: bytes.into(),
            pieces: Vec::new(),
            is_fixed: false,
        }
    }
}

/// Makes a target's valid inputs.
type Inputs = fn() -> Vec<Input>;

/// A reader of files.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) inputs: Inputs,
    pub(crate) run: fn(&[u8]),
}

/// Every target.
pub(crate) fn all() -> Vec<Target> {
    let mut all = Vec::new();
    let volumes: [(&str, &str, Inputs); 7] = [
        ("leaf", "leaves of trees in a store", || {
            volume::inputs(|seal| seal == Seal::Page(1))
        }),
        ("inner", "inner nodes of trees in a store", || {
            volume::inputs(|seal| seal == Seal::Page(2))
        }),
        ("chunk", "chunks of large values in a store", || {
            volume::inputs(|seal| seal == Seal::Page(3))
        }),
        ("summary", "summaries of segments in a store", || {
            volume::inputs(|seal| seal == Seal::Page(4))
        }),
        (
            "checkpoint",
            "pages of a checkpoint: mapping table, segment table",
            || volume::inputs(|seal| seal == Seal::Page(5)),
        ),
        ("superblock", "superblocks of a store", || {
            volume::inputs(|seal| seal == Seal::Superblock)
        }),
        ("log", "records of a store's log", || {
            volume::inputs(|seal| matches!(seal, Seal::Record(_)))
        }),
    ];
    debug_assert_eq!(PAGE_KINDS.len(), 5);
    for (name, about, inputs) in volumes {
        all.push(Target {
            name,
            about,
            inputs,
            run: volume::run,
        });
    }
    all.extend(files::targets());
    all.extend(text::targets());
    all
}

/// The files of the corpus of `target`, if there are any.
fn corpus(target: &str) -> Vec<Input> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let Ok(entries) = root.join("corpus").join(target).read_dir() else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
        .iter()
        .filter_map(|path| std::fs::read(path).ok())
        .map(Input::whole)
        .collect()
}
