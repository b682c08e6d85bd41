//! The pages that the laboratory writes: one self-contained file each, light or dark as the
//! reader's browser is, without a script and with nothing to load. Everything that stands in a page
//! or a chart is escaped by `maud`.

mod axis;
mod chart;
#[cfg(test)]
pub(crate) mod check;

pub(crate) use axis::Axis;
pub(crate) use chart::{Chart, Ink, legend};
pub(crate) use maud::{Markup, html};

use maud::{DOCTYPE, PreEscaped};

const STYLE: &str = include_str!("style.css");

/// A whole page under its title.
pub(crate) fn page(title: &str, content: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { h1 { (title) } (content) }
        }
    };
    page.into_string() + "\n"
}

/// A column of a table.
#[derive(Debug)]
pub(crate) struct Column {
    name: String,
    class: Option<&'static str>,
}

/// A column of words, from the left.
pub(crate) fn words(name: impl Into<String>) -> Column {
    let (name, class) = (name.into(), None);
    Column { name, class }
}

/// A column of numbers, to the right.
pub(crate) fn number(name: impl Into<String>) -> Column {
    let (name, class) = (name.into(), Some("n"));
    Column { name, class }
}

/// The cells of a row.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { vec![$($crate::report::html! { ($cell) }),*] };
}
pub(crate) use cells;

/// A table whose columns stand beside their cells of a row: how a column is aligned (`words` or
/// `number`), its name, and the cell.
macro_rules! tabulate {
    ($rows:expr, $row:pat => $(let $name:pat = $value:expr;)* {
        $($column:ident $title:literal: $cell:expr),* $(,)?
    }) => {
        $crate::report::table(
            &[$($crate::report::$column($title)),*],
            $rows.into_iter().map(|$row| {
                $(let $name = $value;)*
                $crate::report::cells![$($cell),*]
            }),
        )
    };
}
pub(crate) use tabulate;

/// Whether there is nothing to read in a cell.
fn is_empty(cell: &Markup) -> bool {
    // Text between tags, escaped.
    let mut parts = cell.0.split('<');
    let first = parts.next().unwrap_or_default();
    let is_blank = |part: &str| {
        part.split_once('>')
            .is_none_or(|(_, text)| text.trim().is_empty())
    };
    first.trim().is_empty() && parts.all(is_blank)
}

/// A table, whose rows become lists where the screen is narrow. The last cell of a short row takes
/// the columns that are left. Rows and columns in which there is nothing beside their names are
/// left out, and so is a table without rows.
pub(crate) fn table(columns: &[Column], rows: impl IntoIterator<Item = Vec<Markup>>) -> Markup {
    let says = |row: &Vec<Markup>| row.len() == 1 || !row.iter().skip(1).all(is_empty);
    let rows: Vec<Vec<Markup>> = rows.into_iter().filter(says).collect();
    if rows.is_empty() {
        return Markup::default();
    }
    let is_used = |at: usize| {
        at == 0
            || rows
                .iter()
                .any(|row| row.get(at).is_some_and(|c| !is_empty(c)))
    };
    let used: Vec<bool> = (0..columns.len()).map(is_used).collect();
    let is_used = |at: usize| used.get(at) == Some(&true);
    let columns_from = |first: usize| (first..columns.len()).filter(|at| is_used(*at)).count();
    html! {
        div.scroll { table {
            thead { tr { @for (at, column) in columns.iter().enumerate() { @if is_used(at) {
                th class=[column.class] { (column.name) }
            } } } }
            tbody { @for row in &rows { tr {
                @for (at, cell) in row.iter().enumerate() { @if is_used(at) {
                    @let span = if at + 1 == row.len() { columns_from(at).max(1) } else { 1 };
                    @if span > 1 { td colspan=(span) { (cell) } }
                    @else {
                        td class=[columns.get(at).and_then(|column| column.class)]
                            data-name=[columns.get(at).map(|column| &column.name)] { (cell) }
                    }
                } }
            } } }
        } }
    }
}

/// A table that the terminal and pages show alike: the first column names a row, the others hold
/// numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Sheet {
    /// Names of the columns.
    pub header: Vec<&'static str>,
    /// The cells.
    pub rows: Vec<Vec<String>>,
}

/// A column: its name, and what it shows of a row.
pub type SheetColumn<R> = (&'static str, fn(&R) -> String);

impl Sheet {
    /// The rows as these columns show them.
    #[must_use]
    pub fn of<R>(rows: &[R], columns: &[SheetColumn<R>]) -> Sheet {
        let cells = |row: &R| columns.iter().map(|(_, show)| show(row)).collect();
        Sheet {
            header: columns.iter().map(|(name, _)| *name).collect(),
            rows: rows.iter().map(cells).collect(),
        }
    }
}

/// A sheet as a table of a page.
pub(crate) fn sheet(sheet: &Sheet) -> Markup {
    let mut columns: Vec<Column> = sheet.header.iter().map(|name| number(*name)).collect();
    columns
        .iter_mut()
        .take(1)
        .for_each(|name| name.class = None);
    let cells = |row: &Vec<String>| row.iter().map(|cell| html! { (cell) }).collect();
    table(&columns, sheet.rows.iter().map(cells))
}

/// A list of facts, name by name.
pub(crate) fn facts(facts: &[(&str, String)]) -> Markup {
    html! { dl { @for (name, value) in facts { dt { (name) } dd { (value) } } } }
}

/// Three significant digits and a power of a thousand: 1234567 → `1.23M`.
pub(crate) fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let before_point = scaled.abs().max(1e-6).log10().floor() as i32 + 1;
    let text = format!("{scaled:.*}", (3 - before_point).max(0) as usize);
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{suffix}")
}

/// Digits with a separator between thousands: 1234567 → `1,234,567`.
#[must_use]
pub fn separated(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// 1234567.8 → `1,234,568`.
pub(crate) fn grouped(value: f64) -> String {
    separated(&format!("{value:.0}"))
}

/// With so many digits behind the point, or that it is unknown.
pub(crate) fn or_unknown(value: Option<f64>, digits: usize) -> String {
    value.map_or("unknown".to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        for (value, text) in [
            (1_234_567.0, "1.23M"),
            (50_000.0, "50k"),
            (2e9, "2G"),
            (120.0, "120"),
            (0.25, "0.25"),
            (0.05, "0.05"),
            (0.0, "0"),
        ] {
            assert_eq!(short(value), text);
        }
        assert_eq!(grouped(1_234_567.8), "1,234,568");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(or_unknown(Some(1.234), 2), "1.23");
        assert_eq!(or_unknown(None, 2), "unknown");
    }

    #[test]
    fn a_chart_is_a_file_of_its_own() {
        let mut chart = Chart::new("a < b", Axis::log("ratio", 0.1, 9.0), Axis::named(2));
        chart.name(1.0, "row & co");
        chart.point((2.0, 1.0), Ink::Series(0), false, "2");
        let svg = chart.svg(&[(Ink::Series(0), "RocksDB".to_owned())]);
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<&str> = document
            .descendants()
            .filter(|node| node.has_tag_name("text") || node.tag_name().name() == "text")
            .filter_map(|node| node.text())
            .collect();
        for text in ["a < b", "row & co", "RocksDB", "ratio"] {
            assert!(texts.contains(&text), "{text} in {texts:?}");
        }
        // Rows have names, and no numbers: all other texts are ticks of the ratio's axis.
        assert!(texts.iter().all(|text| *text != "0"), "{texts:?}");
        assert!(svg.contains("xmlns=\"http://www.w3.org/2000/svg\"") && svg.contains("--paper"));
    }

    #[test]
    fn what_says_nothing_is_left_out_of_a_table() {
        let columns = [words("run"), number("a"), number("b"), words("c")];
        let nothing = || html! { span.violated {} };
        let rows = [
            cells!["one", 1, "", nothing()],
            cells!["two", "", "", nothing()],
            cells!["three", "", "", "said"],
        ];
        let shown = page("t", &table(&columns, rows));
        let document = check::Page::of(&shown);
        assert_eq!(
            document.rows(),
            [vec!["one", "1", ""], vec!["three", "", "said"]]
        );
        assert_eq!(document.texts("th"), ["run", "a", "c"]);
        // On a narrow screen each cell says of which column it is.
        assert!(shown.contains("data-name=\"a\""));
        assert!(table(&columns, [cells!["two", "", "", ""]]).0.is_empty());
    }

    #[test]
    fn a_page_escapes_what_stands_in_it() {
        let nasty = "<a & \"b\">";
        let columns = [words(nasty), number("n"), number("m")];
        let mut chart = Chart::new(nasty, Axis::log(nasty, 1.0, 9.0), Axis::count(nasty, 3));
        chart.curve(&[(1.0, 1.0), (9.0, 3.0)], Ink::Series(0), nasty);
        chart.point((3.0, 2.0), Ink::Ramp(0.5), true, nasty);
        chart.bar((1.0, 3.0), Ink::Series(1), nasty);
        chart.rule((1.0, 2.0), (9.0, 2.0), "limit", nasty);
        let content = html! {
            (facts(&[("name", nasty.to_owned())]))
            (table(&columns, [cells![nasty, 1, 2.5], cells![nasty, nasty]]))
            (chart.figure(&[(Ink::Series(0), nasty.to_owned())]))
        };
        let page = page(nasty, &content);
        let document = check::Page::of(&page);
        assert!(!page.contains("<a"));
        assert_eq!(
            document.rows(),
            [vec![nasty, "1", "2.5"], vec![nasty, nasty]]
        );
        assert_eq!(page.matches("colspan=\"2\"").count(), 1);
        assert_eq!(document.texts("dd"), [nasty]);
        assert_eq!(document.texts("figcaption"), [nasty]);
        assert_eq!(document.tooltips(), [nasty; 4]);
    }
}
