//! One self-contained HTML page per campaign.

use super::campaign::{FailedRun, distinct};
use super::components::components;
use super::cost::{CostMap, cost_map, points};
use super::evidence::{self, rows, verdicts};
use super::fio::{FioJob, fio_left_out};
use super::record::RunRecord;
use super::row::Calls;
use super::series::Sample;
use super::summary::summarize;
use super::verdict::{Pitfall, Verdict, has_headline};
use crate::report::{
    Axis, Chart, Column, Ink, Markup, cells, grouped, html, legend, number, or_unknown, page,
    short, table, tabulate, words,
};

/// Drives' worth of the largest point up to which the cost maps go.
const COST_SCALE: f64 = 10.0;

/// The page: verdicts, rows, charts, cost maps.
#[must_use]
pub fn html(records: &[RunRecord], fio: &[FioJob], failed: &[FailedRun]) -> String {
    let rows = rows(records);
    let content = html! {
        @if rows.len() > 1 || records.iter().any(|r| r.row.is_some()) { (overview(records)) }
        @for (at, row) in rows.iter().enumerate() {
            section id=(format!("row-{at}")) { (section(&row.name, &row.records)) }
        }
        @if !failed.is_empty() { (failures(failed)) }
        @if !fio.is_empty() { (limits(fio)) }
        (settings(records))
    };
    page("Benchmark campaign", &content)
}

/// All named rows in one table.
fn overview(records: &[RunRecord]) -> Markup {
    let rows = summarize(records);
    let engines = rows.iter().enumerate().flat_map(|(section, row)| {
        let engines = row.engines.iter().enumerate();
        engines.map(move |(at, engine)| (section, row, at == 0, engine))
    });
    let table = tabulate!(engines, (section, row, is_first, engine) =>
        let ratio = engine.first_over_this.as_ref(); {
        words "row": html! { @if is_first { a href=(format!("#row-{section}")) { (row.row) } } },
        words "engine": engine.engine,
        number "op/s": grouped(engine.operations_per_s),
        number "first engine ÷ this": ratio.map_or(String::new(), |r| {
            match r.low.is_finite() && r.low > 0.0 {
                true => format!("{:.2} ({:.2} to {:.2})", r.ratio, r.low, r.high),
                false => format!("{:.2}", r.ratio),
            }
        }),
        words "said": ratio.map_or("", |r| r.says.sentence()),
        words "pitfalls committed": html! {
            span.violated { @if is_first { (row.violated_names()) } }
        },
        words "unknown here": html! { span.unknown { @if is_first { (row.unknown_names()) } } },
        number "p99 µs": micros(engine.latency_us_p99),
        number "p99.9 µs": micros(engine.latency_us_p999),
        number "longest ms": format!("{:.1}", engine.latency_us_max / 1e3),
        number "CPU µs/op": format!("{:.2}", engine.cpu_us_per_operation),
        number "the benchmark's share": engine
            .harness_share
            .map_or(String::new(), |share| format!("{:.1}%", share * 100.0)),
        number "WA-A": or_unknown(engine.wa_a, 2),
        number "WA-D": or_unknown(engine.wa_d, 2),
    });
    html! {
        h2 { "Rows" }
        p { "A row that commits a pitfall has no headline number; one with unknowns is quoted only as ratios within this campaign." }
        (table)
    }
}

fn section(heading: &str, records: &[RunRecord]) -> Markup {
    let verdicts = verdicts(records);
    let cells = |(pitfall, verdict): &(_, Verdict)| pitfall_cells(pitfall, verdict);
    let unknown = |(_, verdict): &(_, Verdict)| verdict.is_unknown();
    let first = records.first().map(|record| &record.setting);
    let first = first.filter(|setting| setting.workload != heading);
    html! {
        h2 { (heading) }
        @if let Some(first) = first { p { "Workload " (first.workload) "." } }
        h3 { "The seven pitfalls, all runs together" }
        (table(&[words("pitfall"), words("verdict")], verdicts.iter().map(cells)))
        @for line in lines_of(records, RunRecord::steady_line) { p { (sentence(&line)) } }
        @for line in lines_of(records, RunRecord::sampling_line) { p { (sentence(&line)) } }
        @if !has_headline(&verdicts) {
            p.violated { "No headline number: a pitfall was committed. The rows below describe these runs only." }
        } @else if verdicts.iter().any(unknown) {
            p.unknown { "Quote these numbers only as ratios within this campaign." }
        }
        (runs(records))
        (kinds(records))
        (drive_limits(records))
        (cpu(records))
        (charts(records))
        @if has_headline(&verdicts) { (costs(records)) }
    }
}

fn lines_of(records: &[RunRecord], of: fn(&RunRecord) -> Option<String>) -> Vec<String> {
    let mut lines = distinct(records, |record| of(record).unwrap_or_default());
    lines.retain(|line| !line.is_empty());
    lines
}

/// A line of the terminal as a sentence of a page.
fn sentence(line: &str) -> String {
    let mut letters = line.chars();
    let first = letters.next().map(char::to_uppercase);
    format!(
        "{}{}.",
        first.map(String::from_iter).unwrap_or_default(),
        letters.as_str()
    )
}

fn pitfall_cells(pitfall: &Pitfall, verdict: &Verdict) -> Vec<Markup> {
    let class = match verdict {
        Verdict::Controlled(_) => "controlled",
        Verdict::Unknown(_) => "unknown",
        Verdict::Violated(_) => "violated",
    };
    cells![
        pitfall.name(),
        html! { span class=(class) { (verdict.to_string()) } }
    ]
}

/// The series that a run repeats.
fn series(record: &RunRecord) -> String {
    let size = short(record.data_bytes as f64);
    let fill = record.setting.space.fill_factor;
    let fill = fill.map_or(String::new(), |share| format!(", fill factor {share}"));
    format!(
        "{} {size}B, {}{}, {} clients{fill}",
        record.side(),
        record.setting.medium,
        spare(record),
        record.clients_count
    )
}

fn spare(record: &RunRecord) -> String {
    let share = record.setting.medium.over_provisioning();
    share.map_or(String::new(), |s| format!(", {:.0}% spare", s * 100.0))
}

fn label(record: &RunRecord) -> String {
    format!("{}, round {}", series(record), record.round)
}

/// All series, in an order that is the same in all sections of the same engines.
fn all_series(records: &[RunRecord]) -> Vec<String> {
    let mut all = distinct(records, series);
    all.sort();
    all
}

/// The colour of a run among others: repeats share one.
fn ink(records: &[RunRecord], record: &RunRecord) -> Ink {
    let at = all_series(records);
    let at = at.iter().position(|name| *name == series(record));
    at.map_or(Ink::Text, Ink::Series)
}

fn runs(records: &[RunRecord]) -> Markup {
    let table = tabulate!(records.iter().enumerate(), (at, r) =>
        let from = r.steady_from.and_then(|s| r.series.samples.get(s));
        let gap = if r.after_gap { " (after a gap)" } else { "" }; {
        words "run": html! { (ink(records, r).key()) (at + 1) " " (label(r)) (gap) },
        number "op/s": grouped(r.operations_per_s),
        number "steady from s": from.map_or("never".to_owned(), |s| format!("{:.1}", s.seconds)),
        number "p50 µs": micros(r.latency_us_p50),
        number "p99 µs": micros(r.latency_us_p99),
        number "p99.9 µs": micros(r.latency_us_p999),
        number "CPU µs/op": format!("{:.2}", r.cpu_us_per_operation),
        number "harness ns/op": or_unknown(r.harness_ns_per_operation, 0),
        number "WA-A": or_unknown(r.wa_a, 2),
        number "WA-D": or_unknown(r.wa_d, 2),
        number "WA-A × WA-D": or_unknown(r.wa_a.zip(r.wa_d).map(|(a, d)| a * d), 2),
        number "modelled op/s": r.modelled_operations_per_s.map_or(String::new(), grouped),
        number "space max": or_unknown(r.space_amplification_max, 2),
        number "capacities": or_unknown(r.capacities_written, 1),
        number "steal s": format!("{:.2}", r.steal_s),
        words "configuration": r.config_hash,
    });
    html! {
        (table)
        @if records.iter().any(RunRecord::is_modelled) {
            p {
                "Rates and latencies on a simulated or virtual SSD are those of this machine's memory or of FUSE and say nothing of a drive; "
                "WA-A, WA-D and space are counts. " b { "Modelled" } " operations per second are what the flash of such a drive would allow: its "
                "sequential writes over the flash bytes of an operation. The cost maps are made of them."
            }
        }
    }
}

/// Rates of each kind of operation, if there are several, and what transactions met.
fn kinds(records: &[RunRecord]) -> Markup {
    let is_mixed = |r: &&RunRecord| r.calls.len() > 1;
    let Some(first) = records.iter().find(is_mixed) else {
        return Markup::default();
    };
    let names = &first.calls;
    let mut columns = vec![words("run")];
    columns.extend(names.iter().map(|of| number(format!("{}/s", of.operation))));
    if records.iter().any(|record| record.tpcc.is_some()) {
        columns.extend(["conflicts", "rollbacks", "violations"].map(number));
    }
    let rows = records.iter().filter(is_mixed).map(|record| {
        let rate = |of: &Calls| {
            let mut all = record.calls.iter();
            let found = all.find(|calls| calls.operation == of.operation);
            found.map_or(String::new(), |calls| decimal(calls.operations_per_s))
        };
        let met = record.tpcc.iter().flat_map(|tpcc| {
            let violations = tpcc.violations.len() as u64;
            [tpcc.conflicts_count, tpcc.rolled_back_count, violations]
        });
        let rates = names.iter().flat_map(|name| cells![rate(name)]);
        let met = met.flat_map(|count| cells![count]);
        let head = cells![label(record)].into_iter();
        head.chain(rates).chain(met).collect()
    });
    html! {
        h3 { "Operations by kind, over the whole run" }
        (table(&columns, rows))
    }
}

/// Microseconds, with decimals if they are few.
fn micros(us: f64) -> String {
    match us < 10.0 {
        true => format!("{us:.2}"),
        false => grouped(us),
    }
}

/// A rate with a decimal if it is small.
fn decimal(per_s: f64) -> String {
    match per_s < 1000.0 {
        true => format!("{per_s:.1}"),
        false => grouped(per_s),
    }
}

/// The drive's own limits before and after each run.
fn drive_limits(records: &[RunRecord]) -> Markup {
    let is_known = |r: &&RunRecord| r.drive_reads_per_s.is_some() || r.drive_writes.is_some();
    let both = |limit: Option<(f64, f64)>| {
        limit.map_or(String::new(), |(before, after)| {
            format!("{} / {}", grouped(before), grouped(after))
        })
    };
    let table = tabulate!(records.iter().filter(is_known), record =>
        let [reads, writes, flushed, sequential, sequential_flushed] = record.drive_limits(); {
        words "run": label(record),
        number "random 4 KiB reads/s": both(reads),
        number "random 4 KiB writes/s": both(writes),
        number "each flushed": both(flushed),
        number "sequential MB/s": both(sequential),
        number "each flushed": both(sequential_flushed),
    });
    html! { @if records.iter().any(|r| is_known(&r)) {
        h3 { "The drive's own limit, before / after each run" }
        (table)
    } }
}

/// The CPU time of an operation by component: as sampled, or as it follows from runs without an
/// engine.
fn cpu(records: &[RunRecord]) -> Markup {
    let known: Vec<&RunRecord> = records
        .iter()
        .filter(|r| !r.cpu_by_component.is_empty())
        .collect();
    let names = known.iter().map(|r| number(label(r)));
    let columns: Vec<Column> = [words("CPU µs per operation")]
        .into_iter()
        .chain(names)
        .collect();
    let rows = components(&known);
    let cells = |row: &Vec<String>| row.iter().flat_map(|cell| cells![cell]).collect();
    html! { @if !known.is_empty() {
        h3 { "CPU time by component" }
        (table(&columns, rows.iter().map(cells)))
    } }
}

/// A chart's short name, its title, and the value of a sample.
type Metric = (
    &'static str,
    &'static str,
    fn(&RunRecord, &Sample) -> Option<f64>,
);
type Points = Vec<(f64, f64)>;

fn charts(records: &[RunRecord]) -> Markup {
    let keys = keys(records);
    html! {
        (legend(&keys))
        div.panels { @for (_, chart, own) in all_charts(records) { (chart.figure(&own)) } }
    }
}

/// The legend of the charts of runs.
fn keys(records: &[RunRecord]) -> Vec<(Ink, String)> {
    let series = all_series(records).into_iter().enumerate();
    series.map(|(at, name)| (Ink::Series(at), name)).collect()
}

/// A short name, a chart, and what its colours stand for where they are not those of the runs.
type Drawn = (&'static str, Chart, Vec<(Ink, String)>);

fn all_charts(records: &[RunRecord]) -> Vec<Drawn> {
    let throughput = |r: &RunRecord| -> Points {
        let seconds = r.series.samples.iter().map(|s| s.seconds);
        seconds.zip(r.series.throughput()).collect()
    };
    let metrics: [Metric; 4] = [
        ("wa-a", "WA-A, cumulative", |_, s| s.wa_a()),
        ("wa-d", "WA-D, cumulative", |_, s| s.wa_d()),
        ("space", "space amplification", |r, s| {
            (s.space_bytes > 0).then(|| s.space_bytes as f64 / r.data_bytes.max(1) as f64)
        }),
        (
            "latency-over-time",
            "p99 of each sample's latencies, µs",
            |_, s| s.latency_us_p99,
        ),
    ];
    let title = "operations per second (dot: steady from here)";
    let mut charts = vec![("throughput", lines(title, false, records, &throughput))];
    for (name, title, of) in metrics {
        let points = |r: &RunRecord| -> Points {
            let samples = r.series.samples.iter();
            samples
                .filter_map(|s| Some((s.seconds, of(r, s)?)))
                .collect()
        };
        charts.push((name, lines(title, false, records, &points)));
    }
    let latency = |r: &RunRecord| -> Points { r.latency_cdf.clone() };
    let title = "latency: share of calls at or below";
    charts.push(("latency", lines(title, true, records, &latency)));
    charts.push(("rates", Some(bars(records))));
    let of_runs = charts.into_iter();
    let of_runs = of_runs.filter_map(|(name, chart)| Some((name, chart?, Vec::new())));
    let swept = SWEPT.into_iter().filter_map(|axis| {
        let (chart, keys) = sweep(axis, records)?;
        Some((axis.1, chart, keys))
    });
    of_runs.chain(swept).collect()
}

/// Every chart of the page as a file of its own: a name, and its SVG.
#[must_use]
pub fn svg_charts(records: &[RunRecord]) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for row in rows(records) {
        let (heading, of) = (row.name, row.records);
        let keys = keys(&of);
        let is_plain = |c: char| c.is_ascii_alphanumeric();
        let heading: Vec<&str> = heading.split(|c| !is_plain(c)).collect();
        for (name, chart, own) in all_charts(&of) {
            let keys = if own.is_empty() { &keys } else { &own };
            all.push((format!("{}-{name}", heading.join("-")), chart.svg(keys)));
        }
    }
    all
}

/// One engine in one row of a table of results.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The row.
    pub row: String,
    /// The engine.
    pub engine: String,
    /// Its measured value; above 0.
    pub value: f64,
}

/// The first engine's value over each other one's, row by row, as an SVG. Rows whose first engine
/// is missing are left out.
#[must_use]
pub fn ratio_chart(title: &str, first: &str, measured: &[Measured]) -> String {
    let names = |of: fn(&Measured) -> &String, keep: &dyn Fn(&Measured) -> bool| {
        let mut all: Vec<String> = Vec::new();
        for one in measured.iter().filter(|one| keep(one)) {
            if !all.contains(of(one)) {
                all.push(of(one).clone());
            }
        }
        all
    };
    let rows = names(|one| &one.row, &|one| one.engine == first);
    let others = names(|one| &one.engine, &|one| one.engine != first);
    let value = |row: &str, engine: &str| {
        let found = measured
            .iter()
            .find(|one| one.row == row && one.engine == engine);
        found.map(|one| one.value)
    };
    let ratio = |row: &str, other: &str| Some(value(row, first)? / value(row, other)?);
    let ratios = || {
        let pairs = rows
            .iter()
            .flat_map(|row| others.iter().map(move |other| (row, other)));
        pairs
            .filter_map(|(row, other)| ratio(row, other))
            .chain([1.0])
    };
    let (low, high) = ratios().fold((1.0f64, 1.0f64), |(low, high), r| (low.min(r), high.max(r)));
    // Names of rows stand in the left part, where no point is.
    let low = low
        / (high * 1.3 / low)
            .powf(NAMES_SHARE / (1.0 - NAMES_SHARE))
            .max(2.0);
    let y = Axis::named(rows.len());
    let mut chart = Chart::new(
        title,
        Axis::log(&format!("{first} ÷ the other"), low, high * 1.3),
        y,
    );
    chart.rule((1.0, 0.5), (1.0, rows.len() as f64 + 0.5), "limit", "equal");
    for (at, row) in rows.iter().enumerate() {
        let height = (rows.len() - at) as f64;
        chart.name(height, row);
        for (number, other) in others.iter().enumerate() {
            if let Some(ratio) = ratio(row, other) {
                let tooltip = format!("{row}: {ratio:.2} times {other}");
                chart.point((ratio, height), Ink::Series(number), false, &tooltip);
            }
        }
    }
    let keys: Vec<(Ink, String)> = others
        .into_iter()
        .enumerate()
        .map(|(at, other)| (Ink::Series(at), other))
        .collect();
    chart.svg(&keys)
}

/// Part of a chart of ratios that is for the names of its rows.
const NAMES_SHARE: f64 = 0.45;

/// A line per run, over time or over latency, if there is anything to draw.
fn lines(
    title: &str,
    over_latency: bool,
    records: &[RunRecord],
    of: &dyn Fn(&RunRecord) -> Points,
) -> Option<Chart> {
    let all: Vec<Points> = records.iter().map(of).collect();
    let xs = || all.iter().flatten().map(|point| point.0);
    xs().next()?;
    let x = match over_latency {
        true => Axis::log_over("µs", xs()),
        false => Axis::over("seconds", xs()),
    };
    let y = Axis::from_zero("", all.iter().flatten().map(|point| point.1));
    let mut chart = Chart::new(title, x, y);
    for (record, points) in records.iter().zip(&all) {
        let (ink, label) = (ink(records, record), label(record));
        chart.curve(points, ink, &label);
        let steady = record.steady_from.filter(|_| !over_latency);
        let steady = steady.and_then(|from| record.series.samples.get(from));
        let is_steady = |point: &&(f64, f64)| steady.is_some_and(|s| point.0 >= s.seconds);
        if let Some(at) = points.iter().find(is_steady) {
            chart.point(*at, ink, false, &format!("steady from here: {label}"));
        }
    }
    Some(chart)
}

fn bars(records: &[RunRecord]) -> Chart {
    let limit = |r: &RunRecord| {
        let [reads, writes, ..] = r.drive_limits();
        let limit = if r.writes { writes } else { reads };
        limit.map(|(before, after)| (before + after) / 2.0)
    };
    let values = records
        .iter()
        .flat_map(|r| [Some(r.operations_per_s), limit(r)]);
    let y = Axis::from_zero("", values.flatten());
    let title = "operations per second (dashed: the drive's random reads, or writes where the clients write)";
    let mut chart = Chart::new(title, Axis::count("run", records.len()), y);
    for (at, record) in records.iter().enumerate() {
        let (x, rate) = ((at + 1) as f64, record.operations_per_s);
        let tooltip = format!("{}: {}", label(record), short(rate));
        chart.bar((x, rate), ink(records, record), &tooltip);
        if let Some(limit) = limit(record) {
            chart.limit((x, limit), &format!("the drive's limit: {}", short(limit)));
        }
    }
    chart
}

/// What a sweep varies: its name in titles, on the axis, and the value of a run.
type Swept = (&'static str, &'static str, fn(&RunRecord) -> Option<f64>);

const SWEPT: [Swept; 3] = [
    ("the dataset's bytes", "bytes", |r| {
        Some(r.data_bytes as f64)
    }),
    ("clients at the same time", "clients", |r| {
        Some(r.clients_count as f64)
    }),
    ("the fill factor", "share", |r| r.setting.space.fill_factor),
];

fn varies(of: fn(&RunRecord) -> Option<f64>, records: &[RunRecord]) -> bool {
    let mut values = records.iter().filter_map(of);
    let first = values.next();
    values.any(|value| Some(value) != first)
}

/// The differences between runs other than `except`, in words.
fn others(record: &RunRecord, records: &[RunRecord], except: &str) -> String {
    let mut text = String::new();
    for (name, unit, of) in SWEPT {
        if let (Some(value), true) = (of(record), name != except && varies(of, records)) {
            text += &format!(", {} {unit}", short(value));
        }
    }
    text
}

/// Throughput over what varies, one line per engine, drive, over-provisioning and whatever else
/// varies, too.
fn sweep(
    (name, unit, of_run): Swept,
    records: &[RunRecord],
) -> Option<(Chart, Vec<(Ink, String)>)> {
    let engines: Vec<RunRecord> = records
        .iter()
        .filter(|r| of_run(r).is_some())
        .cloned()
        .collect();
    let records = &engines[..];
    // Engines may have different numbers of clients without a sweep.
    let sides = distinct(records, RunRecord::side);
    let of_side = |side: &String| -> Vec<RunRecord> {
        let of = records.iter().filter(|r| r.side() == *side);
        of.cloned().collect()
    };
    if !sides.iter().any(|side| varies(of_run, &of_side(side))) {
        return None;
    }
    let side = |r: &RunRecord| {
        let others = others(r, &of_side(&r.side()), name);
        format!("{} {}{}{others}", r.side(), r.setting.medium, spare(r))
    };
    let value = |r: &RunRecord| of_run(r).unwrap_or(0.0);
    let y = Axis::from_zero("", records.iter().map(|r| r.operations_per_s));
    let title = format!("operations per second over {name}");
    let mut chart = Chart::new(&title, Axis::over(unit, records.iter().map(value)), y);
    let mut keys = Vec::new();
    for (at, line) in distinct(records, side).into_iter().enumerate() {
        let of = records.iter().filter(|r| side(r) == line);
        let mut points: Points = of.map(|r| (value(r), r.operations_per_s)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        for point in &points {
            let tooltip = format!("{line}: {} at {} {unit}", short(point.1), short(point.0));
            chart.point(*point, Ink::Series(at), false, &tooltip);
        }
        chart.curve(&points, Ink::Series(at), &line);
        keys.push((Ink::Series(at), line));
    }
    Some((chart, keys))
}

/// The cost maps of each kind of drive: the first engine and each other one, and each engine with
/// least and most over-provisioning.
fn costs(records: &[RunRecord]) -> Markup {
    let drive = |r: &RunRecord| r.setting.medium.to_string();
    let mut maps = Vec::new();
    for kind in distinct(records, drive) {
        let of_drive = records.iter().filter(|r| drive(r) == kind);
        let of_drive: Vec<RunRecord> = of_drive.cloned().collect();
        let all = points(&of_drive, false);
        let mut sides: Vec<&str> = all.iter().map(|point| point.side.as_str()).collect();
        sides.sort_unstable();
        sides.dedup();
        for other in sides.iter().skip(1) {
            maps.push((kind.clone(), cost_map(&all, sides[0], other, COST_SCALE)));
        }
        for line in evidence::lines(&of_drive) {
            let share = |r: &RunRecord| r.setting.medium.over_provisioning();
            let mut of_side = line.records;
            of_side.retain(|r| share(r).is_some());
            of_side.sort_by(|a, b| share(a).unwrap_or(0.0).total_cmp(&share(b).unwrap_or(0.0)));
            let by_share = points(&of_side, true);
            if let (Some(least), Some(most)) = (by_share.first(), by_share.last())
                && least.side != most.side
            {
                let map = cost_map(&by_share, &least.side, &most.side, COST_SCALE);
                maps.push((kind.clone(), map));
            }
        }
    }
    html! { @for (drive, map) in &maps { (self::map(drive, map)) } }
}

fn map(drive: &str, map: &CostMap) -> Markup {
    let sizes = map.dataset_bytes.iter();
    let sizes = sizes.map(|data| number(format!("{}B", short(*data))));
    let columns: Vec<Column> = [words("op/s \\ data")].into_iter().chain(sizes).collect();
    let count = |drives: &Option<u64>| drives.map_or("–".to_owned(), |d| d.to_string());
    let rows = map.rate_per_s.iter().zip(&map.drives).map(|(rate, row)| {
        let drives = row.iter().map(|[first, second]| {
            let class = match first.cmp(second) {
                std::cmp::Ordering::Less => Some("first"),
                std::cmp::Ordering::Greater => Some("second"),
                std::cmp::Ordering::Equal => None,
            };
            html! { span class=[class] { (count(first)) " / " (count(second)) } }
        });
        cells![short(*rate)].into_iter().chain(drives).collect()
    });
    html! {
        h3 { "Drives needed: " (map.sides[0]) " / " (map.sides[1]) }
        p { "Drives of the kind “" (drive) "”; modelled from the runs above (paper 002, Figures 7c and 9)." }
        (table(&columns, rows))
    }
}

/// Runs that failed, which tables and charts lack: an engine may have run out of space (paper 002,
/// Figures 6 and 7).
fn failures(failed: &[FailedRun]) -> Markup {
    let table = tabulate!(failed, run => {
        words "row": run.row,
        words "engine": run.engine.name(),
        number "data": format!("{}B", short(run.data_bytes as f64)),
        number "round": run.round,
        words "what it failed with": run.error,
    });
    html! {
        h2 { "Runs that failed" }
        (table)
    }
}

fn limits(fio: &[FioJob]) -> Markup {
    let table = tabulate!(fio.iter().filter(|job| job.has_io()), job => {
        words "job": job.name,
        number "reads/s": grouped(job.reads_per_s),
        number "writes/s": grouped(job.writes_per_s),
        number "trims/s": grouped(job.trims_per_s),
    });
    html! {
        h2 { "fio" }
        (table)
        @if let Some(left_out) = fio_left_out(fio) { p { (left_out) } }
    }
}

fn settings(records: &[RunRecord]) -> Markup {
    let name = |r: &RunRecord| format!("{} ({})", r.side(), r.config_hash);
    let columns = [words("setting"), words("value")];
    let all = |record: &RunRecord| {
        let settings = record
            .settings
            .iter()
            .map(|(name, value)| cells![name, value]);
        let trials = record.search.iter().flat_map(|search| &search.trials);
        let trials = trials.enumerate().map(|(at, trial)| {
            let rate = grouped(trial.operations_per_s);
            cells![
                format!("trial {}", at + 1),
                format!("{}: {rate} op/s", trial.text())
            ]
        });
        table(&columns, settings.chain(trials))
    };
    html! {
        h2 { "Settings of the engines" }
        @for engine in distinct(records, name) {
            @if let Some(record) = records.iter().find(|r| name(r) == engine) {
                details { summary { (engine) } (all(record)) }
            }
        }
    }
}
