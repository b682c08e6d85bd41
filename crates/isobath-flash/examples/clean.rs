//! Simulations from the command line, with their speed: `clean POLICY,.. WORKLOAD,.. SEGMENTS FILL
//! DEVICE_WRITES`, and, to simulate what an engine does, `BATCH SORT_BUFFER absorbed|written`.

use std::error::Error;
use std::time::Instant;

use isobath_flash::policy::PolicyKind;
use isobath_flash::sim::{Duplicates, RunLength, SimConfig, simulate};

const USAGE: &str = "usage: clean POLICY,.. WORKLOAD,.. SEGMENTS FILL DEVICE_WRITES [BATCH SORT_BUFFER absorbed|written]";

/// The paper's set-up, with what the rest of the command line changes.
fn config(segments: u32, fill: f64, rest: &[String]) -> Result<SimConfig, Box<dyn Error>> {
    let mut config = SimConfig::paper(segments, fill);
    match rest {
        [] => {}
        [batch, sort_buffer, duplicates] => {
            let batch = batch.parse()?;
            config.clean_batch = Some(batch);
            config.spare_segments = SimConfig::paper_spare(segments, config.clean_below, batch);
            config.sort_buffer_segments = sort_buffer.parse()?;
            config.duplicates = match duplicates.as_str() {
                "absorbed" => Duplicates::Absorbed,
                "written" => Duplicates::Written,
                _ => return Err(USAGE.into()),
            };
        }
        _ => return Err(USAGE.into()),
    }
    Ok(config)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [policies, workloads, segments, fill, writes, rest @ ..] = args.as_slice() else {
        return Err(USAGE.into());
    };
    for workload in workloads.split(',') {
        for policy in policies.split(',') {
            let policy: PolicyKind = policy.parse()?;
            let config = config(segments.parse()?, fill.parse()?, rest)?;
            let start = Instant::now();
            let report = simulate(
                policy,
                &config,
                workload.parse()?,
                RunLength::DeviceWrites(writes.parse()?),
            )?;
            let seconds = start.elapsed().as_secs_f64();
            let pages =
                report.whole.user_pages + report.whole.relocated_pages + u64::from(report.pages);
            println!(
                "{workload:24} F={fill} {policy:20} Wamp steady {:.4} whole {:.4} E {:.4} | {:.1} s, {:.1} M page writes/s, {} streams",
                report.steady.wamp(),
                report.whole.wamp(),
                report.steady.emptiness(),
                seconds,
                pages as f64 / seconds / 1e6,
                report.streams_used,
            );
        }
    }
    Ok(())
}
