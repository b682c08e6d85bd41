//! What a sequence consists of. Every step can be taken in every state, so that any of them can be
//! left out.

use fastrand::Rng;

use super::data::{Batch, Key, Layout, Value};

/// Trees that sequences use.
pub(crate) const TREES: [&str; 3] = ["main", "b", "c c"];

/// A sequence: a store and the steps on it.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) layout: Layout,
    pub(crate) log_bytes: u64,
    pub(crate) separate_log: bool,
    pub(crate) steps: Vec<Step>,
}

/// How a step is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// A process of the command.
    Command,
    /// The same, killed after so many milliseconds.
    Killed(u64),
    /// This process: opening, doing, closing.
    Api,
}

/// A format of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Directory,
    Csv,
    CsvRows,
    Tsv,
    Ndjson,
    Lines,
}

/// A copy of a whole store, or of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copy {
    /// The newest backup, with those that it adds to.
    Backup,
    /// The newest export.
    Export,
    Salvage {
        search: bool,
    },
    /// The files, as `cp` copies them, on another file system if there is one.
    Files,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Put(By, usize, Key, Value),
    /// As a stream.
    PutFile(By, usize, Key, Value),
    Delete(By, usize, Key),
    Get(By, usize, Key),
    Scan {
        by: By,
        tree: usize,
        from: Option<Key>,
        to: Option<Key>,
        reverse: bool,
        limit: Option<usize>,
    },
    Load(By, usize, Format, Batch),
    BulkLoad(usize, Batch),
    CreateTree(By, usize),
    DropTree(By, usize),
    /// Makes every tree's large values garbage, and puts them again.
    Rewrite(usize),
    Export {
        tree: Option<usize>,
    },
    /// Into the store itself.
    Import {
        by: By,
        merge: bool,
    },
    Backup {
        by: By,
        incremental: bool,
    },
    /// Makes a store of a copy and compares it; `adopt` goes on with it.
    Restore {
        copy: Copy,
        adopt: bool,
    },
    Compact(By),
    Stats,
    Check,
}

fn by(rng: &mut Rng) -> By {
    if rng.bool() { By::Command } else { By::Api }
}

/// Changes are killed now and then.
fn by_or_killed(rng: &mut Rng) -> By {
    match rng.u32(..10) {
        0..2 => By::Killed(rng.u64(..60)),
        2..6 => By::Command,
        _ => By::Api,
    }
}

fn by_process(rng: &mut Rng) -> By {
    match rng.u32(..4) {
        0 => By::Killed(rng.u64(..120)),
        _ => By::Command,
    }
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Plan {
        let mut rng = Rng::with_seed(seed);
        let segments = [64 << 10, 128 << 10, 256 << 10, 2 << 20];
        let layout = Layout {
            segment_bytes: segments[rng.usize(..segments.len())],
        };
        let length = rng.usize(5..40);
        Plan {
            layout,
            log_bytes: 4 << 20,
            separate_log: rng.u32(..4) == 0,
            steps: (0..length).map(|_| Step::draw(layout, &mut rng)).collect(),
        }
    }
}

impl Step {
    fn draw(layout: Layout, rng: &mut Rng) -> Step {
        let tree = rng.usize(..TREES.len());
        let key = Key::draw(rng);
        let value = Value::draw(layout, rng);
        match rng.u32(..92) {
            0..13 => Step::Put(by_or_killed(rng), tree, key, value),
            13..23 => Step::PutFile(by_or_killed(rng), tree, key, value),
            23..31 => Step::Delete(by_or_killed(rng), tree, key),
            31..34 => Step::Get(by(rng), tree, key),
            34..37 => Step::Scan {
                by: by(rng),
                tree,
                from: rng.bool().then(|| Key::draw(rng)),
                to: rng.bool().then(|| Key::draw(rng)),
                reverse: rng.bool(),
                limit: rng.bool().then(|| rng.usize(..30)),
            },
            37..47 => {
                let formats = [
                    Format::Directory,
                    Format::Csv,
                    Format::CsvRows,
                    Format::Tsv,
                    Format::Ndjson,
                    Format::Lines,
                ];
                let format = formats[rng.usize(..formats.len())];
                Step::Load(by_process(rng), tree, format, Batch::draw(rng))
            }
            47..54 => Step::BulkLoad(tree, Batch::draw(rng)),
            54..56 => Step::CreateTree(by_or_killed(rng), tree),
            56..60 => Step::DropTree(by_or_killed(rng), tree),
            60..62 => Step::Rewrite(tree),
            62..67 => Step::Export {
                tree: (rng.u32(..4) == 0).then_some(tree),
            },
            67..71 => Step::Import {
                by: by_process(rng),
                merge: rng.u32(..3) > 0,
            },
            71..78 => Step::Backup {
                by: by(rng),
                incremental: rng.bool(),
            },
            78..86 => Step::Restore {
                copy: [
                    Copy::Backup,
                    Copy::Export,
                    Copy::Salvage { search: false },
                    Copy::Salvage { search: true },
                    Copy::Files,
                ][rng.usize(..5)],
                adopt: rng.bool(),
            },
            86..88 => Step::Stats,
            88..91 => Step::Compact(by(rng)),
            _ => Step::Check,
        }
    }
}
