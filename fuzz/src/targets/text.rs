//! Traces, profiles, workloads, options.

use isobath_flash::policy::PolicyKind;
use isobath_flash::trace::{TraceFormat, read_trace};
use isobath_flash::workload::WorkloadKind;
use isobath_model::profile::DeviceProfile;
use isobath_model::workload::Workload;

use super::{Input, Target, corpus};

/// Pages of the device that traces are read for; a line may write all of them, and takes heap for
/// each.
const DEVICE_PAGES: u64 = 1 << 10;

pub(super) fn targets() -> [Target; 4] {
    [
        Target {
            name: "trace",
            about: "traces of page writes, in each format",
            inputs: || corpus("trace"),
            run: trace,
        },
        Target {
            name: "profile",
            about: "profiles of drives",
            inputs: || {
                let example = include_str!("../../../docs/examples/profile.json");
                vec![Input::whole(example)]
            },
            run: |bytes| {
                if let Ok(profile) = DeviceProfile::from_json(&String::from_utf8_lossy(bytes)) {
                    let _ = (profile.levels(), profile.samples(), profile.to_json());
                }
            },
        },
        Target {
            name: "workload",
            about: "workload files",
            inputs: || {
                let examples = [
                    include_str!("../../../docs/workloads/ingest.toml"),
                    include_str!("../../../docs/workloads/read-mostly.toml"),
                    include_str!("../../../docs/workloads/update-heavy.toml"),
                ];
                examples.map(Input::whole).into()
            },
            run: |bytes| {
                if let Ok(workload) = Workload::from_toml(&String::from_utf8_lossy(bytes)) {
                    let _ = (workload.data_bytes(), workload.writes());
                }
            },
        },
        Target {
            name: "options",
            about: "strings of options: policies, laws of page writes, mixes of operations, hexadecimal keys",
            inputs: || corpus("options"),
            run: options,
        },
    ]
}

/// In every format.
fn trace(bytes: &[u8]) {
    for format in TraceFormat::ALL {
        let _ = read_trace(format, bytes, 4096, Some(DEVICE_PAGES));
    }
}

fn options(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end();
    if let Ok(policy) = text.parse::<PolicyKind>() {
        let _ = policy.to_string();
    }
    if let Ok(law) = text.parse::<WorkloadKind>() {
        let _ = law.to_string();
    }
    if let Ok(mix) = text.parse::<isobath_lab::bench::Mix>() {
        let _ = mix.to_string();
    }
    let _ = isobath_lab::unhex(text);
    let _ = isobath_lab::escape(bytes);
}
