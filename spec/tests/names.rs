//! What the specification names exists in the engine.

#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use isobath_spec::{RULES, SUPERBLOCK_RULES};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The engine's sources.
fn sources(directory: &Path, into: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            into.push((stem, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The texts between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Names of functions: `name`, `Type::name` or `module::name`.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    quoted(text).filter(|name| {
        let last = name.rsplit("::").next().unwrap_or(name);
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        !last.is_empty() && last.chars().all(is_name)
    })
}

/// Whether some source has the function, in the module or in an implementation of the type.
fn is_there(name: &str, sources: &[(String, String)]) -> bool {
    let (owner, function) = match name.rsplit_once("::") {
        Some((owner, function)) => (Some(owner), function),
        None => (None, name),
    };
    let has = |source: &str| {
        source.contains(&format!("fn {function}(")) || source.contains(&format!("fn {function}<"))
    };
    let owns = |stem: &str, source: &str| match owner {
        None => true,
        Some(module) if module.starts_with(char::is_lowercase) => stem == module,
        Some(owner) => source.lines().any(|line| {
            let implements = line.strip_prefix("impl");
            implements.is_some_and(|rest| {
                let generic = rest.starts_with('<').then(|| rest.split_once("> "));
                let rest = generic.flatten().map_or(rest, |(_, after)| after);
                let rest = rest.trim_start();
                rest.strip_prefix(owner)
                    .is_some_and(|after| !after.starts_with(char::is_alphanumeric))
            })
        }),
    };
    sources
        .iter()
        .any(|(stem, source)| has(source) && owns(stem, source))
}

#[test]
fn every_function_that_the_protocol_names_exists() {
    let mut engine = Vec::new();
    sources(&root().join("crates/isobath/src"), &mut engine);
    assert!(engine.len() > 50, "the engine's sources were not found");
    let mut texts = vec![("docs/protocol.md", rows(&root().join("docs/protocol.md")))];
    for file in ["spec/src/rules.rs", "spec/src/superblocks.rs"] {
        texts.push((file, comments(&root().join(file))));
    }
    let mut count = 0;
    for (place, text) in texts {
        for name in functions(&text) {
            assert!(
                is_there(name, &engine),
                "{place} names `{name}`, which is nowhere"
            );
            count += 1;
        }
    }
    assert!(count > 20, "only {count} names were found");
    assert!(!is_there("Engine::no_such_function", &engine));
    assert!(!is_there("NoSuchType::hold", &engine));
}

#[test]
fn every_rule_stands_in_the_protocol() {
    let rows = rows(&root().join("docs/protocol.md"));
    let named: Vec<&str> = quoted(&rows).collect();
    for rule in all_rules() {
        assert!(named.contains(&&rule[..]), "docs/protocol.md lacks {rule}");
    }
}

/// The names of the rules of both models.
fn all_rules() -> Vec<String> {
    let protocol = RULES.iter().map(|rule| format!("{rule:?}"));
    let superblocks = SUPERBLOCK_RULES.iter().map(|rule| format!("{rule:?}"));
    protocol.chain(superblocks).collect()
}

/// The lines of a table.
fn rows(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let rows = text.lines().filter(|line| line.starts_with('|'));
    rows.collect::<Vec<_>>().join("\n")
}

/// The comments of a source.
fn comments(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let comments = text.lines().filter(|line| line.trim().starts_with("///"));
    comments.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_rule_has_a_bug_that_breaks_it_or_a_reason() {
    let canaries = fs::read_to_string(root().join("crates/isobath/src/canary.rs")).unwrap();
    let text = fs::read_to_string(root().join("docs/protocol.md")).unwrap();
    let is_rule = |cell: &&str| {
        all_rules()
            .iter()
            .any(|rule| cell.contains(&format!("`{rule}`")))
    };
    let mut count = 0;
    for row in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').collect();
        assert!(is_rule(&cells[1]), "{row}");
        let bugs: Vec<&str> = quoted(cells[3]).collect();
        assert_eq!(bugs.is_empty(), cells[3].starts_with(" none: "), "{row}");
        for bug in bugs {
            assert!(
                canaries.contains(&format!("    {bug},\n")),
                "there is no {bug}"
            );
            count += 1;
        }
    }
    assert!(count >= RULES.len() - 4, "only {count} bugs were found");
}
