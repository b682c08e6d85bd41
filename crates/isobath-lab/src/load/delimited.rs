//! CSV and TSV.

use std::cell::RefCell;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

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
    /// Byte between fields, such as `,` or a tab.
    pub delimiter: u8,
    /// Whether the first line names the columns.
    pub header: bool,
    /// The column that becomes the key.
    pub key: Column,
    /// The column that becomes the value. `None` stores the whole row: a JSON
    /// object of column names and texts, or an array if there is no header.
    pub value: Option<Column>,
    /// The treatment of a row that cannot be stored.
    pub on_bad: OnBad,
}

/// A delimited file whose columns were found; nothing is loaded yet.
pub struct Rows<'m> {
    path: PathBuf,
    input: RowReader<'m>,
    handed_out: Rc<RefCell<HandedOut>>,
    names: Vec<String>,
    key: usize,
    value: Option<usize>,
    on_bad: OnBad,
    total: Option<u64>,
    monitor: &'m dyn Monitor,
}

crate::names::opaque!(Rows<'_>, "Rows");

type RowReader<'m> = csv::Reader<Terminated<BufReader<InputFile<'m>>>>;

/// A row of its own, which a quote that is still open swallows.
const LAST_ROW: &[u8] = b"\n.";

/// What is read, and [`LAST_ROW`] behind its end: the reader of rows takes an open quote at the end
/// for a closed one.
struct Terminated<R> {
    input: R,
    handed_out: Rc<RefCell<HandedOut>>,
    last_row: &'static [u8],
}

/// The bytes that the reader of rows has taken so far.
#[derive(Default)]
struct HandedOut {
    /// Bytes of the input, and all of them once `LAST_ROW` is handed out.
    length: u64,
    /// Bytes before those of the newest piece, and the last one of them.
    before: u64,
    last_before: u8,
    piece: Vec<u8>,
}

impl HandedOut {
    fn add(&mut self, piece: &[u8]) {
        if let Some(last) = self.piece.last() {
            self.last_before = *last;
        }
        self.before += self.piece.len() as u64;
        self.piece.clear();
        self.piece.extend_from_slice(piece);
    }

    /// The byte that ends at `end`, which lies in the newest piece or right before it.
    fn byte_before(&self, end: u64) -> u8 {
        match end.checked_sub(self.before + 1) {
            None => self.last_before,
            Some(at) => self.piece.get(at as usize).copied().unwrap_or_default(),
        }
    }
}

impl<R: Read> Read for Terminated<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut handed_out = self.handed_out.borrow_mut();
        let mut read = self.input.read(to)?;
        handed_out.length += read as u64;
        if read == 0 {
            read = self.last_row.read(to)?;
        }
        if read > 0 {
            handed_out.add(&to[..read]);
        }
        Ok(read)
    }
}

/// The line that a row begins in, from where reading it has ended. The reader of rows says where it
/// began to look for one, which may be the end of an earlier line, or an empty one.
fn first_line(row: &ByteRecord, end: &csv::Position, handed_out: &HandedOut) -> u64 {
    let inside = row.as_slice().iter().filter(|byte| **byte == b'\n').count() as u64;
    // The line feed behind a carriage return is read with the next row.
    let behind = u64::from(handed_out.byte_before(end.byte()) == b'\n');
    end.line().saturating_sub(inside + behind)
}

/// The end of a row.
enum Ended {
    /// One of the input's.
    Row,
    /// [`LAST_ROW`]: there are no more.
    Input,
    /// One with a quote that is never closed.
    Open,
}

/// Looks at a row that was read up to byte `end` of an input of that `length`.
fn ended(row: &ByteRecord, end: u64, length: u64) -> Ended {
    let is_last = end == length + LAST_ROW.len() as u64;
    // The field that an open quote makes has the line feed, too.
    let is_alone = row.len() == 1 && row.get(0) == LAST_ROW.get(1..);
    match (is_last, is_alone) {
        (false, _) => Ended::Row,
        (true, true) => Ended::Input,
        (true, false) => Ended::Open,
    }
}

const OPEN_QUOTE: &str = "a quote that begins here or in a field behind it is never closed, so that everything behind it is one field";

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
        let handed_out = Rc::new(RefCell::new(HandedOut::default()));
        let reader = Terminated {
            input: BufReader::with_capacity(1 << 20, file),
            handed_out: Rc::clone(&handed_out),
            last_row: LAST_ROW,
        };
        let mut input = csv::ReaderBuilder::new()
            .delimiter(self.delimiter)
            .has_headers(self.header)
            .flexible(true)
            .from_reader(reader);
        let names: Vec<String> = if self.header {
            let header = input.byte_headers().map_err(|e| unreadable(&path, e))?;
            let header = header.clone();
            let names = header
                .iter()
                .enumerate()
                .map(|(at, name)| name_of(at, name));
            let names: Vec<_> = names.collect();
            match ended(&header, input.position().byte(), handed_out.borrow().length) {
                Ended::Row => names,
                Ended::Input => Vec::new(),
                Ended::Open => {
                    return Err(LabError::input(&path, format!("the header: {OPEN_QUOTE}")));
                }
            }
        } else {
            Vec::new()
        };
        if let [name] = names.as_slice() {
            doubt_delimiter(name, &path, monitor);
        }
        let key = column_index(&self.key, &names, &path)?;
        let value = match &self.value {
            None => {
                // Each is a field of the rows' JSON.
                let mut columns = names.iter();
                columns.try_for_each(|name| position(name, &names, &path).map(drop))?;
                None
            }
            Some(column) => Some(column_index(column, &names, &path)?),
        };
        Ok(Rows {
            path,
            input,
            handed_out,
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
    /// Bytes of the input, if that is known.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.total
    }

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
            let handed_out = self.handed_out.borrow();
            let (before, length) = (at, handed_out.length);
            let line = first_line(&row, self.input.position(), &handed_out);
            drop(handed_out);
            at = self.input.position().byte();
            monitor.advance(at.min(length).saturating_sub(before));
            match ended(&row, at, length) {
                Ended::Row => {}
                Ended::Input => return sink.finish(),
                Ended::Open => {
                    sink.bad(line, OPEN_QUOTE)?;
                    return sink.finish();
                }
            }
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

/// What column `at`, counted from 0, is called: as the header says, or by its number where that
/// says nothing.
fn name_of(at: usize, name: &[u8]) -> String {
    match name.trim_ascii() {
        [] => format!("column {}", at + 1),
        name => String::from_utf8_lossy(name).into_owned(),
    }
}

/// Says so where a header that is one column looks as if another delimiter were between several.
fn doubt_delimiter(header: &str, path: &Path, monitor: &dyn Monitor) {
    if let Some(found) = header.chars().find(|c| ",;|\t".contains(*c)) {
        let found = found.escape_default();
        monitor.say(&format!(
            "{}: the header is one column, `{header}`; if its columns are separated by `{found}`, add --delimiter '{found}' to `load csv`",
            path.display()
        ));
    }
}

fn column_index(column: &Column, names: &[String], path: &Path) -> Result<usize, LabError> {
    match column {
        Column::Number(0) => Err(LabError::Request("columns are counted from 1".to_owned())),
        Column::Number(n) => Ok(n - 1),
        Column::Name(name) => position(name, names, path),
    }
}

/// The position of the one column of that name.
fn position(name: &str, names: &[String], path: &Path) -> Result<usize, LabError> {
    let mut found = (0..names.len()).filter(|at| names[*at] == name);
    let shown = crate::escape(name.as_bytes());
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(at),
        (Some(first), Some(second)) => Err(LabError::input(
            path,
            format!(
                "its header names columns {} and {} `{shown}`: rename one, or choose columns by number with --key-column and --value-column",
                first + 1,
                second + 1
            ),
        )),
        (None, _) if names.is_empty() => Err(LabError::input(
            path,
            format!("has no header that could name a column `{shown}`; give the column's number"),
        )),
        (None, _) => Err(LabError::input(
            path,
            format!(
                "has no column `{shown}`; its columns are: {}",
                crate::escape(names.join(", ").as_bytes())
            ),
        )),
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

/// The row as JSON: an object if there are names, an array otherwise.
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
        let name = names.get(at).cloned();
        let name = name.unwrap_or_else(|| name_of(at, b""));
        if object.insert(name, field).is_some() {
            let name = name_of(at, b"");
            return Err(format!(
                "field {} has no name in the header, and another column is called `{name}`",
                at + 1
            ));
        }
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

    #[test]
    fn no_value_of_a_row_takes_the_place_of_another() {
        let names = ["id", "v", "v"].map(str::to_owned);
        let error = position("v", &names, Path::new("x.csv")).unwrap_err();
        assert!(error.to_string().contains("columns 2 and 3 `v`"), "{error}");
        assert_eq!(position("id", &names, Path::new("x.csv")).unwrap(), 0);
        // A field beyond the header, beside a column that has the name that it would get.
        let row = ByteRecord::from(vec!["1", "2", "3"]);
        let names = ["id", "column 3"].map(str::to_owned);
        assert!(record_of(&row, &names, 0, None).is_err_and(|e| e.contains("`column 3`")));
        assert_eq!(
            (name_of(2, b" "), name_of(2, b" a ")),
            ("column 3".into(), "a".into())
        );
    }
}
