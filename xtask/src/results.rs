//! Tables of the pages on benchmarks: each lies in a file of its own, and between two comments of a page.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Pages that have tables.
const PAGES: [&str; 2] = ["benchmarks.md", "benchmark-notes.md"];
const BEGIN: &str = "<!-- table: ";
const BEGIN_END: &str = " -->";
const END: &str = "<!-- end of table -->";

/// Put the tables of docs/results into the pages on benchmarks.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Change nothing; fail where a page differs from its tables
    #[arg(long)]
    check: bool,
}

/// A table as its file has it: cells as they are shown.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}: {1}")]
    Io(PathBuf, std::io::Error),
    #[error("{0}: {1}")]
    Json(PathBuf, serde_json::Error),
    #[error("table `{0}`: row {1} has {2} cells, not {3}")]
    Cells(String, usize, usize, usize),
    #[error("{0}: a table begins and does not end")]
    Unterminated(PathBuf),
    #[error("docs/results has `{0}`, which no page shows")]
    Unused(String),
}

/// Writes or checks all pages; whether that succeeded.
pub(crate) fn write(args: &Args) -> bool {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    match update(&docs, args.check) {
        Ok(stale) if stale.is_empty() => true,
        Ok(stale) => {
            for page in &stale {
                let what = if args.check {
                    "differs from its tables"
                } else {
                    "is written"
                };
                println!("{page} {what}");
            }
            !args.check
        }
        Err(error) => {
            eprintln!("{error}");
            false
        }
    }
}

/// The pages that differ from their tables; they are written unless `check`.
fn update(docs: &Path, check: bool) -> Result<Vec<&'static str>, Error> {
    let (mut stale, mut shown) = (Vec::new(), Vec::new());
    for page in PAGES {
        let path = docs.join(page);
        let before = fs::read_to_string(&path).map_err(|error| Error::Io(path.clone(), error))?;
        let after = with_tables(&path, &before, |name| {
            shown.push(name.to_owned());
            read(docs, name)
        })?;
        if after != before {
            stale.push(page);
            if !check {
                fs::write(&path, after).map_err(|error| Error::Io(path, error))?;
            }
        }
    }
    let results = docs.join("results");
    let files = fs::read_dir(&results).map_err(|error| Error::Io(results.clone(), error))?;
    for file in files {
        let path = file
            .map_err(|error| Error::Io(results.clone(), error))?
            .path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if !shown.iter().any(|shown| *shown == name) {
            return Err(Error::Unused(name.into_owned()));
        }
    }
    Ok(stale)
}

fn read(docs: &Path, name: &str) -> Result<Table, Error> {
    let path = docs.join("results").join(name).with_extension("json");
    let text = fs::read_to_string(&path).map_err(|error| Error::Io(path.clone(), error))?;
    let table: Table = serde_json::from_str(&text).map_err(|error| Error::Json(path, error))?;
    for (at, row) in table.rows.iter().enumerate() {
        if row.len() != table.columns.len() {
            return Err(Error::Cells(
                name.to_owned(),
                at + 1,
                row.len(),
                table.columns.len(),
            ));
        }
    }
    Ok(table)
}

/// `page` with every table as `read` gives it.
fn with_tables(
    path: &Path,
    page: &str,
    mut read: impl FnMut(&str) -> Result<Table, Error>,
) -> Result<String, Error> {
    let (mut out, mut rest) = (String::new(), page);
    while let Some((before, from)) = rest.split_once(BEGIN) {
        let unterminated = || Error::Unterminated(path.to_owned());
        let (name, after) = from.split_once(BEGIN_END).ok_or_else(unterminated)?;
        let (_, after) = after.split_once(END).ok_or_else(unterminated)?;
        out.push_str(&format!(
            "{before}{BEGIN}{name}{BEGIN_END}\n{}{END}",
            show(&read(name)?)
        ));
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// The table in Markdown.
fn show(table: &Table) -> String {
    let line = |cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!(" {cell} |")).collect();
        format!("|{cells}\n")
            .replace("|  |", "| |")
            .replace("|  |", "| |")
    };
    let rule = format!("|{}\n", " --- |".repeat(table.columns.len()));
    let rows: String = table.rows.iter().map(|row| line(row)).collect();
    line(&table.columns) + &rule + &rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_show_what_the_files_have() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let stale = update(&docs, true).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            stale,
            Vec::<&str>::new(),
            "run `cargo run -p xtask -- results`"
        );
    }

    #[test]
    fn a_table_replaces_what_stood_between_its_comments() {
        let page = "a\n<!-- table: t -->\nold\n<!-- end of table -->\nb\n";
        let table = |name: &str| {
            assert_eq!(name, "t");
            Ok(Table {
                columns: vec!["k".into(), String::new()],
                rows: vec![vec!["1".into(), "2".into()]],
            })
        };
        let shown = with_tables(Path::new("p"), page, table).map_err(|error| error.to_string());
        let expected =
            "a\n<!-- table: t -->\n| k | |\n| --- | --- |\n| 1 | 2 |\n<!-- end of table -->\nb\n";
        assert_eq!(shown.as_deref(), Ok(expected));
        let open = with_tables(Path::new("p"), "<!-- table: t -->", |_| unreachable!());
        assert!(matches!(open, Err(Error::Unterminated(_))));
    }
}
