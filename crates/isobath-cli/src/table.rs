//! Tables that fit the terminal.
//!
//! A table of texts wraps its cells. A table of numbers that is too wide is first freed of columns
//! that say the same in every row, then has its header on several lines, and is turned at last,
//! rows to columns, in as many parts as it needs.

use std::io::{self, IsTerminal};

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

/// Columns if nothing says how many there are.
pub(crate) const DEFAULT_WIDTH: usize = 80;
/// Fewer are ignored: nothing would be readable.
const MIN_WIDTH: usize = 30;
/// Columns of a cell's padding, and of the gap to the next one.
const PADDING: usize = 3;

/// Lines that a header may have.
const MAX_HEADER_LINES: usize = 3;

/// Columns without borders, a rule above, below and under the header.
const RULED: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// Columns that standard output has: those of the terminal, or what COLUMNS says.
pub(crate) fn width() -> usize {
    let stdout = io::stdout();
    let terminal = stdout
        .is_terminal()
        .then(|| terminal_size::terminal_size_of(&stdout))
        .flatten()
        .map(|(width, _)| usize::from(width.0));
    let said = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal
        .filter(|&width| width > 0)
        .or_else(said)
        .unwrap_or(DEFAULT_WIDTH)
        .max(MIN_WIDTH)
}

/// Names, values and what they mean, without a header; cells are wrapped if they are too wide.
pub(crate) fn texts(header: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let mut table = ruled(header, rows);
    if !fits(header, rows, width) {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    }
    table.trim_fmt()
}

/// Numbers under a header, to the right; the first column names the row.
pub(crate) fn numbers(header: &[&str], rows: &[Vec<String>], width: usize) -> String {
    if fits(header, rows, width) {
        return aligned(header, rows);
    }
    let (header, rows, same) = without_constants(header, rows);
    let below = |table: String| match same.is_empty() {
        true => table,
        false => format!("{}\n{table}", wrapped(&same, width)),
    };
    if fits(&header, &rows, width) {
        return below(aligned(&header, &rows));
    }
    for lines in 2..=MAX_HEADER_LINES {
        let tall: Vec<String> = header.iter().map(|name| in_lines(name, lines)).collect();
        let tall: Vec<&str> = tall.iter().map(String::as_str).collect();
        if fits(&tall, &rows, width) {
            return below(aligned(&tall, &rows));
        }
    }
    below(turned(&header, &rows, width))
}

fn ruled(header: &[&str], rows: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    table.load_style(RULED);
    if !header.is_empty() {
        table.set_header(header);
    }
    table.add_rows(rows);
    table
}

fn aligned(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = ruled(header, rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// Characters of the widest line of each column.
fn columns(header: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    (0..count.max(header.len()))
        .map(|at| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            let cells = cells.map(String::as_str).chain(header.get(at).copied());
            cells.map(widest_line).max().unwrap_or(0)
        })
        .collect()
}

fn widest_line(cell: &str) -> usize {
    let lines = cell.lines().map(|line| line.chars().count());
    lines.max().unwrap_or(0)
}

fn fits(header: &[&str], rows: &[Vec<String>], width: usize) -> bool {
    let columns = columns(header, rows);
    columns.iter().map(|w| w + PADDING).sum::<usize>() <= width
}

/// Takes out the columns, but the first, that say the same in every one of several rows; what they
/// say.
fn without_constants<'h>(
    header: &[&'h str],
    rows: &[Vec<String>],
) -> (Vec<&'h str>, Vec<Vec<String>>, String) {
    let [first, others @ ..] = rows else {
        return (header.to_vec(), rows.to_vec(), String::new());
    };
    let is_constant = |at: usize| {
        at > 0 && !others.is_empty() && others.iter().all(|row| row.get(at) == first.get(at))
    };
    let mut same = Vec::new();
    for (at, name) in header.iter().enumerate().filter(|(at, _)| is_constant(*at)) {
        same.push(format!(
            "{name} {}",
            first.get(at).map_or("", String::as_str)
        ));
    }
    let header = (0..).zip(header).filter(|(at, _)| !is_constant(*at));
    let rows = rows.iter().map(|row| {
        let cells = (0..).zip(row).filter(|(at, _)| !is_constant(*at));
        cells.map(|(_, cell)| cell.clone()).collect()
    });
    let same = match same.is_empty() {
        true => String::new(),
        false => format!("all rows: {}", same.join(", ")),
    };
    (
        header.map(|(_, name)| *name).collect(),
        rows.collect(),
        same,
    )
}

/// Rows become columns; several tables where not all fit beside each other.
fn turned(header: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let names = header.iter().map(|name| name.chars().count() + PADDING);
    let names = names.max().unwrap_or(0);
    let mut tables = Vec::new();
    let mut rest = rows;
    while !rest.is_empty() {
        let mut used = names;
        let row_width = |row: &Vec<String>| {
            let cells = row.iter().map(|cell| widest_line(cell) + PADDING);
            cells.max().unwrap_or(0)
        };
        let fitting = rest.iter().take_while(|row| {
            used += row_width(row);
            used <= width
        });
        let (part, later) = rest.split_at(fitting.count().max(1));
        rest = later;
        let lines: Vec<Vec<String>> = header
            .iter()
            .enumerate()
            .map(|(at, name)| {
                let cells = part
                    .iter()
                    .map(|row| row.get(at).cloned().unwrap_or_default());
                std::iter::once((*name).to_owned()).chain(cells).collect()
            })
            .collect();
        tables.push(aligned(&[], &lines));
    }
    tables.join("\n")
}

/// Words on at most so many lines, as narrow as that can be.
fn in_lines(text: &str, lines: usize) -> String {
    let width = text.chars().count();
    let narrow = (1..width).map(|width| wrapped(text, width));
    let mut narrow = narrow.filter(|text| text.lines().count() <= lines);
    narrow.next().unwrap_or_else(|| text.to_owned())
}

/// Words on lines of at most `width` characters, where each word is no longer.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    let mut length = 0;
    for word in text.split(' ') {
        let more = word.chars().count();
        if let Some(line) = lines.last_mut() {
            if length > 0 && length + 1 + more <= width {
                line.push(' ');
                line.push_str(word);
                length += 1 + more;
                continue;
            }
            if length == 0 {
                line.push_str(word);
                length = more;
                continue;
            }
        }
        lines.push(word.to_owned());
        length = more;
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(rows: &[&[&str]]) -> Vec<Vec<String>> {
        let row = |row: &&[&str]| row.iter().map(|cell| (*cell).to_owned()).collect();
        rows.iter().map(row).collect()
    }

    #[track_caller]
    fn assert_within(text: &str, width: usize) {
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}\n{text}");
        }
    }

    #[test]
    fn texts_are_wrapped_and_none_is_lost() {
        let rows = cells(&[
            &[
                "name",
                "12.0 KiB",
                "what it means, in a long sentence of several words",
            ],
            &[
                "another name",
                "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
                "short",
            ],
        ]);
        for width in [30, 40, 60, 80] {
            let shown = texts(&[], &rows, width);
            assert_within(&shown, width);
            for word in rows.iter().flatten().flat_map(|cell| cell.split(' ')) {
                // A word that is wider than its column is broken.
                assert!(
                    width < 60 || shown.contains(word),
                    "{word} at {width}: {shown}"
                );
            }
        }
        assert_eq!(texts(&[], &rows, 200).lines().count(), 4);
    }

    #[test]
    fn numbers_lose_constant_columns_first_and_are_turned_last() {
        let header = ["backend", "threads", "reads per second", "p99 µs"];
        let rows = cells(&[
            &["io_uring", "1", "123,456", "78"],
            &["libaio", "1", "98,765", "101"],
        ]);
        let wide = numbers(&header, &rows, 80);
        assert!(!wide.contains("all rows"), "{wide}");
        let narrow = numbers(&header, &rows, 40);
        assert!(narrow.starts_with("all rows: threads 1\n"), "{narrow}");
        assert_within(&narrow, 40);
        let tall = numbers(&header, &rows, 30);
        assert_within(&tall, 30);
        assert!(
            tall.contains("second") && !tall.contains("reads per second"),
            "{tall}"
        );
        let many: Vec<Vec<String>> = (0..9)
            .map(|n| {
                vec![
                    format!("row{n}"),
                    n.to_string(),
                    "1,000,000,000".into(),
                    n.to_string(),
                ]
            })
            .collect();
        let turned = numbers(&header, &many, 36);
        assert_within(&turned, 36);
        assert!(
            (0..9).all(|n| turned.contains(&format!("row{n}"))),
            "{turned}"
        );
        let alone = numbers(&header, &rows[..1], 30);
        assert_within(&alone, 30);
        assert!(alone.contains("123,456"), "{alone}");
    }
}
