//! Imports point downwards: between the crates of the workspace, and between
//! the modules of the engine. A change of these tables is a change of the
//! architecture and belongs into ARCHITECTURE.md too.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read and write files as they like"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate and the crates of ours that it may depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("isobath-io", &[]),
    ("isobath-nvme", &["isobath-io"]),
    ("isobath-flash", &[]),
    ("isobath-model", &["isobath-flash"]),
    ("isobath", &["isobath-io", "isobath-flash", "isobath-model"]),
    (
        "isobath-lab",
        &["isobath", "isobath-io", "isobath-flash", "isobath-model"],
    ),
    ("isobath-files", &["isobath"]),
    ("isobath-object-store", &["isobath"]),
    ("isobath-raft", &["isobath"]),
    (
        "isobath-cli",
        &["isobath", "isobath-files", "isobath-lab", "isobath-nvme"],
    ),
    ("isobath-capi", &["isobath", "isobath-files"]),
];

/// The engine's layers from the lowest to the highest, and the modules of each in the same order. A
/// module may import only those that come before it: so none is below what it imports, and no two
/// import each other.
const LAYERS: &[(&str, &[&str])] = &[
    (
        "base types",
        &[
            "canary", "sync", "trace", "paths", "bounds", "page", "error", "small", "sort", "types",
        ],
    ),
    ("what every part may know", &["shared"]),
    ("workers and tasks", &["runtime"]),
    ("the write-ahead log", &["log"]),
    ("the bytes of a tree's nodes", &["node"]),
    ("records above the pages", &["overlay"]),
    ("pages in memory", &["buffer"]),
    ("room on the volume", &["pagestore"]),
    ("the mapping table on the volume", &["checkpoint"]),
    ("opening", &["recovery"]),
    ("what tasks use", &["context"]),
    ("the B+-tree", &["btree"]),
    ("the door to records", &["levels"]),
    ("large values, transactions", &["extent", "txn"]),
    ("the work on overlays", &["merging"]),
    ("files of people", &["output"]),
    ("the assembly", &["engine"]),
    ("what runs on the assembly", &["backup", "replay"]),
    ("the API", &["api", "salvage", "sim"]),
];

/// Items that `lib.rs` itself defines; they depend on nothing.
const ROOT_ITEMS: &[&str] = &[
    "MAX_KEY_BYTES",
    "MAX_VALUE_BYTES",
    "MAX_TRANSACTION_BYTES",
    "Record",
];

fn crates_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Names of our crates in the `[dependencies]` of a manifest (tests may depend
/// on anything).
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[dependencies]"
                || (line.starts_with("[target.") && line.ends_with(".dependencies]"));
        } else if inside && line.starts_with("isobath") {
            let end = line
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))
                .unwrap_or(line.len());
            found.insert(line[..end].to_owned());
        }
    }
    found
}

/// Names after `crate::` in code that is not a test, with the line's number.
fn imports(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut test_follows = false;
    for (number, line) in source.lines().enumerate() {
        let code = line.trim();
        if code.starts_with("//") {
            continue;
        }
        // Test modules end a file here; nothing below counts.
        if test_follows && code.starts_with("mod ") && code.ends_with('{') {
            break;
        }
        test_follows = code.starts_with("#[cfg(") && code.contains("test");
        for (at, _) in code.match_indices("crate::") {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '$' || c == '_') {
                continue;
            }
            let rest = &code[at + "crate::".len()..];
            if let Some(list) = rest.strip_prefix('{') {
                let list = list.split('}').next().unwrap_or(list);
                found.extend(list.split(',').map(|n| (number + 1, name(n.trim()))));
            } else {
                found.push((number + 1, name(rest)));
            }
        }
    }
    found.retain(|(_, name)| !name.is_empty());
    found
}

fn name(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

/// Maps each item that `lib.rs` re-exports to the module that it comes from.
fn reexports(lib: &str) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    let text = lib.replace('\n', " ");
    for part in text.split("pub use ").skip(1) {
        let part = part.split(';').next().unwrap_or(part);
        let Some((module, items)) = part.split_once("::") else {
            continue;
        };
        for item in items.trim_matches(['{', '}']).split(',') {
            map.insert(name(item.trim()), module.trim().to_owned());
        }
    }
    map
}

/// The layer of a module, and where the module comes in the order of all.
fn place_of(module: &str) -> Option<(&'static str, usize)> {
    let modules = LAYERS
        .iter()
        .flat_map(|(layer, modules)| modules.iter().map(|module| (*layer, *module)));
    let mut places = modules.enumerate();
    places.find_map(|(at, (layer, name))| (name == module).then_some((layer, at)))
}

/// The problems of the imports of one file of the engine.
fn violations(
    file: &str,
    module: &str,
    source: &str,
    reexports: &BTreeMap<String, String>,
) -> Vec<String> {
    let Some((own, place)) = place_of(module) else {
        return vec![format!(
            "{file}: module `{module}` has no layer; add it to LAYERS"
        )];
    };
    let mut wrong = Vec::new();
    for (line, item) in imports(source) {
        if ROOT_ITEMS.contains(&item.as_str()) {
            continue;
        }
        let target = reexports.get(&item).unwrap_or(&item);
        if target.starts_with("isobath_") {
            continue;
        }
        match place_of(target) {
            None => wrong.push(format!(
                "{file}:{line}: `crate::{item}` is in no layer; add it to LAYERS"
            )),
            Some((layer, at)) if at > place => {
                wrong.push(format!(
                    "{file}:{line}: `{module}` ({own}) imports `{item}` from above ({layer})"
                ));
            }
            Some(_) => {}
        }
    }
    wrong
}

fn rust_files(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            // Test support may import anything.
            if name != "testing" && name != "tests" {
                rust_files(&path, into);
            }
        } else if name.ends_with(".rs") && !name.contains("test") && !name.contains("loom") {
            into.push(path);
        }
    }
}

/// Lines of code, tests apart, that drop an answer without a comment that says why, on the same
/// line or right above it.
fn unexplained_discards(source: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut is_explained = false;
    let mut test_follows = false;
    for (number, line) in source.lines().enumerate() {
        let code = line.trim();
        // Test modules end a file here.
        if test_follows && code.starts_with("mod ") && code.ends_with('{') {
            break;
        }
        test_follows = code.starts_with("#[cfg(") && code.contains("test");
        if code.starts_with("//") || code.starts_with("#[") {
            is_explained = true;
            continue;
        }
        // Parameters that are not used are no answers.
        let is_names = |rest: &str| !rest.is_empty() && !rest[1..].contains(['(', '=']);
        let drops_names = code.strip_prefix("let _ = ").is_some_and(is_names);
        let drops_error = code.ends_with(".ok();") && !code.contains(['=', '?']);
        let drops =
            code.starts_with("let _ =") && !drops_names || drops_error && code != "reply.ok();";
        if drops && !is_explained && !code.contains("// ") {
            found.push(number + 1);
        }
        // One comment is for all answers that follow one another.
        is_explained &= drops;
    }
    found
}

#[test]
fn what_drops_an_answer_says_why() {
    let mut wrong = Vec::new();
    for (name, _) in CRATES {
        let mut files = Vec::new();
        rust_files(&crates_dir().join(name).join("src"), &mut files);
        for path in files {
            let source = fs::read_to_string(&path).unwrap();
            let lines = unexplained_discards(&source);
            let at = |line| format!("{}:{line}", path.display());
            wrong.extend(lines.into_iter().map(at));
        }
    }
    assert!(
        wrong.is_empty(),
        "these drop an answer, perhaps an error; handle it, or say in a comment why not:\n{}",
        wrong.join("\n")
    );
    let source = "// Why.\nlet _ = a();\nlet _ = b();\nlet _ = c;\nlet _ = d();\ne().ok();\n";
    assert_eq!(unexplained_discards(source), [5, 6]);
}

#[test]
fn crates_depend_downwards() {
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(crates_dir()).unwrap() {
        let dir = entry.unwrap().path();
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let Ok(manifest) = fs::read_to_string(dir.join("Cargo.toml")) else {
            continue;
        };
        let (_, allowed) = CRATES
            .iter()
            .find(|(n, _)| *n == name)
            .unwrap_or_else(|| panic!("crate `{name}` is in no layer; add it to CRATES"));
        for dependency in dependencies(&manifest) {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{name} depends on {dependency}, which is not below it"
            );
        }
        seen.insert(name);
    }
    assert_eq!(
        seen.len(),
        CRATES.len(),
        "CRATES names crates that are gone"
    );
}

#[test]
fn modules_of_the_engine_import_downwards() {
    let root = crates_dir().join("isobath/src");
    let reexports = reexports(&fs::read_to_string(root.join("lib.rs")).unwrap());
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    assert!(files.len() > 20, "the engine's sources were not found");
    let mut wrong = Vec::new();
    for path in files {
        let file = path
            .strip_prefix(&root)
            .unwrap()
            .to_string_lossy()
            .into_owned();
        if file == "lib.rs" {
            continue;
        }
        let module = file
            .split('/')
            .next()
            .unwrap_or(&file)
            .trim_end_matches(".rs");
        let source = fs::read_to_string(&path).unwrap();
        wrong.extend(violations(&file, module, &source, &reexports));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Whether a source has methods of the assembly.
fn is_on_the_assembly(source: &str) -> bool {
    source
        .lines()
        .any(|line| line == "impl Engine {" || line == "impl WorkerState {")
}

#[test]
fn the_assembly_has_no_logic() {
    let root = crates_dir().join("isobath/src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    files.retain(|path| !path.starts_with(root.join("engine")));
    for path in files {
        let source = fs::read_to_string(&path).unwrap();
        let wrong = is_on_the_assembly(&source);
        assert!(!wrong, "{} has methods of the assembly", path.display());
    }
}

#[test]
fn the_engine_reaches_the_system_only_through_its_io_layer() {
    let root = crates_dir().join("isobath/src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    for path in files {
        // Its statistics for other processes are a small file in memory, not data.
        if path.ends_with("engine/publish.rs") {
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        for word in ["io_uring", "OpenOptions", "libc::pread", "libc::pwrite"] {
            assert!(
                !source.contains(word),
                "{} uses {word}; I/O belongs to isobath-io",
                path.display()
            );
        }
    }
}

/// Where the engine's shared state must not come from: a simulation can
/// interrupt between two accesses only if they go through `crate::sync`.
const OUTSIDE_SYNC: &[&str] = &[
    "std::sync::atomic",
    "std::sync::{atomic",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::sync::Condvar",
    "OnceCell",
    "LazyLock",
    "parking_lot",
    "hint::spin_loop",
];

/// Lines of a source that share state with other threads past `crate::sync`.
fn unseen_sharing(source: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let code = line.trim();
        let imports_cells = code.contains("std::sync::") && code.contains("OnceLock");
        let named = OUTSIDE_SYNC.iter().any(|word| code.contains(word));
        if !code.starts_with("//") && (imports_cells || named) {
            found.push((number + 1, code));
        }
    }
    found
}

#[test]
fn the_engine_shares_state_only_through_its_sync_module() {
    let root = crates_dir().join("isobath/src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    let mut wrong = Vec::new();
    for path in files {
        if path.ends_with("src/sync.rs") || path.starts_with(root.join("sync")) {
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        for (line, code) in unseen_sharing(&source) {
            wrong.push(format!("{}:{line}: {code}", path.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "atomics, locks and cells come from crate::sync:\n{}",
        wrong.join("\n")
    );
}

/// The checks above must be able to fail.
mod the_check_itself {
    use super::*;

    fn found(file: &str, source: &str) -> Vec<String> {
        let module = file.split('/').next().unwrap().trim_end_matches(".rs");
        let lib =
            "pub use api::Tree;\npub use error::Error;\npub use page::{PAGE_SIZE, PageCorruption};";
        violations(file, module, source, &reexports(lib))
    }

    #[test]
    fn finds_an_import_from_above() {
        assert_eq!(found("buffer/mod.rs", "use crate::btree::Node;\n").len(), 1);
        assert_eq!(found("btree/ops.rs", "fn f(t: &crate::Tree) {}\n").len(), 1);
        assert_eq!(
            found("page.rs", "use crate::{canary, log::Log};\n").len(),
            1
        );
        assert_eq!(
            found("pagestore/mod.rs", "use crate::checkpoint::Via;").len(),
            1
        );
        // Also from its own layer.
        assert_eq!(found("extent/mod.rs", "use crate::txn::Turn;").len(), 1);
    }

    #[test]
    fn accepts_what_points_down_and_ignores_comments_and_tests() {
        for source in [
            "use crate::buffer::Frame;\nuse crate::{Error, PAGE_SIZE};",
            "// crate::store is above\n/// See [`crate::store`].\n",
            "#[cfg(test)]\nmod tests {\n    use crate::store::Store;\n}\n",
            "use crate::MAX_KEY_BYTES;",
        ] {
            assert_eq!(found("btree/ops.rs", source), Vec::<String>::new());
        }
    }

    #[test]
    fn wants_every_module_in_a_layer() {
        assert!(found("novel.rs", "")[0].contains("has no layer"));
        assert!(found("btree/x.rs", "use crate::novel::X;")[0].contains("no layer"));
    }

    #[test]
    fn finds_methods_of_the_assembly() {
        assert!(is_on_the_assembly("use a::b;\nimpl WorkerState {\n}\n"));
        assert!(!is_on_the_assembly("impl PageStore {\n}\n"));
    }

    #[test]
    fn reads_manifests() {
        let manifest = "[dependencies]\nisobath-io.workspace = true\nlibc = \"1\"\nisobath = { path = \"..\" }\n[dev-dependencies]\nisobath-lab.workspace = true\n";
        let names: Vec<_> = dependencies(manifest).into_iter().collect();
        assert_eq!(names, ["isobath", "isobath-io"]);
    }

    #[test]
    fn finds_what_is_shared_past_sync() {
        for line in [
            "use std::sync::atomic::AtomicU64;",
            "use std::sync::{Arc, OnceLock};",
            "    lock: parking_lot::Mutex<u8>,",
        ] {
            assert_eq!(unseen_sharing(line).len(), 1, "{line}");
        }
        let fine = "use crate::sync::atomic::AtomicU64;\nuse std::sync::Arc;\n// std::sync::atomic";
        assert!(unseen_sharing(fine).is_empty());
    }
}
