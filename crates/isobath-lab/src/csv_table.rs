//! Tables of comma-separated values, by the serde form of their rows.

use std::collections::BTreeSet;
use std::io;

use serde::Serialize;
use serde_json::{Map, Value};

/// The cells of a row, by their columns.
pub(crate) type Cells = Map<String, Value>;

/// Writes rows as CSV, their columns by name, without series and histograms, which only JSON
/// carries.
///
/// # Errors
/// Those of `out`.
pub fn write_csv(rows: &[impl Serialize], out: impl io::Write) -> io::Result<()> {
    let cells = |row| {
        let mut cells = match serde_json::to_value(row) {
            Ok(Value::Object(cells)) => cells,
            _ => Cells::new(),
        };
        cells.retain(|_, value| !value.is_array());
        cells
    };
    write(rows.iter().map(cells), out)
}

/// Writes a table of all columns that any row has.
pub(crate) fn write(rows: impl Iterator<Item = Cells>, out: impl io::Write) -> io::Result<()> {
    let rows: Vec<Cells> = rows.collect();
    let (mut columns, mut known) = (Vec::new(), BTreeSet::new());
    for name in rows.iter().flat_map(Map::keys) {
        if known.insert(name) {
            columns.push(name);
        }
    }
    let mut table = csv::Writer::from_writer(out);
    if !columns.is_empty() {
        table.write_record(&columns)?;
    }
    for row in &rows {
        let cells = columns.iter().map(|name| match row.get(*name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        });
        table.write_record(cells)?;
    }
    table.flush()
}
