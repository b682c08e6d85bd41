//! One simulation from the command line, with its speed: `clean POLICY WORKLOAD SEGMENTS FILL DEVICE_WRITES`.

use std::time::Instant;

use isobath_flash::policy::PolicyKind;
use isobath_flash::sim::{RunLength, SimConfig, simulate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [policies, workloads, segments, fill, writes] = args.as_slice() else {
        return Err("usage: clean POLICY,.. WORKLOAD,.. SEGMENTS FILL DEVICE_WRITES".into());
    };
    for workload in workloads.split(',') {
        for policy in policies.split(',') {
            let policy: PolicyKind = policy.parse()?;
            let config = SimConfig::paper(segments.parse()?, fill.parse()?);
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
