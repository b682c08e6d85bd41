//! Records of runs as tables of comma-separated values, by their serde form: a column for each
//! number, word or truth, named by the path to it.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::record::RunRecord;
use crate::LabError;
use crate::csv_table::Cells;

/// Writes `records.csv` (one row per run), `operations.csv` (one per run and kind of operation) and
/// `series.csv` (one per sample) beside the records.
///
/// # Errors
/// I/O errors.
pub fn write_csv(directory: &Path, records: &[RunRecord]) -> Result<(), LabError> {
    let path = |name: &str| directory.join(name);
    write(&path("records.csv"), records.iter().map(whole))?;
    let calls = records.iter().flat_map(|r| parts(r, &r.calls));
    write(&path("operations.csv"), calls)?;
    let samples = records.iter().flat_map(|r| parts(r, &r.series.samples));
    write(&path("series.csv"), samples)
}

/// A record in one row: without its lists, and with what follows from it.
fn whole(record: &RunRecord) -> Cells {
    let mut cells = Cells::new();
    let mut whole = value(record);
    // These have tables of their own, or are in the JSON alone; a list of two is no pair of before
    // and after.
    for list in ["/calls", "/series/samples", "/search/trials"] {
        if let Some(list) = whole.pointer_mut(list) {
            *list = Value::Null;
        }
    }
    add(&mut cells, "", &whole);
    let medium = &record.setting.medium;
    let state = medium.modelled().map(|drive| drive.state.name());
    for (name, of) in [
        ("drive", value(&medium.to_string())),
        ("drive_state", value(&state)),
        ("capacity_bytes", value(&medium.capacity_bytes())),
        ("over_provisioning", value(&medium.over_provisioning())),
        ("harness_share_of_cpu", value(&record.harness_share())),
        (
            "operations_per_drive_read",
            value(&record.operations_per_drive_read()),
        ),
        ("levels", value(&record.levels())),
    ] {
        add(&mut cells, name, &of);
    }
    cells
}

/// Rows of what a record has several of.
fn parts<T: Serialize>(record: &RunRecord, of: &[T]) -> Vec<Cells> {
    let setting = &record.setting;
    let mut head = Cells::new();
    for (name, of) in [
        ("row", value(&record.row)),
        ("config_hash", value(&record.config_hash)),
        ("round", value(&record.round)),
        ("engine", value(&setting.engine)),
        ("isolation", value(&setting.tuning.isolation.name())),
        ("workload", value(&setting.workload)),
    ] {
        add(&mut head, name, &of);
    }
    let rows = of.iter().map(|part| {
        let mut cells = head.clone();
        add(&mut cells, "", &value(part));
        cells
    });
    rows.collect()
}

fn value(of: &(impl Serialize + ?Sized)) -> Value {
    serde_json::to_value(of).unwrap_or_default()
}

/// Adds a value below `name`. A list of two is what was before and after a run.
fn add(cells: &mut Cells, name: &str, of: &Value) {
    let below = |part: &str| match name {
        "" => part.to_owned(),
        name => format!("{name}_{part}"),
    };
    match of {
        Value::Object(fields) => {
            for (field, value) in fields {
                add(cells, &below(field), value);
            }
        }
        Value::Array(both) => {
            if let [before, after] = &both[..]
                && !before.is_array()
                && !before.is_string()
            {
                add(cells, &below("before"), before);
                add(cells, &below("after"), after);
            }
        }
        single => drop(cells.insert(name.to_owned(), single.clone())),
    }
}

/// Writes a table of all columns that any row has.
fn write(path: &Path, rows: impl Iterator<Item = Cells>) -> Result<(), LabError> {
    let file = std::fs::File::create(path).map_err(LabError::io("write", path))?;
    crate::csv_table::write(rows, file).map_err(LabError::io("write", path))
}
