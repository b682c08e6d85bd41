//! The HTML page about an advice.

use isobath_io::ByteSize;
use isobath_model::advise::{Advice, Constant, EngineAdvice, Predicted, Structure};

use crate::report::{Markup, cells, grouped, html, number, page, table, words};

/// Renders the page; `workload` is the name of its file.
#[must_use]
pub fn render(advice: &Advice, workload: &str) -> String {
    let drive = &advice.drive;
    let engines = predicted(&advice.isobath.predicted).into_iter();
    let predicted = engines
        .zip(predicted(&advice.rocksdb.predicted))
        .map(|((name, ours), (_, theirs))| cells![name, ours, theirs]);
    let constants = constants(advice).into_iter();
    let constants = constants.map(|[what, us, from]| cells![what, us, from]);
    let content = html! {
        p { b { (verdict(advice)) " fits better:" } " " (advice.structure_because) "." }
        p {
            "The drive, by the " (drive.model) ": " (grouped(drive.page_reads_per_s)) " random 4 KiB reads/s and "
            (grouped(drive.page_writes_per_s)) " writes/s with " (drive.depth) " in flight."
        }
        @for assumption in &advice.assumptions { p { "Assumed of " (assumption) } }
        @for warning in &advice.warnings { p.unknown { (warning) } }
        h2 { "Predicted" }
        (table(&[words(""), number("Isobath"), number("RocksDB")], predicted))
        h2 { "Constants of the engines" }
        (table(&[words("CPU"), number("µs"), words("from")], constants))
        h2 { "Isobath" }
        (settings(&advice.isobath))
        h2 { "RocksDB" }
        (settings(&advice.rocksdb))
        h2 { "RocksDB OPTIONS file" }
        pre { (advice.rocksdb_options_file()) }
    };
    page(&format!("Advice for {workload}"), &content)
}

fn settings<S>(advice: &EngineAdvice<S>) -> Markup {
    let reasons = advice.reasons.iter();
    let rows = reasons.map(|r| cells![r.setting, readable(r.setting, &r.value), r.because]);
    table(&[words("setting"), words("value"), words("because")], rows)
}

/// The verdict, in words.
#[must_use]
pub fn verdict(advice: &Advice) -> &'static str {
    match advice.structure {
        Structure::BTree => "A B-tree (Isobath)",
        Structure::Lsm => "An LSM tree (RocksDB)",
    }
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
            three_digits(constant.us),
            from,
        ]
    };
    advice.constants.iter().map(row).collect()
}

/// A number with its first three digits that are not zero, and no more than six behind the point.
fn three_digits(number: f64) -> String {
    let before = number.abs().log10().floor();
    let behind = if before.is_finite() {
        2.0 - before
    } else {
        0.0
    };
    format!("{number:.*}", behind.clamp(0.0, 6.0) as usize)
}

/// The predictions for an engine, as rows of a table.
#[must_use]
pub fn predicted(p: &Predicted) -> Vec<(&'static str, String)> {
    let (low, high) = p.operations_per_s_range;
    let micros = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{} µs", grouped(us)));
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
        ("read latency, mean", micros(p.read_latency_us_mean)),
        ("read latency, p99", micros(p.read_latency_us_p99)),
        (
            "CPU per operation",
            format!("{:.1} µs", p.cpu_us_per_operation),
        ),
        (
            "page reads per operation",
            format!("{:.2}", p.page_reads_per_operation),
        ),
        (
            "I/Os that read them",
            p.read_ios_per_operation
                .map_or_else(|| "-".to_owned(), |ios| format!("{ios:.2}")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let texts = [13.597_338, 0.001_198_750, 0.7, 0.0, 412.34].map(three_digits);
        assert_eq!(texts, ["13.6", "0.00120", "0.700", "0", "412"]);
    }

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(readable("pool_bytes", "4147708707"), "4147708707 (3.9 GiB)");
        assert_eq!(
            readable("target_file_size_base", "67108864"),
            "67108864 (64 MiB)"
        );
        assert_eq!(readable("workers", "67108864"), "67108864");
        assert_eq!(readable("pool_bytes", "none"), "none");
    }
}
