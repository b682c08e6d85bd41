//! Printing: tables for people, JSON for programs.

use std::io::{self, BufWriter, StdoutLock, Write};

use isobath_lab::{Sheet, escape, escape_controls};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::table;

/// A number of things: "1 record", "1,200 records".
pub(crate) fn counted(number: u64, what: &str) -> String {
    let plural = match (number, what.strip_suffix('y')) {
        (1, _) => return format!("1 {what}"),
        (_, Some(stem)) => format!("{stem}ies"),
        (_, None) => format!("{what}s"),
    };
    format!("{} {plural}", count(number))
}

/// Whether something is sound, or how many problems it has, in words.
pub(crate) fn soundness(problems: u64) -> String {
    match problems {
        0 => "sound".to_owned(),
        problems => counted(problems, "problem"),
    }
}

/// Standard output, buffered; a closed pipe is not an error. What a terminal would act on is
/// escaped in everything that is printed for people, names of files above all.
pub(crate) struct Output {
    out: Sink,
    json: bool,
    width: usize,
}

/// Where output goes.
enum Sink {
    Stdout(BufWriter<StdoutLock<'static>>),
    Kept(Vec<u8>),
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stdout(out) => out.write(bytes),
            Sink::Kept(kept) => kept.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::Stdout(out) => out.flush(),
            Sink::Kept(_) => Ok(()),
        }
    }
}

impl Output {
    pub(crate) fn new(json: bool) -> Output {
        Output {
            out: Sink::Stdout(BufWriter::new(io::stdout().lock())),
            json,
            width: table::width(),
        }
    }

    /// Output in JSON that this process reads itself.
    pub(crate) fn kept() -> Output {
        Output {
            out: Sink::Kept(Vec::new()),
            ..Output::new(true)
        }
    }

    /// The documents of kept output.
    pub(crate) fn documents(self) -> Result<Vec<Value>, Failure> {
        let Sink::Kept(bytes) = &self.out else {
            return Ok(Vec::new());
        };
        let documents = serde_json::Deserializer::from_slice(bytes).into_iter();
        let documents: Result<_, serde_json::Error> = documents.collect();
        Ok(documents.map_err(io::Error::from)?)
    }

    /// Whether JSON was asked for.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// One line for a person.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.lines(&escape_controls(text))
    }

    /// A line for each problem, or whatever else is said of several things.
    pub(crate) fn each(&mut self, what: &str, problems: &[String]) -> Result<(), Failure> {
        let escaped = |problem: &String| escape(problem.as_bytes());
        let mut lines = problems.iter().map(escaped);
        lines.try_for_each(|problem| self.line(&format!("{what}: {problem}")))
    }

    /// One line of fields with tabs between them.
    pub(crate) fn fields(&mut self, fields: &[&str]) -> Result<(), Failure> {
        let fields: Vec<String> = fields.iter().copied().map(escape_controls).collect();
        self.lines(&fields.join("\t"))
    }

    /// A text for a person, on as many lines as the terminal takes for it.
    pub(crate) fn paragraph(&mut self, text: &str) -> Result<(), Failure> {
        let text = table::wrapped(&escape_controls(text), self.width);
        self.lines(&text)
    }

    fn lines(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write_all(text.as_bytes())?;
        self.out.write_all(b"\n")?;
        Ok(())
    }

    /// One JSON document on one line.
    pub(crate) fn document(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.out, value).map_err(io::Error::from)?;
        self.out.write_all(b"\n")?;
        Ok(())
    }

    /// Bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes)?;
        Ok(())
    }

    /// A table that fits the terminal; columns after the first are aligned to the right where
    /// `numbers` says so.
    pub(crate) fn table(
        &mut self,
        header: &[&str],
        rows: &[Vec<String>],
        numbers: bool,
    ) -> Result<(), Failure> {
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| escape_controls(cell)).collect())
            .collect();
        let text = match numbers {
            true => table::numbers(header, &rows, self.width),
            false => table::texts(header, &rows, self.width),
        };
        self.lines(&text)
    }

    /// A table of numbers that the laboratory describes.
    pub(crate) fn sheet(&mut self, sheet: &Sheet) -> Result<(), Failure> {
        self.table(&sheet.header, &sheet.rows, true)
    }

    /// A table of texts that the laboratory describes.
    pub(crate) fn texts(&mut self, sheet: &Sheet) -> Result<(), Failure> {
        self.table(&sheet.header, &sheet.rows, false)
    }

    /// Facts under these two names, if they have any.
    pub(crate) fn facts<N: Into<String>>(
        &mut self,
        header: &[&str],
        facts: impl IntoIterator<Item = (N, String)>,
        numbers: bool,
    ) -> Result<(), Failure> {
        let rows = facts
            .into_iter()
            .map(|(name, value)| vec![name.into(), value]);
        self.table(header, &rows.collect::<Vec<_>>(), numbers)
    }

    /// Columns of the terminal.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Sends all output so far to the terminal.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush()?;
        Ok(())
    }

    /// Sends all output to the terminal.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.out.flush()?;
        Ok(())
    }
}

/// Puts bytes into a JSON object: as text in `name` if they are UTF-8, in
/// hexadecimal in `name_hex` otherwise.
pub(crate) fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match isobath_lab::text_or_hex(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(hex) => object.insert(format!("{name}_hex"), hex.into()),
    };
}

/// A number with a thin separator between thousands.
pub(crate) fn count(number: u64) -> String {
    isobath_lab::separated(&number.to_string())
}

/// Bytes with a binary unit: "1.2 GiB".
pub(crate) fn size(bytes: u64) -> String {
    isobath_lab::ByteSize(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1,000");
        assert_eq!(count(1_234_567), "1,234,567");
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(counted(1, "record"), "1 record");
        assert_eq!(counted(0, "record"), "0 records");
        assert_eq!(counted(1200, "summary"), "1,200 summaries");
    }

    #[test]
    fn bytes_that_are_no_text_go_to_json_in_hex() {
        let mut object = Map::new();
        put_bytes(&mut object, "key", b"a");
        put_bytes(&mut object, "value", b"\xff");
        assert_eq!(
            Value::Object(object).to_string(),
            r#"{"key":"a","value_hex":"ff"}"#
        );
    }
}
