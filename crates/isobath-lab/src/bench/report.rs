//! One self-contained HTML page per campaign.

use std::fmt::Write;

use super::campaign::distinct;
use super::chart::{Line, bars, colour, lines};
use super::cost::{CostMap, cost_map, points};
use super::fio::FioJob;
use super::record::{Record, evidence};
use super::series::Sample;
use super::summary::summarize;
use super::verdict::{Verdict, has_headline, judge};
use crate::model_report_svg::{escape, short};

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:1000px;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:.6rem 0;font-size:13px;display:block;overflow-x:auto}\
td,th{padding:3px 8px;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child,td.w{text-align:left}td.r{min-width:17em}\
svg{width:470px;max-width:100%;margin:4px}.t{font:600 12px sans-serif}.x{font:10px sans-serif;text-anchor:middle}\
.y{font:10px sans-serif;text-anchor:end}.g{stroke:#e4e4e4}.l{stroke:#222;stroke-width:2;stroke-dasharray:4 3}\
.controlled{color:#1d6b36}.unknown{color:#8a6100}.violated{color:#a3202c;font-weight:600}\
.k{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 .8em}small{color:#555}\
@media(prefers-color-scheme:dark){body{background:#16181b;color:#ddd}td,th{border-color:#3a3d42}svg{background:#fff;border-radius:4px}\
.controlled{color:#6cc28a}.unknown{color:#e0b84c}.violated{color:#ff7b86}small{color:#aaa}}";

/// Drives' worth of the largest point up to which the cost maps go.
const COST_SCALE: f64 = 10.0;

/// The page: verdicts, rows, charts, cost maps. Everything is in it: no script, nothing is loaded.
#[must_use]
pub fn html(records: &[Record], fio: &[FioJob]) -> String {
    let mut page = format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Isobath benchmark</title><style>{STYLE}</style><h1>Benchmark campaign</h1>"
    );
    overview(&mut page, records);
    for heading in distinct(records, |r| r.heading().to_owned()) {
        let of: Vec<Record> = records
            .iter()
            .filter(|r| r.heading() == heading)
            .cloned()
            .collect();
        section(&mut page, &heading, &of);
    }
    limits(&mut page, fio);
    settings(&mut page, records);
    page + "</html>\n"
}

/// All named rows in one table, where the campaign has any.
fn overview(page: &mut String, records: &[Record]) {
    if records.iter().all(|r| r.row.is_none()) {
        return;
    }
    page.push_str(
        "<h2>Rows</h2><table><tr><th>row</th><th class=\"w\">engine</th><th>op/s</th><th>p99 µs</th><th>p99.9 µs</th>\
         <th>longest ms</th><th>CPU µs/op</th><th>WA-A</th><th>WA-D</th><th>first engine ÷ this</th><th class=\"w\">said</th>\
         <th class=\"w\">pitfalls committed</th></tr>",
    );
    let may = |value: Option<f64>| value.map_or("unknown".to_owned(), |v| format!("{v:.2}"));
    for row in summarize(records) {
        for (at, engine) in row.engines.iter().enumerate() {
            let name = if at == 0 {
                escape(&row.row)
            } else {
                String::new()
            };
            let violated = match at {
                0 => row.violated_names(),
                _ => String::new(),
            };
            let (ratio, said) = match &engine.first_over_this {
                None => (String::new(), ""),
                Some(r) if r.low.is_finite() && r.low > 0.0 => {
                    let ratio = format!("{:.2} ({:.2} to {:.2})", r.ratio, r.low, r.high);
                    (ratio, r.says.sentence())
                }
                Some(r) => (format!("{:.2}", r.ratio), r.says.sentence()),
            };
            let _ = write!(
                page,
                "<tr><td>{name}</td><td class=\"w\">{}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td><td>{:.1}</td>\
                 <td>{:.2}</td><td>{}</td><td>{}</td><td>{ratio}</td><td class=\"w\">{said}</td>\
                 <td class=\"w violated\">{violated}</td></tr>",
                escape(&engine.engine),
                engine.operations_per_s,
                engine.latency_us_p99,
                engine.latency_us_p999,
                engine.latency_us_max / 1e3,
                engine.cpu_us_per_operation,
                may(engine.wa_a),
                may(engine.wa_d),
            );
        }
    }
    page.push_str("</table>");
}

fn section(page: &mut String, heading: &str, records: &[Record]) {
    let first = records.first();
    let _ = write!(page, "<h2>{}</h2>", escape(heading));
    if let Some(first) = first.filter(|r| r.workload != heading) {
        let _ = write!(page, "<p>Workload {}.</p>", escape(&first.workload));
    }
    let verdicts = judge(&evidence(records));
    page.push_str("<h3>The seven pitfalls, all runs together</h3><table>");
    for (pitfall, verdict) in &verdicts {
        let class = match verdict {
            Verdict::Controlled(_) => "controlled",
            Verdict::Unknown(_) => "unknown",
            Verdict::Violated(_) => "violated",
        };
        let _ = write!(
            page,
            "<tr><td>{}</td><td class=\"w {class}\">{}</td></tr>",
            pitfall.name(),
            escape(&verdict.to_string())
        );
    }
    page.push_str("</table>");
    if !has_headline(&verdicts) {
        page.push_str("<p class=\"violated\">No headline number: a pitfall was committed. The rows below describe these runs only.</p>");
    } else if verdicts
        .iter()
        .any(|(_, v)| matches!(v, Verdict::Unknown(_)))
    {
        page.push_str(
            "<p class=\"unknown\">Quote these numbers only as ratios within this campaign.</p>",
        );
    }
    table(page, records);
    drive_limits(page, records);
    charts(page, records);
    costs(page, records);
}

fn label(record: &Record) -> String {
    let size = short(record.data_bytes as f64);
    let spare = record
        .over_provisioning
        .map_or(String::new(), |s| format!(", {:.0}% spare", s * 100.0));
    format!(
        "{} {size}B, {}{spare}, round {}",
        record.side(),
        record.drive,
        record.round
    )
}

fn table(page: &mut String, records: &[Record]) {
    page.push_str(
        "<table><tr><th>run</th><th>op/s</th><th>steady from s</th><th>p50 µs</th><th>p99 µs</th><th>p99.9 µs</th>\
         <th>CPU µs/op</th><th>harness ns/op</th><th>WA-A</th><th>WA-D</th><th>WA-A × WA-D</th><th>space max</th>\
         <th>capacities</th><th>steal s</th><th>configuration</th></tr>",
    );
    let may = |value: Option<f64>, digits: usize| {
        value.map_or("unknown".to_owned(), |v| format!("{v:.digits$}"))
    };
    for (at, r) in records.iter().enumerate() {
        let from = r
            .steady_from
            .and_then(|s| r.series.samples.get(s))
            .map(|s| s.seconds);
        let both = r.wa_a.zip(r.wa_d).map(|(a, d)| a * d);
        let gap = if r.after_gap { " (after a gap)" } else { "" };
        let _ = write!(
            page,
            "<tr><td class=\"r\"><span class=\"k\" style=\"background:{}\"></span>{} {}{gap}</td><td>{:.0}</td><td>{}</td><td>{:.0}</td><td>{:.0}</td>\
             <td>{:.0}</td><td>{:.2}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2}</td><td>{}</td></tr>",
            colour(at),
            at + 1,
            escape(&label(r)),
            r.operations_per_s,
            from.map_or("never".to_owned(), |s| format!("{s:.1}")),
            r.latency_us_p50,
            r.latency_us_p99,
            r.latency_us_p999,
            r.cpu_us_per_operation,
            may(r.harness_ns_per_operation, 0),
            may(r.wa_a, 2),
            may(r.wa_d, 2),
            may(both, 2),
            may(r.space_amplification_max, 2),
            may(r.capacities_written, 1),
            r.steal_s,
            r.config_hash
        );
    }
    page.push_str("</table>");
    if records.iter().any(Record::is_modelled) {
        page.push_str(
            "<p>Rates and latencies on a simulated SSD are <b>modelled</b>; WA-A and WA-D are counts.</p>",
        );
    }
}

/// What the drive did by itself before and after each run.
fn drive_limits(page: &mut String, records: &[Record]) {
    let is_known = |r: &&Record| r.drive_reads_per_s.is_some() || r.drive_writes.is_some();
    let known: Vec<&Record> = records.iter().filter(is_known).collect();
    if known.is_empty() {
        return;
    }
    page.push_str(
        "<h3>The drive's own limit, before / after each run</h3><table><tr><th>run</th><th>random 4 KiB reads/s</th>\
         <th>random 4 KiB writes/s</th><th>each flushed</th><th>sequential MB/s</th><th>each flushed</th></tr>",
    );
    for record in known {
        let _ = write!(page, "<tr><td class=\"r\">{}</td>", escape(&label(record)));
        for limit in record.drive_limits() {
            let cell = limit.map_or(String::new(), |(before, after)| {
                format!("{before:.0} / {after:.0}")
            });
            let _ = write!(page, "<td>{cell}</td>");
        }
        page.push_str("</tr>");
    }
    page.push_str("</table>");
}

/// A chart's title and the value of a sample.
type Metric = (&'static str, fn(&Record, &Sample) -> Option<f64>);

fn charts(page: &mut String, records: &[Record]) {
    let throughput: Vec<Line> = records
        .iter()
        .map(|r| {
            let rates = r.series.throughput();
            let points = r.series.samples.iter().map(|s| s.seconds).zip(rates);
            line(r, points.collect())
        })
        .collect();
    page.push_str(&lines(
        "operations per second (dot: steady from here)",
        "seconds",
        false,
        &throughput,
    ));
    let metrics: [Metric; 3] = [
        ("WA-A, cumulative", |_, s| s.wa_a()),
        ("WA-D, cumulative", |_, s| s.wa_d()),
        ("space amplification", |r, s| {
            (s.space_bytes > 0).then(|| s.space_bytes as f64 / r.data_bytes.max(1) as f64)
        }),
    ];
    for (title, of) in metrics {
        let all: Vec<Line> = records
            .iter()
            .map(|r| {
                let points = r
                    .series
                    .samples
                    .iter()
                    .filter_map(|s| Some((s.seconds, of(r, s)?)));
                line(r, points.collect())
            })
            .collect();
        if all.iter().any(|line| !line.points.is_empty()) {
            page.push_str(&lines(title, "seconds", false, &all));
        }
    }
    let latencies: Vec<Line> = records
        .iter()
        .map(|r| Line {
            mark: None,
            ..line(r, r.latency_cdf.clone())
        })
        .collect();
    page.push_str(&lines(
        "latency: share of calls at or below",
        "µs",
        true,
        &latencies,
    ));
    let limit = |r: &Record| {
        let [reads, writes, ..] = r.drive_limits();
        let limit = if r.writes { writes } else { reads };
        limit.map(|(before, after)| (before + after) / 2.0)
    };
    let all: Vec<_> = records
        .iter()
        .map(|r| (label(r), r.operations_per_s, limit(r)))
        .collect();
    page.push_str(&bars(
        "operations per second (dashed: the drive's random reads, or writes where the clients write)",
        &all,
    ));
    sweep(page, records);
}

fn line(record: &Record, points: Vec<(f64, f64)>) -> Line {
    Line {
        name: label(record),
        points,
        mark: record.steady_from,
    }
}

/// Throughput over dataset size, one line per engine, drive and over-provisioning.
fn sweep(page: &mut String, records: &[Record]) {
    let side = |r: &Record| {
        let spare = r
            .over_provisioning
            .map_or(String::new(), |s| format!(" {:.0}% spare", s * 100.0));
        format!("{} {}{spare}", r.side(), r.drive)
    };
    let curve = |name: &String| {
        let of = records.iter().filter(|r| side(r) == *name);
        let mut points: Vec<(f64, f64)> = of
            .map(|r| (r.data_bytes as f64, r.operations_per_s))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line {
            name: name.clone(),
            points,
            mark: None,
        }
    };
    let all: Vec<Line> = distinct(records, side).iter().map(curve).collect();
    if all.iter().any(|line| {
        line.points.len() > 1 && line.points[0].0 < line.points[line.points.len() - 1].0
    }) {
        page.push_str(&lines(
            "operations per second over the dataset's bytes",
            "bytes",
            false,
            &all,
        ));
    }
}

/// Both cost maps, where there are two sides of each.
fn costs(page: &mut String, records: &[Record]) {
    for by_over_provisioning in [false, true] {
        let points = points(records, by_over_provisioning);
        let mut sides: Vec<String> = points.iter().map(|point| point.side.clone()).collect();
        sides.sort();
        sides.dedup();
        if let [first, second, ..] = &sides[..] {
            map(page, &cost_map(&points, first, second, COST_SCALE));
        }
    }
}

fn map(page: &mut String, map: &CostMap) {
    let _ = write!(
        page,
        "<h3>Drives needed: {} / {}</h3><p><small>Modelled from the runs above (paper 002, Figures 7c and 9).</small></p><table><tr><th>op/s \\ data</th>",
        escape(&map.sides[0]),
        escape(&map.sides[1])
    );
    for data in &map.dataset_bytes {
        let _ = write!(page, "<th>{}B</th>", short(*data));
    }
    page.push_str("</tr>");
    for (rate, row) in map.rate_per_s.iter().zip(&map.drives) {
        let _ = write!(page, "<tr><td>{}</td>", short(*rate));
        for [first, second] in row {
            let colour = match first.cmp(second) {
                std::cmp::Ordering::Less => "#dbe9f6",
                std::cmp::Ordering::Greater => "#fae3d6",
                std::cmp::Ordering::Equal => "#fff",
            };
            let count = |drives: &Option<u64>| drives.map_or("–".to_owned(), |d| d.to_string());
            let _ = write!(
                page,
                "<td style=\"background:{colour}\">{} / {}</td>",
                count(first),
                count(second)
            );
        }
        page.push_str("</tr>");
    }
    page.push_str("</table>");
}

fn limits(page: &mut String, fio: &[FioJob]) {
    if fio.is_empty() {
        return;
    }
    page.push_str("<h2>fio</h2><table><tr><th>job</th><th>reads/s</th><th>writes/s</th></tr>");
    for job in fio {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{:.0}</td><td>{:.0}</td></tr>",
            escape(&job.name),
            job.reads_per_s,
            job.writes_per_s
        );
    }
    page.push_str("</table>");
}

fn settings(page: &mut String, records: &[Record]) {
    page.push_str("<h2>Settings of the engines</h2>");
    for engine in distinct(records, |r| format!("{} ({})", r.side(), r.config_hash)) {
        let Some(record) = records
            .iter()
            .find(|r| format!("{} ({})", r.side(), r.config_hash) == engine)
        else {
            continue;
        };
        let _ = write!(
            page,
            "<details><summary>{}</summary><table>",
            escape(&engine)
        );
        for (name, value) in &record.settings {
            let _ = write!(
                page,
                "<tr><td>{}</td><td class=\"w\">{}</td></tr>",
                escape(name),
                escape(value)
            );
        }
        let search = record.search.iter();
        for (at, trial) in search.flat_map(|search| search.trials.iter().enumerate()) {
            let _ = write!(
                page,
                "<tr><td>trial {}</td><td class=\"w\">{}: {:.0} op/s</td></tr>",
                at + 1,
                escape(&trial.text()),
                trial.operations_per_s
            );
        }
        page.push_str("</table></details>");
    }
}
