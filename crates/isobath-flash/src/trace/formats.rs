//! Readers and writers of the trace formats.

use std::io::{BufRead, ErrorKind, Write};

use super::{PageNumbers, Trace, TraceError};
use crate::workload::Op;

const MAGIC: &[u8; 8] = b"ISOTRACE";
const VERSION: u32 = 1;
const COUNT_MAX: u32 = (1 << 24) - 1;
/// Operations of a trace, of four bytes each: 1 GiB of them, which write 1 TiB with pages of 4 KiB.
const OPS_MAX: usize = 1 << 28;

/// A trace format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// `W,page[,count]` and `T,page[,count]`.
    Csv,
    /// The binary form of the same.
    Binary,
    /// Text of `blkparse`, default format: queued (`Q`) writes and discards.
    Blkparse,
    /// MSR-Cambridge block traces: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`,
    /// offset and size in bytes.
    Msr,
}

impl TraceFormat {
    /// All names, for messages.
    pub const NAMES: &'static str = "csv, binary, blkparse, msr";
}

impl TraceFormat {
    /// Every format.
    pub const ALL: [TraceFormat; 4] = [Self::Csv, Self::Binary, Self::Blkparse, Self::Msr];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Binary => "binary",
            Self::Blkparse => "blkparse",
            Self::Msr => "msr",
        }
    }
}

impl std::str::FromStr for TraceFormat {
    type Err = TraceError;

    fn from_str(name: &str) -> Result<Self, TraceError> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| TraceError::UnknownFormat {
                name: name.to_owned(),
            })
    }
}

/// Pages `first..first + count` are written or trimmed.
#[derive(Debug, Clone, Copy)]
struct Span {
    trim: bool,
    first: u64,
    count: u64,
}

/// Reads a trace for a device of `device_pages` pages of `page_bytes` bytes (a multiple of 512). A
/// block request writes every page that it touches and trims the pages that it covers. Without
/// `device_pages` a page may have any number: pages are renumbered in order of first appearance,
/// and a number that a trim gave up is used again, so that the trace has as many pages as were ever
/// live at a time.
///
/// # Errors
/// With the number of the line (or binary record) that cannot be understood or names a page beyond
/// the device; also if nothing is written at all.
pub fn read_trace(
    format: TraceFormat,
    source: impl BufRead,
    page_bytes: u32,
    device_pages: Option<u64>,
) -> Result<Trace, TraceError> {
    if page_bytes == 0 || !page_bytes.is_multiple_of(512) {
        return Err(TraceError::PageSize { page_bytes });
    }
    let mut builder = Builder {
        ops: Vec::new(),
        ops_max: OPS_MAX,
        device_pages: device_pages.map(|pages| pages.min(u64::from(Op::MAX_PAGES - 1))),
        numbers: PageNumbers::default(),
    };
    let page_bytes = u64::from(page_bytes);
    let lines = match format {
        TraceFormat::Binary => read_binary(source, page_bytes, &mut builder)?,
        TraceFormat::Csv => read_lines(source, &mut builder, csv_line)?,
        TraceFormat::Blkparse => {
            read_lines(source, &mut builder, |line| blkparse_line(line, page_bytes))?
        }
        TraceFormat::Msr => read_lines(source, &mut builder, |line| msr_line(line, page_bytes))?,
    };
    if builder.ops.iter().all(|op| op.is_trim()) {
        return Err(TraceError::Empty { lines });
    }
    Ok(Trace::new(builder.ops, 0))
}

struct Builder {
    ops: Vec<Op>,
    ops_max: usize,
    device_pages: Option<u64>,
    /// Used without `device_pages`.
    numbers: PageNumbers,
}

impl Builder {
    fn push(&mut self, span: Span, line: u64) -> Result<(), TraceError> {
        let Span { trim, first, count } = span;
        let end = first.saturating_add(count);
        if let Some(pages) = self.device_pages
            && end > pages
        {
            let page = first.max(pages);
            return Err(TraceError::BeyondDevice { line, page, pages });
        }
        if end - first < count {
            return Err(TraceError::Malformed {
                line,
                what: "the page numbers do not fit 64 bits",
                text: format!("{first},{count}"),
            });
        }
        if trim && self.device_pages.is_none() {
            self.numbers.trim_all(first, end, &mut self.ops);
            return Ok(());
        }
        if !trim && count > u64::from(COUNT_MAX) {
            return Err(TraceError::LongRecord {
                line,
                pages: count,
                max: COUNT_MAX,
            });
        }
        if self.ops.len() as u64 + count > self.ops_max as u64 {
            return Err(TraceError::TooLong {
                line,
                max: self.ops_max,
            });
        }
        let pages = first..end;
        match self.device_pages {
            None => self.ops.extend(pages.map(|page| self.numbers.write(page))),
            // Below the pages of the device, which fit 31 bits.
            Some(_) if trim => self.ops.extend(pages.map(|page| Op::trim(page as u32))),
            Some(_) => self.ops.extend(pages.map(|page| Op::write(page as u32))),
        }
        Ok(())
    }
}

fn read_lines(
    source: impl BufRead,
    builder: &mut Builder,
    parse: impl Fn(&str) -> Result<Option<Span>, &'static str>,
) -> Result<u64, TraceError> {
    let mut lines = 0;
    for text in source.lines() {
        lines += 1;
        let text = text.map_err(|source| TraceError::Read {
            line: lines,
            source,
        })?;
        let malformed = |what| TraceError::Malformed {
            line: lines,
            what,
            text: text.chars().take(120).collect(),
        };
        if let Some(span) = parse(text.trim()).map_err(malformed)? {
            builder.push(span, lines)?;
        }
    }
    Ok(lines)
}

fn csv_line(line: &str) -> Result<Option<Span>, &'static str> {
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let mut fields = line.split(',').map(str::trim);
    let trim = match fields.next() {
        Some("W" | "w") => false,
        Some("T" | "t") => true,
        _ => return Err("an operation must be W or T"),
    };
    let first = number(fields.next(), "the page must be a number")?;
    let count = match fields.next() {
        None => 1,
        some => number(some, "the count must be a number")?,
    };
    if fields.next().is_some() {
        return Err("more than three fields");
    }
    Ok(Some(Span { trim, first, count }))
}

/// `8,0  1  42  0.000123  987  Q  WS 2048 + 8 [process]`
fn blkparse_line(line: &str, page_bytes: u64) -> Result<Option<Span>, &'static str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    // Everything that is not an event line (statistics at the end, messages) has no "major,minor"
    // in front.
    let is_event = fields.first().is_some_and(|device| {
        device.split_once(',').is_some_and(|(major, minor)| {
            major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok()
        })
    });
    if !is_event {
        return Ok(None);
    }
    let (Some(&action), Some(&kind)) = (fields.get(5), fields.get(6)) else {
        return Err("an event line ends before its action and request type");
    };
    let trim = kind.contains('D');
    if action != "Q" || !(kind.contains('W') || trim) {
        return Ok(None);
    }
    // A flush has no sectors.
    if fields.get(8) != Some(&"+") {
        return if kind.contains('F') {
            Ok(None)
        } else {
            Err("expected `sector + count` after the request type")
        };
    }
    let sector = number(fields.get(7).copied(), "the sector must be a number")?;
    let sectors = number(fields.get(9).copied(), "the sector count must be a number")?;
    bytes_to_pages(
        trim,
        sector.checked_mul(512),
        sectors.checked_mul(512),
        page_bytes,
    )
}

fn msr_line(line: &str, page_bytes: u64) -> Result<Option<Span>, &'static str> {
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() < 6 {
        return Err("expected Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime");
    }
    match fields[3].to_ascii_lowercase().as_str() {
        "read" | "type" => return Ok(None),
        "write" => {}
        _ => return Err("the type must be Read or Write"),
    }
    let offset = number(
        fields.get(4).copied(),
        "the offset must be a number of bytes",
    )?;
    let size = number(fields.get(5).copied(), "the size must be a number of bytes")?;
    bytes_to_pages(false, Some(offset), Some(size), page_bytes)
}

/// A write touches every page that it overlaps; a trim frees only pages that it covers whole.
fn bytes_to_pages(
    trim: bool,
    offset: Option<u64>,
    size: Option<u64>,
    page_bytes: u64,
) -> Result<Option<Span>, &'static str> {
    let (Some(offset), Some(size)) = (offset, size) else {
        return Err("the address does not fit 64 bits");
    };
    let end = offset
        .checked_add(size)
        .ok_or("the address does not fit 64 bits")?;
    let (first, after) = if trim {
        (offset.div_ceil(page_bytes), end / page_bytes)
    } else {
        (offset / page_bytes, end.div_ceil(page_bytes))
    };
    Ok((after > first && size > 0).then(|| Span {
        trim,
        first,
        count: after - first,
    }))
}

fn number(field: Option<&str>, what: &'static str) -> Result<u64, &'static str> {
    field.and_then(|text| text.parse().ok()).ok_or(what)
}

fn read_binary(
    mut source: impl BufRead,
    page_bytes: u64,
    builder: &mut Builder,
) -> Result<u64, TraceError> {
    let header = |what: String| TraceError::Header { what };
    let mut head = [0; 16];
    source
        .read_exact(&mut head)
        .map_err(|error| header(format!("the header is incomplete ({error})")))?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if &head[..8] != MAGIC {
        return Err(header("it does not start with ISOTRACE".into()));
    }
    if word(8) != VERSION {
        return Err(header(format!(
            "version {} is not the known version {VERSION}",
            word(8)
        )));
    }
    if u64::from(word(12)) != page_bytes {
        return Err(header(format!(
            "its pages have {} bytes, those of the device {page_bytes}",
            word(12)
        )));
    }
    let mut records = 0;
    loop {
        let at_end = source
            .fill_buf()
            .map_err(|source| TraceError::Read {
                line: records + 1,
                source,
            })?
            .is_empty();
        if at_end {
            return Ok(records);
        }
        records += 1;
        let mut record = [0; 8];
        source
            .read_exact(&mut record)
            .map_err(|source| match source.kind() {
                ErrorKind::UnexpectedEof => {
                    malformed_record(records, "the last record is cut short", &record)
                }
                _ => TraceError::Read {
                    line: records,
                    source,
                },
            })?;
        let trim = match record[7] {
            b'W' => false,
            b'T' => true,
            _ => {
                return Err(malformed_record(
                    records,
                    "an operation must be W or T",
                    &record,
                ));
            }
        };
        let first = u64::from(u32::from_le_bytes([
            record[0], record[1], record[2], record[3],
        ]));
        let count = u64::from(u32::from_le_bytes([record[4], record[5], record[6], 0]));
        builder.push(Span { trim, first, count }, records)?;
    }
}

fn malformed_record(line: u64, what: &'static str, record: &[u8]) -> TraceError {
    TraceError::Malformed {
        line,
        what,
        text: format!("{record:02x?}"),
    }
}

/// Runs of consecutive pages under one operation.
fn spans(trace: &Trace) -> impl Iterator<Item = (bool, u32, u32)> + '_ {
    let mut ops = trace.ops().iter().peekable();
    std::iter::from_fn(move || {
        let first = ops.next()?;
        let mut count = 1;
        while count < COUNT_MAX
            && ops
                .next_if(|op| op.is_trim() == first.is_trim() && op.page() == first.page() + count)
                .is_some()
        {
            count += 1;
        }
        Some((first.is_trim(), first.page(), count))
    })
}

/// Writes a trace as CSV.
///
/// # Errors
/// Those of `out`.
pub fn write_csv(trace: &Trace, mut out: impl Write) -> std::io::Result<()> {
    for (trim, first, count) in spans(trace) {
        let op = if trim { 'T' } else { 'W' };
        if count == 1 {
            writeln!(out, "{op},{first}")?;
        } else {
            writeln!(out, "{op},{first},{count}")?;
        }
    }
    Ok(())
}

/// Writes a binary trace one operation at a time; consecutive pages become one record.
#[derive(Debug)]
pub struct BinaryWriter<W> {
    out: W,
    /// First page, pages, and whether they are trimmed: the record that may still grow.
    run: Option<(u32, u32, bool)>,
}

impl<W: Write> BinaryWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W, page_bytes: u32) -> std::io::Result<Self> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&page_bytes.to_le_bytes())?;
        Ok(Self { out, run: None })
    }

    /// Adds an operation.
    ///
    /// # Errors
    /// Those of the output.
    pub fn push(&mut self, op: Op) -> std::io::Result<()> {
        if let Some((first, count, trim)) = &mut self.run
            && *trim == op.is_trim()
            && op.page() == *first + *count
            && *count < COUNT_MAX
        {
            *count += 1;
            return Ok(());
        }
        self.end_run()?;
        self.run = Some((op.page(), 1, op.is_trim()));
        Ok(())
    }

    fn end_run(&mut self) -> std::io::Result<()> {
        let Some((first, count, trim)) = self.run.take() else {
            return Ok(());
        };
        let mut record = [0; 8];
        record[..4].copy_from_slice(&first.to_le_bytes());
        record[4..].copy_from_slice(&count.to_le_bytes());
        record[7] = if trim { b'T' } else { b'W' };
        self.out.write_all(&record)
    }

    /// Writes the rest, and flushes the output.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(&mut self) -> std::io::Result<()> {
        self.end_run()?;
        self.out.flush()
    }
}

/// Writes a trace in the binary format.
///
/// # Errors
/// Those of `out`.
pub fn write_binary(trace: &Trace, page_bytes: u32, out: impl Write) -> std::io::Result<()> {
    let mut writer = BinaryWriter::new(out, page_bytes)?;
    trace.ops().iter().try_for_each(|&op| writer.push(op))?;
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(format: TraceFormat, text: &str) -> Result<Trace, String> {
        read_trace(format, text.as_bytes(), 4096, Some(1000)).map_err(|error| error.to_string())
    }

    #[test]
    fn csv_and_binary_round_trip() {
        let text = "# comment\nW,5\n\nW,10,3\nT,11\n t , 12 , 2 \n";
        let trace = read(TraceFormat::Csv, text).unwrap();
        let w = Op::write;
        assert_eq!(
            trace.ops(),
            [
                w(5),
                w(10),
                w(11),
                w(12),
                Op::trim(11),
                Op::trim(12),
                Op::trim(13)
            ]
        );
        let mut csv = Vec::new();
        write_csv(&trace, &mut csv).unwrap();
        assert_eq!(String::from_utf8_lossy(&csv), "W,5\nW,10,3\nT,11,3\n");
        let mut binary = Vec::new();
        write_binary(&trace, 4096, &mut binary).unwrap();
        assert_eq!(
            read_trace(TraceFormat::Binary, binary.as_slice(), 4096, Some(1000)).unwrap(),
            trace
        );
    }

    #[test]
    fn errors_carry_the_line() {
        let error = |text: &str| read(TraceFormat::Csv, text).unwrap_err();
        assert_eq!(
            error("W,1\nX,2"),
            "trace line 2: an operation must be W or T: `X,2`"
        );
        assert_eq!(
            error("W,1\n\nW,abc"),
            "trace line 3: the page must be a number: `W,abc`"
        );
        assert_eq!(
            error("W,1,2,3"),
            "trace line 1: more than three fields: `W,1,2,3`"
        );
        assert_eq!(
            error("W,1\nW,998,3"),
            "trace line 2 names page 1000, but the device has 1000 pages"
        );
        assert_eq!(
            error("W,18446744073709551615,9"),
            "trace line 1 names page 18446744073709551615, but the device has 1000 pages"
        );
        assert_eq!(error(""), "the trace has no page write in 0 lines");
        assert_eq!(
            error("# only\nT,5"),
            "the trace has no page write in 2 lines"
        );
        assert!(read_trace(TraceFormat::Csv, &b"W,1"[..], 1000, Some(10)).is_err());
        assert!(
            "vscsi"
                .parse::<TraceFormat>()
                .unwrap_err()
                .to_string()
                .contains("csv, binary, blkparse, msr")
        );
    }

    #[test]
    fn pages_without_a_device_leave_no_gaps_and_use_numbers_again() {
        let (w, t) = (Op::write, Op::trim);
        let text = &b"T,5\nW,900\nW,7\nT,900\nW,8\nW,7"[..];
        let trace = read_trace(TraceFormat::Csv, text, 4096, None).unwrap();
        assert_eq!(trace.ops(), [w(0), w(1), t(0), w(0), w(1)]);
        assert_eq!(trace.pages(), 2);
    }

    /// Numbers may be of any size if there is no device: the pages are renumbered, and no range
    /// is unrolled for nothing.
    #[test]
    fn huge_page_numbers_take_no_space() {
        let read = |text: &str| read_trace(TraceFormat::Csv, text.as_bytes(), 4096, None);
        let text = "W,1000000000000\nW,5,2\nT,6,1000000000000000\nW,18446744073709551614\nW,5\nT,0,7\nT,1,1";
        let trace = read(text).unwrap();
        let (w, t) = (Op::write, Op::trim);
        // The trim has 6 and 10¹² in order, and the number of the latter is used again.
        assert_eq!(
            trace.ops(),
            [w(0), w(1), w(2), t(2), t(0), w(0), w(1), t(1)]
        );
        assert_eq!(trace.pages(), 3);
        assert_eq!(
            read("W,1\nW,0,2000000000").unwrap_err().to_string(),
            "trace line 2 writes 2000000000 pages at once, but a line may write 16777215; write it as several lines if \
             that is meant"
        );
        assert_eq!(
            read("W,18446744073709551615,9").unwrap_err().to_string(),
            "trace line 1: the page numbers do not fit 64 bits: `18446744073709551615,9`"
        );
        let mut builder = Builder {
            ops: Vec::new(),
            ops_max: 10,
            device_pages: None,
            numbers: PageNumbers::default(),
        };
        let source = &b"W,0,10\nW,3"[..];
        let error = read_lines(source, &mut builder, csv_line).unwrap_err();
        assert_eq!(
            error.to_string(),
            "trace line 2 is beyond the first 10 page writes and trims, more than are read; cut the trace before it"
        );
    }

    #[test]
    fn blkparse_takes_queued_writes_and_discards() {
        let text = "\
  8,0    1        1     0.000000000   697  Q  WS 16 + 8 [jbd2]
  8,0    1        2     0.000000100   697  G  WS 16 + 8 [jbd2]
  8,0    1        3     0.000000200   697  Q   R 800 + 8 [cat]
  8,0    1        4     0.000000300   697  Q  DS 4 + 28 [fstrim]
  8,0    1        5     0.000000400   697  Q FWS [jbd2]
  8,0    1        6     0.000000500   697  Q   W 12 + 8 [dd]
CPU0 (sda):
 Reads Queued:           0,        0KiB";
        let trace = read(TraceFormat::Blkparse, text).unwrap();
        let w = Op::write;
        assert_eq!(
            trace.ops(),
            [w(2), Op::trim(1), Op::trim(2), Op::trim(3), w(1), w(2)]
        );
        let bad = "8,0 1 6 0.5 697 Q W twelve + 8 [dd]";
        assert!(
            read(TraceFormat::Blkparse, bad)
                .unwrap_err()
                .contains("line 1: the sector must be a number")
        );
        assert!(
            read(TraceFormat::Blkparse, "8,0 1 6")
                .unwrap_err()
                .contains("line 1: an event line ends")
        );
    }

    #[test]
    fn msr_takes_writes() {
        let text = "128166372003061629,usr,0,Read,7014609920,24576,41286\n128166372016382155,usr,0,Write,4000,200,1\n";
        assert_eq!(
            read(TraceFormat::Msr, text).unwrap().ops(),
            [Op::write(0), Op::write(1)]
        );
        assert!(
            read(TraceFormat::Msr, "1,usr,0,Write,x,1,1")
                .unwrap_err()
                .contains("line 1: the offset")
        );
        assert!(
            read(TraceFormat::Msr, "hello")
                .unwrap_err()
                .contains("line 1: expected Timestamp")
        );
    }

    #[test]
    fn broken_binary_traces_are_refused() {
        let error = |bytes: &[u8]| {
            read_trace(TraceFormat::Binary, bytes, 4096, Some(1000))
                .unwrap_err()
                .to_string()
        };
        assert!(error(b"ISO").contains("header is incomplete"));
        assert!(error(b"NOTATRACE_______").contains("does not start with ISOTRACE"));
        let trace = Trace::new(vec![Op::write(1), Op::write(7)], 0);
        let mut good = Vec::new();
        write_binary(&trace, 4096, &mut good).unwrap();
        let mut other_version = good.clone();
        other_version[8] = 2;
        assert!(error(&other_version).contains("version 2"));
        assert!(error(&good[..good.len() - 3]).contains("line 2: the last record is cut short"));
        let mut other_op = good.clone();
        other_op[23] = b'X';
        assert!(error(&other_op).contains("line 1: an operation must be W or T"));
        assert!(
            read_trace(TraceFormat::Binary, good.as_slice(), 512, Some(1000))
                .unwrap_err()
                .to_string()
                .contains("4096 bytes")
        );
    }
}
