//! Measurements are files of docs/results, with their command, machine and date;
//! docs/benchmarks.md quotes their numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A table as its file has it: cells as they are shown.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    title: String,
    command: Vec<String>,
    machine: String,
    recorded: Recorded,
    notes: Vec<String>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Since when the repository has the rows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    date: String,
    commit: String,
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text of each file of results.
fn files() -> BTreeMap<String, String> {
    let paths = fs::read_dir(docs().join("results")).unwrap();
    let paths = paths.map(|entry| entry.unwrap().path());
    let named = paths.map(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, read(&path))
    });
    named.collect()
}

/// The files of results that a text links.
fn linked(text: &str) -> Vec<&str> {
    let parts = text.split("](results/").skip(1);
    let names = parts.filter_map(|part| part.split(')').next());
    names.filter(|name| !name.is_empty()).collect()
}

/// Numbers with separators of thousands: `1,234` and longer ones.
fn large_numbers(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != ',');
    let words = words.map(|word| word.trim_matches(','));
    words.filter(|word| word.contains(','))
}

#[test]
fn every_file_has_its_command_and_whole_rows() {
    for (name, text) in files() {
        let table: Table =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let texts = [
            &table.title,
            &table.machine,
            &table.recorded.date,
            &table.recorded.commit,
        ];
        assert!(texts.iter().all(|text| !text.is_empty()), "{name}");
        assert!(!table.command.is_empty(), "{name}");
        assert!(table.notes.iter().all(|note| !note.is_empty()), "{name}");
        assert!(!table.rows.is_empty(), "{name}");
        for row in &table.rows {
            assert_eq!(row.len(), table.columns.len(), "{name}: {row:?}");
        }
    }
}

#[test]
fn the_page_links_every_file_and_quotes_its_numbers() {
    let page = read(&docs().join("benchmarks.md"));
    let files = files();
    let all = linked(&page);
    for name in files.keys() {
        assert!(
            all.contains(&name.as_str()),
            "docs/benchmarks.md does not link {name}"
        );
    }
    let mut quoted = 0;
    for section in page.split("\n## ").skip(1) {
        let heading = section.lines().next().unwrap_or_default();
        let data: String = linked(section)
            .iter()
            .map(|name| files[*name].as_str())
            .collect();
        for row in section.lines().filter(|line| line.starts_with('|')) {
            for number in large_numbers(row) {
                quoted += 1;
                assert!(
                    data.contains(number),
                    "no file that `{heading}` links has {number}: {row}"
                );
            }
        }
    }
    assert!(quoted > 100, "only {quoted} numbers were found");
}
