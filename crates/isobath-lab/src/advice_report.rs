//! The HTML page about an advice: one self-contained page, no scripts, nothing to load.

use std::fmt::Write;

use isobath_io::ByteSize;
use isobath_model::advise::{Advice, Constant, EngineAdvice, Predicted, Structure};

use crate::model_report_svg::escape;

const STYLE: &str = include_str!("model_report.css");

/// Renders the page; `workload` is the name of its file.
#[must_use]
pub fn render(advice: &Advice, workload: &str) -> String {
    let mut page = String::new();
    let title = format!("Advice for {}", escape(workload));
    put(
        &mut page,
        format_args!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
        ),
    );
    put(
        &mut page,
        format_args!(
            "<p><b>{} fits better:</b> {}.</p>",
            verdict(advice),
            escape(&advice.structure_because)
        ),
    );
    put(
        &mut page,
        format_args!(
            "<p>The drive, by the {}: {} random 4 KiB reads/s and {} writes/s with {} in flight.</p>",
            escape(&advice.drive.model),
            grouped(advice.drive.page_reads_per_s),
            grouped(advice.drive.page_writes_per_s),
            advice.drive.depth
        ),
    );
    for warning in &advice.warnings {
        put(
            &mut page,
            format_args!("<p class=\"failure\">{}</p>", escape(warning)),
        );
    }
    put(
        &mut page,
        format_args!(
            "<h2>Predicted</h2><table class=\"models\"><tr><th></th><th class=\"number\">Isobath</th><th class=\"number\">RocksDB</th></tr>"
        ),
    );
    let rows = predicted(&advice.isobath.predicted);
    for ((name, ours), (_, theirs)) in rows.iter().zip(predicted(&advice.rocksdb.predicted)) {
        put(
            &mut page,
            format_args!(
                "<tr><td>{name}</td><td class=\"number\">{ours}</td><td class=\"number\">{theirs}</td></tr>"
            ),
        );
    }
    page.push_str("</table>\n");
    page.push_str("<h2>Constants of the engines</h2><table class=\"models\"><tr><th>CPU</th><th class=\"number\">µs</th><th>from</th></tr>");
    for row in constants(advice) {
        put(
            &mut page,
            format_args!(
                "<tr><td>{}</td><td class=\"number\">{}</td><td>{}</td></tr>",
                escape(&row[0]),
                row[1],
                escape(&row[2])
            ),
        );
    }
    page.push_str("</table>\n");
    settings(&mut page, "Isobath", &advice.isobath);
    settings(&mut page, "RocksDB", &advice.rocksdb);
    put(
        &mut page,
        format_args!(
            "<h2>RocksDB OPTIONS file</h2><pre>{}</pre></body></html>",
            escape(&advice.rocksdb_options_file())
        ),
    );
    page
}

/// What fits better, in words.
#[must_use]
pub fn verdict(advice: &Advice) -> &'static str {
    match advice.structure {
        Structure::BTree => "A B-tree (Isobath)",
        Structure::Lsm => "An LSM tree (RocksDB)",
    }
}

/// 1234567.8 → `1,234,568`.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A setting's value for people: counts of bytes get their size in words beside the exact number.
#[must_use]
pub fn readable(setting: &str, value: &str) -> String {
    let is_bytes = setting.ends_with("_bytes") || setting == "target_file_size_base";
    let size = match value.parse::<f64>() {
        Ok(bytes) if is_bytes && bytes >= 1_073_741_824.0 => bytes / 1_073_741_824.0,
        Ok(bytes) if is_bytes && bytes >= 1_048_576.0 => {
            return format!("{value} ({:.0} MiB)", bytes / 1_048_576.0);
        }
        _ => return value.to_owned(),
    };
    format!("{value} ({size:.1} GiB)")
}

/// The constants behind the predictions: what, µs, and where each comes from.
#[must_use]
pub fn constants(advice: &Advice) -> Vec<[String; 3]> {
    let row = |constant: &Constant| {
        let from = match constant.is_measured {
            true => format!("measured: {}", constant.source),
            false => constant.source.clone(),
        };
        [
            format!("{}: {}", constant.engine, constant.what),
            constant.us.to_string(),
            from,
        ]
    };
    advice.constants.iter().map(row).collect()
}

/// What an engine is predicted to do, as rows of a table.
#[must_use]
pub fn predicted(p: &Predicted) -> Vec<(&'static str, String)> {
    let (low, high) = p.operations_per_s_range;
    let years = match p.endurance_years {
        None => "-".to_owned(),
        Some(years) if years < 1.0 => format!("{:.0} days", years * 365.25),
        Some(years) => format!("{years:.1} years"),
    };
    vec![
        ("operations/s", grouped(p.operations_per_s)),
        (
            "90% interval",
            format!("{} to {}", grouped(low), grouped(high)),
        ),
        ("limited by", p.limited_by.to_owned()),
        (
            "read latency, mean",
            format!("{} µs", grouped(p.read_latency_us_mean)),
        ),
        (
            "read latency, p99",
            p.read_latency_us_p99
                .map_or_else(|| "-".to_owned(), |us| format!("{} µs", grouped(us))),
        ),
        (
            "CPU per operation",
            format!("{:.1} µs", p.cpu_us_per_operation),
        ),
        (
            "page reads per operation",
            format!("{:.2}", p.page_reads_per_operation),
        ),
        (
            "write amplification (WA-A)",
            format!("{:.2}", p.write_amplification),
        ),
        (
            "written to the drive",
            format!("{}/s", ByteSize(p.drive_writes_bytes_per_s as u64)),
        ),
        ("drive worn out in", years),
        (
            "space amplification",
            format!("{:.2}", p.space_amplification),
        ),
    ]
}

fn settings<S>(page: &mut String, engine: &str, advice: &EngineAdvice<S>) {
    put(
        page,
        format_args!(
            "<h2>{engine}</h2><table class=\"models\"><tr><th>setting</th><th>value</th><th>because</th></tr>"
        ),
    );
    for reason in &advice.reasons {
        put(
            page,
            format_args!(
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
                reason.setting,
                escape(&readable(reason.setting, &reason.value)),
                escape(&reason.because)
            ),
        );
    }
    page.push_str("</table>\n");
}

/// Writing to a `String` cannot fail.
fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(text);
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!(grouped(1_234_567.8), "1,234,568");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(readable("pool_bytes", "4147708707"), "4147708707 (3.9 GiB)");
        assert_eq!(
            readable("target_file_size_base", "67108864"),
            "67108864 (64 MiB)"
        );
        assert_eq!(readable("workers", "67108864"), "67108864");
        assert_eq!(readable("pool_bytes", "none"), "none");
    }
}
