//! Rows and points of an experiment, from the lines that describe it.

use std::collections::BTreeMap;

use isobath_model::lsm::{AccessCosts, PrintedLsm};
use isobath_model::{PAGE_BYTES, fit_line};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{PaperSize, Point, Row};

/// A text for all sizes, or one for each.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Sized {
    One(String),
    Each(String, String, String),
}

pub(super) type Texts = BTreeMap<String, Sized>;

impl Sized {
    fn of(&self, size: PaperSize) -> &str {
        match self {
            Sized::One(text) => text,
            Sized::Each(small, machine, full) => size.of(small, machine, full),
        }
    }
}

/// The rows of `series | x | command && command | note`, or `series | x | lacks: why`: one for each
/// word of the lists that the line names as `{list}`; other names are texts. A text may be all of
/// the third part.
pub(super) fn rows(line: &str, texts: &Texts, lists: &Texts, size: PaperSize) -> Vec<Row> {
    let mut lines = vec![line.to_owned()];
    for (name, words) in lists {
        let slot = format!("{{{name}}}");
        let of_word = |line: &String| -> Vec<String> {
            let words = words.of(size).split_whitespace();
            words.map(|word| line.replace(&slot, word)).collect()
        };
        if line.contains(&slot) {
            lines = lines.iter().flat_map(of_word).collect();
        }
    }
    let of_line = |mut line: String| {
        // Twice: texts name other texts.
        for (name, text) in texts.iter().chain(texts) {
            line = line.replace(&format!("{{{name}}}"), text.of(size));
        }
        let parts: Vec<&str> = line.split(" | ").collect();
        let part = |at: usize| parts.get(at).copied().unwrap_or_default();
        let (lacks, commands) = match part(2).strip_prefix("lacks: ") {
            Some(why) => (Some(why.to_owned()), Vec::new()),
            None => (None, part(2).split(" && ").map(str::to_owned).collect()),
        };
        Row {
            series: part(0).to_owned(),
            x: part(1).parse().unwrap_or(f64::NAN),
            commands,
            note: part(3).to_owned(),
            lacks,
        }
    };
    lines.into_iter().map(of_line).collect()
}

/// A line of the documents' numbers through x and y as one more document.
pub(super) fn fit(x: &str, y: &str, row: &Row, documents: &[Value]) -> Value {
    let at = |document| {
        let (element, before, first) = (document, None, None);
        let place = Place {
            row,
            document,
            element,
            before,
            first,
        };
        (place.number(x), place.number(y))
    };
    let points: Vec<(f64, f64)> = documents.iter().map(at).collect();
    let line = fit_line(&points);
    json!({"slope": line.slope, "intercept": line.intercept, "r_squared": line.r_squared})
}

/// What equations 9 to 12 of paper 000 predict for its RocksDB (section 5.3) of a fanout, from
/// Table 2's t, α, s and β: a query, a scan of 128 records, an insert.
pub(super) fn predicted(fanout_and_costs: &str) -> Value {
    let numbers = fanout_and_costs.split(' ');
    let numbers: Vec<f64> = numbers.filter_map(|number| number.parse().ok()).collect();
    let [fanout, t, read_transfer_us, s, write_transfer_us] = numbers[..] else {
        return Value::Null;
    };
    let record_bytes = 16.0 + 2048.0;
    let tree = PrintedLsm {
        data_bytes: 6.4e7 * record_bytes,
        file_bytes: f64::from(64 << 20),
        l0_files: 4.0,
        block_bytes: 4096.0,
        page_bytes: PAGE_BYTES as f64,
        record_bytes,
    };
    // Table 2's setup is for a percent of the pages of 1 GiB.
    let accesses = 2621.44;
    let costs = AccessCosts {
        read_setup_us: t / accesses,
        read_transfer_us,
        write_setup_us: s / accesses,
        write_transfer_us,
    };
    let query_us = tree.point_query_us(fanout, &costs);
    let scan_us = query_us + tree.scan_transfer_us(128.0 * record_bytes, &costs);
    json!({"query_us": query_us, "scan_us": scan_us, "insert_us": tree.insert_us(fanout, &costs)})
}

/// The points of `chart | series | x | y | conditions`. A series is `row`, a pointer or a name; x
/// and y are terms with operators between them, from left to right. A term is a number, `row`, a
/// pointer, a pointer behind `Δ`, the difference to the element before, or behind `^`, the first
/// element's. Conditions are `in POINTER`, first, which takes the elements of lists, and
/// `POINTER=word` or `row=word`.
pub(super) fn points(line: &str, row: &Row, documents: &[Value]) -> Vec<Point> {
    let parts: Vec<&str> = line.split(" | ").collect();
    let part = |at: usize| parts.get(at).copied().unwrap_or_default();
    let (list, conditions) = match part(4).strip_prefix("in ") {
        Some(rest) => rest.split_once(' ').unwrap_or((rest, "")),
        None => ("", part(4)),
    };
    let elements_of = |document| -> Vec<(&Value, &Value)> {
        let elements: Vec<&Value> = match list {
            "" => vec![document],
            list => {
                let found = document.pointer(list).and_then(Value::as_array);
                found.into_iter().flatten().collect()
            }
        };
        elements
            .into_iter()
            .map(|element| (document, element))
            .collect()
    };
    let elements: Vec<(&Value, &Value)> = documents.iter().flat_map(elements_of).collect();
    let at = |at: usize| elements.get(at).map(|(_, element)| *element);
    let mut found = Vec::new();
    for (number, &(document, element)) in elements.iter().enumerate() {
        let (before, first) = (number.checked_sub(1).and_then(at), at(0));
        let place = Place {
            row,
            document,
            element,
            before,
            first,
        };
        let is_met = |condition: &str| {
            let (pointer, wanted) = condition.split_once('=').unwrap_or((condition, ""));
            place.word(pointer) == wanted
        };
        if conditions.split_whitespace().all(is_met) {
            found.push(Point {
                chart: part(0).parse().unwrap_or(0),
                series: place.word(part(1)),
                x: place.number(part(2)),
                y: place.number(part(3)),
            });
        }
    }
    found.retain(|point| point.x.is_finite() && point.y.is_finite());
    found
}

/// Where terms are looked up.
struct Place<'p> {
    row: &'p Row,
    document: &'p Value,
    element: &'p Value,
    before: Option<&'p Value>,
    first: Option<&'p Value>,
}

impl Place<'_> {
    fn word(&self, term: &str) -> String {
        match (term, term.starts_with('/')) {
            ("row", _) => self.row.series.clone(),
            (pointer, true) => match self.value(pointer) {
                Some(Value::String(word)) => word.clone(),
                Some(value) => value.to_string(),
                None => String::new(),
            },
            (name, false) => name.to_owned(),
        }
    }

    fn value(&self, pointer: &str) -> Option<&Value> {
        self.element
            .pointer(pointer)
            .or_else(|| self.document.pointer(pointer))
    }

    /// From left to right; NaN for what is absent.
    fn number(&self, terms: &str) -> f64 {
        let mut words = terms.split_whitespace();
        let mut sum = self.term(words.next().unwrap_or_default());
        while let (Some(operator), Some(term)) = (words.next(), words.next()) {
            let term = self.term(term);
            sum = match operator {
                "*" => sum * term,
                "/" => sum / term,
                "-" => sum - term,
                _ => sum + term,
            };
        }
        sum
    }

    fn term(&self, term: &str) -> f64 {
        let of = |value: Option<&Value>| value.and_then(Value::as_f64).unwrap_or(f64::NAN);
        if let Some(pointer) = term.strip_prefix('Δ') {
            let before = self
                .before
                .map_or(0.0, |before| of(before.pointer(pointer)));
            return of(self.element.pointer(pointer)) - before;
        }
        if let Some(pointer) = term.strip_prefix('^') {
            return of(self.first.and_then(|first| first.pointer(pointer)));
        }
        match term {
            "row" => self.row.x,
            pointer if pointer.len() > 1 && pointer.starts_with('/') => of(self.value(pointer)),
            number => number.parse().unwrap_or(f64::NAN),
        }
    }
}
