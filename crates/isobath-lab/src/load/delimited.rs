//! CSV and TSV.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use csv::ByteRecord;
use isobath::Tree;
use serde_json::{Map, Value};

use super::{InputFile, Loaded, OnBad, Sink, counted};
use crate::{LabError, Monitor, Stage, Unit};

/// A column, by name or by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// Its name in the header.
    Name(String),
    /// Its number, counted from 1.
    Number(usize),
}

/// How a delimited file is read.
#[derive(Debug, Clone)]
pub struct Delimited {
    /// Byte between fields: `,` or a tab.
    pub delimiter: u8,
    /// Whether the first line names the columns.
    pub header: bool,
    /// The column that becomes the key.
    pub key: Column,
    /// The column that becomes the value. `None` stores the whole row: a JSON
    /// object of column names and texts, or an array where there is no header.
    pub value: Option<Column>,
    /// What to do with a row that cannot be stored.
    pub on_bad: OnBad,
}

/// A delimited file whose columns were found; nothing is loaded yet.
pub struct Rows<'m> {
    path: PathBuf,
    input: RowReader<'m>,
    names: Vec<String>,
    key: usize,
    value: Option<usize>,
    on_bad: OnBad,
    total: Option<u64>,
    monitor: &'m dyn Monitor,
}

impl std::fmt::Debug for Rows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}

type RowReader<'m> = csv::Reader<BufReader<InputFile<'m>>>;

impl Delimited {
    /// Opens a file, or standard input for `None` and `-`, and finds the columns.
    ///
    /// # Errors
    /// A column that does not exist; I/O errors.
    pub fn open<'m>(
        &self,
        from: Option<&Path>,
        monitor: &'m dyn Monitor,
    ) -> Result<Rows<'m>, LabError> {
        let file = InputFile::open(from, monitor)?;
        let (path, total) = (file.path.clone(), file.total);
        let reader = BufReader::with_capacity(1 << 20, file);
        let mut input = csv::ReaderBuilder::new()
            .delimiter(self.delimiter)
            .has_headers(self.header)
            .flexible(true)
            .from_reader(reader);
        let names: Vec<String> = if self.header {
            input
                .byte_headers()
                .map_err(|e| unreadable(&path, e))?
                .iter()
                .map(|n| String::from_utf8_lossy(n.trim_ascii()).into_owned())
                .collect()
        } else {
            Vec::new()
        };
        let key = column_index(&self.key, &names, &path)?;
        let value = match &self.value {
            None => None,
            Some(column) => Some(column_index(column, &names, &path)?),
        };
        Ok(Rows {
            path,
            input,
            names,
            key,
            value,
            on_bad: self.on_bad,
            total,
            monitor,
        })
    }
}

fn unreadable(path: &Path, error: csv::Error) -> LabError {
    let told = error.to_string();
    match error.into_kind() {
        csv::ErrorKind::Io(error) => LabError::io("read", path)(error),
        _ => LabError::input(path, format!("cannot be read: {told}")),
    }
}

impl Rows<'_> {
    /// Loads the rows. A later row replaces an earlier one of the same key.
    ///
    /// # Errors
    /// A row that is too short or not UTF-8 (whole rows only), unless bad rows
    /// are skipped; engine and I/O errors.
    pub fn load(mut self, tree: &Tree) -> Result<Loaded, LabError> {
        let monitor = self.monitor;
        let mut sink = Sink::new(tree, &self.path, self.on_bad, monitor)?;
        monitor.begin(Stage {
            name: "reading",
            total: self.total,
            unit: Unit::Bytes,
        });
        let mut row = ByteRecord::new();
        let mut at = self.input.position().byte();
        loop {
            match self.next(&mut row) {
                Ok(true) => {}
                Ok(false) => return sink.finish(),
                Err(error) => return Err(sink.nothing_stored(error)),
            }
            monitor.advance(self.input.position().byte() - at);
            at = self.input.position().byte();
            let line = row.position().map_or(0, csv::Position::line);
            match record_of(&row, &self.names, self.key, self.value) {
                Ok((key, value)) => sink.store(line, &key, &value)?,
                Err(reason) => sink.bad(line, &reason)?,
            }
        }
    }

    fn next(&mut self, row: &mut ByteRecord) -> Result<bool, LabError> {
        self.monitor.check()?;
        let read = self.input.read_byte_record(row);
        read.map_err(|e| unreadable(&self.path, e))
    }
}

fn column_index(column: &Column, names: &[String], path: &Path) -> Result<usize, LabError> {
    match column {
        Column::Number(0) => Err(LabError::Request("columns are counted from 1".to_owned())),
        Column::Number(n) => Ok(n - 1),
        Column::Name(name) => names.iter().position(|n| n == name).ok_or_else(|| {
            LabError::input(
                path,
                if names.is_empty() {
                    format!(
                        "has no header that could name a column `{name}`; give the column's number"
                    )
                } else {
                    format!(
                        "has no column `{}`; its columns are: {}",
                        crate::escape(name.as_bytes()),
                        crate::escape(names.join(", ").as_bytes())
                    )
                },
            )
        }),
    }
}

fn record_of(
    row: &ByteRecord,
    names: &[String],
    key: usize,
    value: Option<usize>,
) -> Result<(Vec<u8>, Vec<u8>), String> {
    let field = |at: usize| {
        row.get(at).ok_or_else(|| {
            let fields = counted(row.len() as u64, "field");
            format!("it has {fields}, no field {}", at + 1)
        })
    };
    let key = field(key)?.to_vec();
    let value = match value {
        Some(at) => field(at)?.to_vec(),
        None => whole_row(row, names)?.into_bytes(),
    };
    Ok((key, value))
}

/// The row as JSON: an object where there are names, an array otherwise.
fn whole_row(row: &ByteRecord, names: &[String]) -> Result<String, String> {
    let mut fields = Vec::with_capacity(row.len());
    for (at, field) in row.iter().enumerate() {
        let text = std::str::from_utf8(field).map_err(|_| {
            format!(
                "field {} is not UTF-8, so the row cannot be stored as JSON; choose one column with --value-column",
                at + 1
            )
        })?;
        fields.push(Value::String(text.to_owned()));
    }
    if names.is_empty() {
        return Ok(Value::Array(fields).to_string());
    }
    let mut object = Map::new();
    for (at, field) in fields.into_iter().enumerate() {
        let name = names
            .get(at)
            .cloned()
            .unwrap_or_else(|| format!("column {}", at + 1));
        object.insert(name, field);
    }
    Ok(Value::Object(object).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_json() {
        let row = ByteRecord::from(vec!["1", "a \"b\"", "x"]);
        let names = ["id".to_owned(), "name".to_owned()];
        let (key, value) = record_of(&row, &names, 0, None).unwrap();
        assert_eq!(key, b"1");
        assert_eq!(
            value,
            br#"{"column 3":"x","id":"1","name":"a \"b\""}"#.to_vec()
        );
        let (_, value) = record_of(&row, &[], 0, None).unwrap();
        assert_eq!(value, br#"["1","a \"b\"","x"]"#.to_vec());
        assert!(record_of(&row, &names, 9, None).is_err_and(|e| e.contains("no field 10")));
        let row = ByteRecord::from(vec![&b"\xff"[..]]);
        assert!(record_of(&row, &names, 0, None).is_err_and(|e| e.contains("UTF-8")));
        assert_eq!(
            record_of(&row, &names, 0, Some(0)).unwrap().1,
            b"\xff".to_vec()
        );
    }

    #[test]
    fn unknown_columns_are_named_with_the_known_ones() {
        let names = ["id".to_owned(), "name".to_owned()];
        let error =
            column_index(&Column::Name("nam".into()), &names, Path::new("x.csv")).unwrap_err();
        assert!(error.to_string().contains("id, name"), "{error}");
        assert!(column_index(&Column::Number(0), &names, Path::new("x")).is_err());
    }
}
