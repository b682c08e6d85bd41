//! Some campaign makes each call of the engine's interface: read from the sources of both. A call
//! that none makes fails the test, unless [`LEFT_OUT`] says why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The campaigns, and where they make their calls.
const CAMPAIGNS: [(&str, &[&str]); 4] = [
    ("clients", &["xtask/src/clients"]),
    ("simulate", &["xtask/src/simulate"]),
    ("processes", &["xtask/src/processes"]),
    ("sequences", &["crates/isobath-cli/tests/sequences"]),
];

/// Types that hold settings or reports, and no data.
const SETTINGS: &[&str] = &[
    "CheckReport",
    "CompareAndSwapError",
    "Options",
    "Stat",
    "Stats",
    "TransactionOptions",
    "TreeInfo",
    "TreeStats",
];

/// Calls that no campaign makes, and why none has to.
const LEFT_OUT: &[(&str, &str)] = &[
    ("Tree::keys_async", "`Tree::keys` in tasks"),
    (
        "Store::changes_beside",
        "`Store::changes`, where the engine's tests read a store beside its writer",
    ),
    (
        "Store::changes_beside_on_volume",
        "`Store::changes_beside` of the engine's tests",
    ),
    ("Changes::stop_handle", "ends a wait; no simulation waits"),
    ("ChangesStop", "ends a wait; no simulation waits"),
    (
        "Committed::records_behind",
        "`Committed::records`, behind a key",
    ),
    ("Store::begin", "`Store::begin_with` with its defaults"),
    ("Store::backup_to", "`Store::backup` with its defaults"),
    ("Store::info", "a report; changes nothing"),
    ("Loader", "what `Tree::load` does, step by step"),
    ("Tree::loader", "what `Tree::load` does, step by step"),
    (
        "TypedTree",
        "calls of `Tree` with encoded keys; the encoding has tests of its own",
    ),
    ("Tree::typed", "makes a `TypedTree`"),
    ("Tree::name", "says nothing of the data"),
    ("Tree::clear_async", "`Tree::clear` in a task"),
    ("Tree::iter_async", "`Tree::range_async` of everything"),
    (
        "Tree::range_async",
        "`Tree::range` in tasks, behind a stream that has tests of its own",
    ),
    ("Tree::prefix_async", "`Tree::range_async` of a prefix"),
    (
        "Transaction::commit_async",
        "`Transaction::commit` in a task",
    ),
    ("Store::transact_async", "`Store::transact` in a task"),
    ("Store::open_on_volume", "`Simulation::open` does the same"),
    ("Store::create_on_volume", "`Simulation::new` does the same"),
    (
        "Store::in_memory",
        "`Simulation::new` on a volume in memory",
    ),
    ("Store::open_or_create", "`Store::open` or `Store::create`"),
    (
        "Store::needs_recovery",
        "reads superblocks and nothing else",
    ),
    (
        "Store::undo_creation",
        "removes the files of a store that was just made",
    ),
    ("Store::trace_pages", "hands on what was written"),
    ("Store::workers", "says nothing of the data"),
    ("Store::log_path", "says nothing of the data"),
    ("Store::paths", "says nothing of the data"),
    ("Store::holds", "says nothing of the data"),
    (
        "Store::output_file",
        "opens files that are none of the store's",
    ),
    (
        "Store::spawn_on",
        "`Store::spawn`; simulations place all clients by it",
    ),
    ("ValueReader::is_empty", "`ValueReader::len`"),
    ("ValueWriter::is_empty", "`ValueWriter::len`"),
    ("ValueWriter::len", "known by the caller"),
    ("TransactionWriter::is_empty", "`TransactionWriter::len`"),
    ("TransactionWriter::len", "known by the caller"),
    ("WriteBatch::clear", "empties a list of the caller's"),
    ("WriteBatch::is_empty", "`WriteBatch::len`"),
];

/// Names that campaigns give to values, and the types that these have.
const RECEIVERS: &[(&str, &str)] = &[
    ("store", "Store"),
    ("tree", "Tree"),
    ("trees", "Tree"),
    ("main", "Tree"),
    ("shared", "Tree"),
    ("transaction", "Transaction"),
    ("running", "Transaction"),
    ("reads", "Transaction"),
    ("snapshot", "Transaction"),
    ("batch", "WriteBatch"),
    ("changes", "Changes"),
    ("committed", "Committed"),
    ("loader", "Loader"),
];

/// The calls that make values named `writer` and `reader`.
const MADE: &[(&str, &str, &str)] = &[
    ("writer", "Tree::writer", "ValueWriter"),
    ("writer", "Transaction::writer", "TransactionWriter"),
    ("reader", "Tree::reader", "ValueReader"),
    ("reader", "Transaction::reader", "ValueReader"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of a source, or of all sources below a folder.
fn sources(path: &Path, into: &mut Vec<String>) {
    if path.is_file() {
        into.extend(std::fs::read_to_string(path));
        return;
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() || path.extension().is_some_and(|end| end == "rs") {
            sources(&path, into);
        }
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The name that a text begins with.
fn first_name(text: &str) -> &str {
    &text[..text.find(|c| !is_name(c)).unwrap_or(text.len())]
}

/// The name that a text ends with, but for indices, arguments and question marks.
fn last_name(text: &str) -> &str {
    let mut depth = 0;
    let mut end = 0;
    for (at, c) in text.char_indices().rev() {
        match c {
            ')' | ']' => depth += 1,
            '(' | '[' if depth > 0 => depth -= 1,
            '?' => {}
            _ if depth > 0 => {}
            _ => {
                end = at + c.len_utf8();
                break;
            }
        }
    }
    let text = &text[..end];
    let begin = text.rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
    &text[begin..]
}

/// Public types of the engine's interface that have data.
fn types() -> BTreeSet<String> {
    let lib = std::fs::read_to_string(root().join("crates/isobath/src/lib.rs"));
    let lib = lib.unwrap_or_default();
    let list = lib
        .split_once("pub use api::{")
        .and_then(|(_, rest)| rest.split_once('}'));
    let names = list.map_or("", |(list, _)| list).split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty() && !SETTINGS.contains(name))
        .map(str::to_owned)
        .collect()
}

/// All calls, as `Type::name`.
fn interface() -> BTreeSet<String> {
    let types = types();
    let mut texts = Vec::new();
    sources(&root().join("crates/isobath/src/api"), &mut texts);
    let mut calls = BTreeSet::new();
    for text in &texts {
        let mut of = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("impl") {
                let rest = match rest.starts_with('<') {
                    true => rest.split_once("> ").map_or("", |(_, rest)| rest),
                    false => rest.trim_start(),
                };
                // A trait's calls are the trait's.
                of = if rest.contains(" for ") {
                    ""
                } else {
                    first_name(rest)
                };
            }
            let call = ["    pub fn ", "    pub const fn ", "    pub async fn "]
                .iter()
                .find_map(|start| line.strip_prefix(start));
            if let Some(call) = call.filter(|_| types.contains(of)) {
                calls.insert(format!("{of}::{}", first_name(call)));
            }
        }
    }
    calls
}

/// The calls of `interface` that sources make.
fn made_by(places: &[&str], interface: &BTreeSet<String>) -> BTreeSet<String> {
    let mut texts = Vec::new();
    for place in places {
        sources(&root().join(place), &mut texts);
    }
    let mut made = BTreeSet::new();
    let mut by_others = Vec::new();
    for text in texts {
        // Chains of calls are one line.
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ").replace(" .", ".").replace("( ", "(");
        for (at, _) in text.match_indices('(') {
            let name = last_name(&text[..at]);
            let before = &text[..at - name.len()];
            if let Some(receiver) = before.strip_suffix('.') {
                let receiver = last_name(receiver);
                let types = RECEIVERS.iter().filter(|(name, _)| *name == receiver);
                made.extend(types.map(|(_, of)| format!("{of}::{name}")));
                by_others.push((receiver.to_owned(), name.to_owned()));
            } else if let Some(of) = before.strip_suffix("::") {
                made.insert(format!("{}::{name}", last_name(of)));
            }
        }
    }
    for (receiver, name) in by_others {
        for (value, maker, of) in MADE {
            if *value == receiver && made.contains(*maker) {
                made.insert(format!("{of}::{name}"));
            }
        }
    }
    made.intersection(interface).cloned().collect()
}

/// Why no campaign has to make a call, or any of its type.
fn left_out(call: &str) -> Option<&'static str> {
    let of = call.split("::").next().unwrap_or(call);
    let found = LEFT_OUT
        .iter()
        .find(|(name, _)| *name == call || *name == of);
    found.map(|(_, why)| *why)
}

/// Each call, with the campaigns that make it.
fn matrix() -> BTreeMap<String, Vec<&'static str>> {
    let interface = interface();
    let mut matrix: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for call in &interface {
        matrix.insert(call.clone(), Vec::new());
    }
    for (campaign, places) in CAMPAIGNS {
        for call in made_by(places, &interface) {
            matrix.entry(call).or_default().push(campaign);
        }
    }
    matrix
}

#[test]
fn some_campaign_makes_every_call() {
    let matrix = matrix();
    assert!(matrix.len() > 80, "only {} calls were found", matrix.len());
    for (call, campaigns) in &matrix {
        assert!(
            !campaigns.is_empty() || left_out(call).is_some(),
            "no campaign makes the call `{call}`. Make it in xtask/src/clients/calls.rs, and record what it has read and changed \
             there; or say in LEFT_OUT of xtask/src/api.rs why no campaign has to."
        );
    }
}

#[test]
fn what_is_left_out_is_made_by_no_campaign_and_exists() {
    let matrix = matrix();
    for (name, why) in LEFT_OUT {
        let of_it = |call: &&String| *call == name || call.starts_with(&format!("{name}::"));
        let mut calls = matrix.keys().filter(of_it).peekable();
        assert!(calls.peek().is_some(), "there is no {name}");
        assert!(!why.is_empty());
        for call in calls {
            assert!(
                matrix[call].is_empty(),
                "{call} is made by {:?}",
                matrix[call]
            );
        }
    }
}

/// Options of a store that neither C nor Python has, and why.
#[cfg(test)]
const NOT_BY_NAME: &[(&str, &str)] = &[("on_recovery", "a function, called during opening")];

#[test]
fn every_option_is_known_to_c_and_python() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let options = read("crates/isobath/src/api/options.rs");
    let starts = options.match_indices("    pub fn ");
    let names = starts.filter_map(|(at, start)| {
        let rest = &options[at + start.len()..];
        let name = first_name(rest);
        rest[name.len()..].starts_with("(mut self").then_some(name)
    });
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 20, "only {names:?} were found");
    for path in [
        "crates/isobath-capi/src/abi/options.rs",
        "python/src/options.rs",
    ] {
        let known = read(path);
        let is_left_out = |name: &&str| NOT_BY_NAME.iter().any(|(left_out, _)| left_out == name);
        let unknown = |name: &&str| !known.contains(&format!("\"{name}\" =>"));
        let unknown: Vec<_> = names
            .iter()
            .filter(|name| !is_left_out(name) && unknown(name))
            .collect();
        assert!(unknown.is_empty(), "{path} does not know {unknown:?}");
    }
}

#[test]
fn calls_are_found_by_who_makes_them() {
    assert_eq!(last_name("self.trees[tree.index(7)]"), "trees");
    assert_eq!(last_name("simulation.store()"), "store");
    assert_eq!(last_name("store.begin()?"), "begin");
    let interface = interface();
    for call in ["Tree::update", "Store::compact", "Transaction::rollback_to"] {
        assert!(interface.contains(call), "{call}");
    }
}
