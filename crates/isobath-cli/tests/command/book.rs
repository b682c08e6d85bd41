//! The book is right: links lead somewhere, shell blocks do what they say, quoted programs and
//! messages are those of the code. Its Rust blocks are tests of `examples/book`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The Markdown files of the book and beside it.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
    ]
    .map(PathBuf::from)
    .into();
    let mut directories = vec![PathBuf::from("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let path = directory.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// A fenced block of a page.
#[derive(Debug)]
struct Block {
    /// The words behind the fence, split at commas.
    kind: Vec<String>,
    text: String,
    line: usize,
    /// Whether only empty lines are between this and the block before.
    follows: bool,
}

impl Block {
    fn is(&self, language: &str) -> bool {
        self.kind[0] == language
    }
}

/// The page without its fenced blocks, and these.
fn parse(text: &str) -> (String, Vec<Block>) {
    let (mut prose, mut blocks) = (String::new(), Vec::<Block>::new());
    let mut inside = false;
    let mut follows = false;
    for (number, line) in text.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(info) if !inside => {
                inside = true;
                let kind = info.split(',').map(str::to_owned).collect();
                let line = number + 1;
                let text = String::new();
                blocks.push(Block {
                    kind,
                    text,
                    line,
                    follows,
                });
            }
            Some(_) => {
                inside = false;
                follows = true;
            }
            None if inside => {
                let block = blocks.last_mut().unwrap();
                block.text += line;
                block.text.push('\n');
            }
            None => {
                follows &= line.trim().is_empty();
                prose += line;
            }
        }
        prose.push('\n');
    }
    assert!(!inside, "a block does not end");
    (prose, blocks)
}

/// The anchors of a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for line in parse(text).0.lines().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let slug: String = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = seen.entry(slug.clone()).or_default();
        anchors.insert(if *count == 0 {
            slug.clone()
        } else {
            format!("{slug}-{count}")
        });
        *count += 1;
    }
    anchors
}

/// `path` without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(normal.pop(), "{} leads out", path.display()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// The targets of links in Markdown, without those in code.
fn links(prose: &str) -> Vec<String> {
    let outside: String = prose.split('`').step_by(2).collect();
    let mut links = Vec::new();
    let mut rest = outside.as_str();
    while let Some(at) = rest.find("](") {
        rest = &rest[at + 2..];
        let end = rest.find(')').unwrap_or(0);
        links.push(rest[..end].to_owned());
    }
    links
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for page in pages() {
        for link in links(&parse(&read(&page)).0) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => normal(&page.parent().unwrap().join(file)),
            };
            let there = root().join(&target).exists()
                && (anchor.is_empty() || anchors(&read(&target)).contains(anchor));
            if !there {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_page_is_in_the_summary_and_every_verb_in_the_guide() {
    let summary: BTreeSet<PathBuf> = links(&read("docs/SUMMARY.md"))
        .iter()
        .map(|link| Path::new("docs").join(link))
        .collect();
    for page in pages().iter().filter(|page| page.starts_with("docs")) {
        let is_listed = summary.contains(page) || page.ends_with("SUMMARY.md");
        assert!(is_listed, "{} is not in docs/SUMMARY.md", page.display());
    }
    assert!(
        summary.iter().all(|page| page.starts_with("docs")),
        "outside of the book"
    );

    let help = support::Place::new().run(&["--help"]).ok();
    let verbs = help
        .text()
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"));
    let guide = read("docs/guide.md");
    for line in verbs.skip(1).take_while(|line| !line.is_empty()) {
        // Other lines continue a verb's description.
        let Some(verb) = line
            .strip_prefix("  ")
            .filter(|line| !line.starts_with(' '))
        else {
            continue;
        };
        let verb = verb.split(' ').next().unwrap();
        let is_told = guide.contains(&format!("`{verb}`")) || guide.contains(&format!("`{verb} "));
        assert!(
            is_told || verb == "help",
            "docs/guide.md does not have the verb {verb}"
        );
    }
}

/// Whether the system has a program.
fn has(tool: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {tool}")])
        .output();
    found.is_ok_and(|found| found.status.success())
}

/// Runs a page's `sh` blocks one after another in one shell. A `text` block right behind one is
/// what it prints, where `...` stands for anything. `sh,ignore` is for readers only; `sh,TOOL` runs
/// if the system has TOOL.
fn run_shell(page: &str) {
    let place = support::Place::new();
    let bin = place.path("bin");
    fs::create_dir(&bin).unwrap();
    symlink(env!("CARGO_BIN_EXE_isobath"), bin.join("isobath")).unwrap();
    let (_, blocks) = parse(&read(page));
    let mut script = "set -euo pipefail\n".to_owned();
    let mut expected: Vec<(usize, Option<&str>)> = Vec::new();
    for (at, block) in blocks
        .iter()
        .enumerate()
        .filter(|(_, block)| block.is("sh"))
    {
        let needs = &block.kind[1..];
        if needs.iter().any(|need| need == "ignore" || !has(need)) {
            continue;
        }
        let printed = blocks
            .get(at + 1)
            .filter(|next| next.is("text") && next.follows);
        let number = expected.len();
        script += &format!("exec > out.{number} 2>&1\n{}", block.text);
        expected.push((block.line, printed.map(|printed| printed.text.as_str())));
    }
    assert!(!expected.is_empty(), "{page} has no block that runs");
    let path = format!(
        "{}:{}",
        bin.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let run = Command::new("bash")
        .args(["-c", &script])
        .current_dir(place.path("."))
        .env("PATH", path)
        .env_remove("ISOBATH_STORE")
        .output()
        .unwrap();
    for (number, (line, printed)) in expected.into_iter().enumerate() {
        let out = fs::read_to_string(place.path(&format!("out.{number}"))).unwrap_or_default();
        assert!(
            run.status.success() || printed.is_some_and(|p| matches(&out, p)),
            "{page}:{line}: {run:?}\n{out}"
        );
        if let Some(printed) = printed {
            assert!(
                matches(&out, printed),
                "{page}:{line} says\n{printed}\nand it is\n{out}"
            );
        }
    }
    assert!(run.status.success(), "{page}: {run:?}");
}

/// Whether `text` is `pattern`, in which `...` stands for anything.
fn matches(text: &str, pattern: &str) -> bool {
    let parts: Vec<&str> = pattern.split("...").collect();
    let Some(mut rest) = text.strip_prefix(parts[0]) else {
        return false;
    };
    for part in &parts[1..] {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

#[test]
fn patterns_match_what_they_say() {
    assert!(matches("a\n", "a\n") && !matches("a\nb\n", "a\n") && !matches("a\n", "b\n"));
    assert!(matches("in 0.3 s\n", "in ...\n") && !matches("on 0.3 s\n", "in ...\n"));
    assert!(!matches("", "a\n") && !matches("a", "a...b"));
}

#[test]
fn the_tutorial_runs() {
    run_shell("docs/tutorial.md");
}

#[test]
fn the_page_on_files_runs() {
    run_shell("docs/files.md");
}

#[test]
fn operations_run() {
    run_shell("docs/operations.md");
}

#[test]
fn tuning_runs() {
    run_shell("docs/tuning.md");
}

#[test]
fn the_benchmark_page_runs() {
    run_shell("docs/bench.md");
}

#[test]
fn the_phrase_book_runs_where_its_tools_are() {
    run_shell("docs/phrasebook.md");
}

#[test]
fn migrations_run_where_their_tools_are() {
    run_shell("docs/migration.md");
}

/// `text` without indentation, so that it is found wherever it stands.
fn flat(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.join("\n").trim().to_owned()
}

#[test]
fn programs_that_pages_quote_are_those_of_the_examples() {
    for (page, sources) in [
        (
            "docs/tutorial.md",
            &[
                "examples/ledger/src/main.rs",
                "examples/ledger/tests/crash.rs",
            ][..],
        ),
        ("docs/migration.md", &["examples/from-redb/src/main.rs"]),
    ] {
        let sources: String = sources.iter().map(|source| flat(&read(source))).collect();
        let (_, blocks) = parse(&read(page));
        let quoted: Vec<&Block> = blocks.iter().filter(|block| block.is("rust")).collect();
        assert!(!quoted.is_empty(), "{page}");
        for block in quoted {
            let is_there = sources.contains(&flat(&block.text));
            assert!(
                is_there,
                "{page}:{}: no example has\n{}",
                block.line, block.text
            );
        }
    }
}

#[test]
fn the_tutorials_crate_has_what_its_program_needs_outside_of_the_repository() {
    let page = read("docs/tutorial.md");
    let after = |words: &str| {
        let lines = page.lines().map(str::trim);
        let found = lines.filter_map(|line| line.strip_prefix(words));
        let crates: Vec<&str> = found.flat_map(str::split_whitespace).collect();
        crates
    };
    let new = after("cargo new ");
    let name = new.first().unwrap();
    // Cargo names the program so for the crate's tests.
    let test = read("examples/ledger/tests/crash.rs");
    assert!(
        test.contains(&format!("env!(\"CARGO_BIN_EXE_{name}\")")),
        "{name}"
    );
    let manifest = read("examples/ledger/Cargo.toml");
    let section = |section: &str| {
        let lines = manifest.lines().skip_while(|line| *line != section).skip(1);
        let lines = lines.take_while(|line| !line.starts_with('['));
        let names = lines.filter_map(|line| line.split(['.', ' ']).next());
        let names: BTreeSet<String> = names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        names
    };
    for (section_name, words) in [
        ("[dependencies]", "cargo add "),
        ("[dev-dependencies]", "cargo add --dev "),
    ] {
        let added = after(words);
        for needed in section(section_name) {
            let is_added = added.contains(&needed.as_str())
                || added
                    .iter()
                    .any(|word| word.ends_with(&format!("/crates/{needed}")));
            assert!(
                is_added,
                "docs/tutorial.md does not add {needed}: {added:?}"
            );
        }
    }
}

/// The variants of an enum in a source file with their messages, in which `…` stands for what
/// varies.
fn variants(source: &str, name: &str) -> Vec<(String, Option<String>)> {
    let start = source.find(&format!("pub enum {name} {{")).unwrap();
    let body = &source[start..];
    let body = &body[..body.find("\n}\n").unwrap()];
    let mut variants = Vec::new();
    for part in body.split("#[error(").skip(1) {
        let part = part.trim_start();
        let (message, rest) = match part.strip_prefix('"') {
            Some(text) => {
                let end = (1..text.len())
                    .find(|at| text[*at..].starts_with('"') && !text[..*at].ends_with('\\'))
                    .unwrap();
                (Some(shown(&text[..end])), &text[end..])
            }
            None => (None, part),
        };
        let line = rest.lines().find(|line| {
            line.starts_with("    ") && line[4..].starts_with(|c: char| c.is_ascii_uppercase())
        });
        let variant = line
            .unwrap()
            .trim()
            .chars()
            .take_while(|c| c.is_alphanumeric());
        variants.push((variant.collect(), message));
    }
    variants
}

/// A format string as a reader sees it.
fn shown(format: &str) -> String {
    // A backslash at a line's end goes on with the next word.
    let lines: Vec<&str> = format.split("\\\n").collect();
    let format = lines.iter().enumerate().map(|(at, line)| match at {
        0 => *line,
        _ => line.trim_start(),
    });
    let format = format.collect::<String>().replace("\\\"", "\"");
    let mut shown = String::new();
    for (at, part) in format.split('{').enumerate() {
        match part.split_once('}') {
            Some((_, rest)) if at > 0 => {
                shown.push('…');
                shown += rest;
            }
            _ => shown += part,
        }
    }
    shown
}

#[test]
fn every_error_and_its_message_has_an_entry() {
    let page = read("docs/errors.md");
    let mut missing = Vec::new();
    for (file, name) in [
        ("crates/isobath/src/error.rs", "Error"),
        ("crates/isobath/src/error.rs", "BackupFileError"),
        ("crates/isobath/src/page.rs", "PageCorruption"),
        ("crates/isobath-io/src/error.rs", "VolumeError"),
        ("crates/isobath-lab/src/error.rs", "LabError"),
    ] {
        let variants = variants(&read(file), name);
        assert!(variants.len() > 4, "{name}: {variants:?}");
        for (variant, message) in variants {
            let message = message.unwrap_or_else(|| "(the message of the cause)".into());
            let entry = format!("### {variant}\n\n> {message}\n\n");
            if !page.contains(&entry) {
                missing.push(entry);
            }
        }
    }
    assert!(
        missing.is_empty(),
        "docs/errors.md needs, with what to do:\n{}",
        missing.concat()
    );
}

/// The paths below the root of all sources in Rust, and all of these in one.
fn sources() -> (Vec<PathBuf>, String) {
    let (mut paths, mut all) = (Vec::new(), String::new());
    let mut directories = ["crates", "examples", "fuzz", "spec", "xtask"]
        .map(PathBuf::from)
        .to_vec();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let path = directory.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                if !path.ends_with("target") {
                    directories.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                all += &read(&path);
                paths.push(path);
            }
        }
    }
    (paths, all)
}

#[test]
fn tests_and_canaries_that_the_list_of_defects_names_are_there() {
    let list = read("docs/defects.json");
    let (paths, sources) = sources();
    let canaries = read("crates/isobath/src/canary.rs");
    let (mut tests, mut missing) = (0, Vec::new());
    let (_, seen_to_fail) = list.split_once("\"seen to fail\"").unwrap();
    for row in list.lines().filter(|line| line.trim().starts_with('[')) {
        let last = row.rsplit("\", \"").next().unwrap();
        let names_canaries = seen_to_fail.contains(row);
        for word in row.split('`').skip(1).step_by(2) {
            let is_there = if word.ends_with(".rs") {
                paths.iter().any(|path| path.ends_with(word))
            } else if word.split('_').count() > 2
                && word.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric())
                && word.starts_with(|c: char| c.is_ascii_lowercase())
            {
                tests += 1;
                sources.contains(&format!("fn {word}("))
            } else if names_canaries
                && word.starts_with(|c: char| c.is_ascii_uppercase())
                && last.contains(&format!("`{word}`"))
            {
                canaries.contains(&format!("    {word},\n"))
            } else {
                true
            };
            if !is_there {
                missing.push(word);
            }
        }
    }
    assert!(tests > 100, "{tests}");
    assert!(missing.is_empty(), "docs/defects.json: {missing:?}");
}

#[test]
fn every_option_is_in_the_tuning_page() {
    let page = read("docs/tuning.md");
    let sources = read("crates/isobath/src/api/options.rs");
    let setters: Vec<&str> = sources
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub fn "))
        .filter(|line| line.contains("(mut self"))
        .map(|line| line.split('(').next().unwrap())
        .collect();
    assert!(setters.len() > 10, "{setters:?}");
    for option in setters {
        assert!(
            page.contains(&format!("`{option}`")),
            "docs/tuning.md does not have {option}"
        );
    }
}
