//! Draws the charts of docs/benchmarks.md from the tables in docs/results: `cargo run -p
//! isobath-lab --example charts`.

use std::error::Error;
use std::fs;
use std::path::Path;

use isobath_lab::bench::{Measured, ratio_chart};

/// A chart: its file, its title, the table, and the columns of the row's name (as many as it
/// takes), the engine and the value.
type Chart = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
);

const CHARTS: [Chart; 4] = [
    (
        "first-campaign-reads",
        "Reads: rate of Isobath ÷ rate of the other (log)",
        "first-campaign-reads",
        &["row"],
        "per second",
    ),
    (
        "first-campaign-writes",
        "Writes: rate of Isobath ÷ rate of the other (log)",
        "first-campaign-writes",
        &["row"],
        "per second",
    ),
    (
        "first-campaign-skewed",
        "Skewed writes: rate of Isobath ÷ rate of the other (log)",
        "first-campaign-skewed",
        &["row"],
        "per second",
    ),
    (
        "virtual-ssd-rows",
        "Flash bytes per byte updated: Isobath ÷ the other (log)",
        "virtual-ssd-rows",
        &["drive", "data / drive"],
        "WA-A × WA-D",
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    fs::create_dir_all(docs.join("charts"))?;
    for (file, title, table, rows, value) in CHARTS {
        let path = docs.join("results").join(table).with_extension("json");
        let table: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        let texts = |list: &serde_json::Value| -> Vec<String> {
            let list = list.as_array().into_iter().flatten();
            list.filter_map(|cell| cell.as_str().map(str::to_owned))
                .collect()
        };
        let columns = texts(&table["columns"]);
        let column = |name: &str| {
            let found = columns.iter().position(|column| column == name);
            found.ok_or_else(|| format!("{}: no column `{name}`", path.display()))
        };
        let names: Vec<usize> = rows
            .iter()
            .map(|name| column(name))
            .collect::<Result<_, _>>()?;
        let (engine, value) = (column("engine")?, column(value)?);
        let mut measured = Vec::new();
        for row in table["rows"].as_array().into_iter().flatten().map(texts) {
            let name: Vec<&str> = names.iter().map(|at| row[*at].as_str()).collect();
            measured.push(Measured {
                row: name.join(", "),
                engine: row[engine].clone(),
                value: row[value].replace(',', "").parse()?,
            });
        }
        let svg = ratio_chart(title, "Isobath", &measured);
        fs::write(docs.join("charts").join(file).with_extension("svg"), svg)?;
    }
    Ok(())
}
