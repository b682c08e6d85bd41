//! Workload files: the documented example, and errors that name field and line.
#![allow(clippy::unwrap_used, reason = "a failed step must stop the test")]
use isobath_model::workload::{Durability, Order, Workload, WorkloadError};

fn documented_example() -> String {
    let source = include_str!("../src/workload.rs");
    let lines = source.lines().skip_while(|l| *l != "//! ```toml").skip(1);
    let body: Vec<&str> = lines
        .take_while(|l| *l != "//! ```")
        .map(|l| l.trim_start_matches("//!").trim_start())
        .collect();
    body.join("\n")
}

#[test]
fn the_documented_example_is_readable() {
    let workload = Workload::from_toml(&documented_example()).unwrap();
    assert_eq!(workload.clients, 64);
    assert_eq!(workload.durability, Durability::Synced);
    assert!((workload.data_bytes() - 64e6 * 2064.0).abs() < 1.0);
    assert!((workload.writes() - 0.25).abs() < 1e-12);
    assert_eq!(workload.order_on_drive(), Order::Rewritten);
}

#[test]
fn the_order_on_the_drive_is_given_or_follows_from_writes() {
    let text = documented_example().replace("\"rewritten\"", "\"loaded\"");
    let mut workload = Workload::from_toml(&text).unwrap();
    assert_eq!(workload.order_on_drive(), Order::Loaded);
    workload.order = None;
    assert_eq!(workload.order_on_drive(), Order::Rewritten);
    (workload.updates, workload.inserts) = (0.0, 0.0);
    assert_eq!(workload.order_on_drive(), Order::Loaded);
    let error = Workload::from_toml(&text.replace("\"loaded\"", "\"sorted\"")).unwrap_err();
    assert!(error.to_string().contains("field order"), "{error}");
}

fn line_of(text: &str, key: &str) -> usize {
    1 + text.lines().position(|l| l.starts_with(key)).unwrap()
}

#[test]
fn nonsense_names_field_and_line() {
    let example = documented_example();
    for (key, value, field) in [
        ("record_count", "0", "data.record_count"),
        ("record_count", "0.5", "data.record_count"),
        ("key_bytes", "-3", "data.key_bytes"),
        ("key_bytes", "0.5", "data.key_bytes"),
        ("scan_records", "0.2", "operations.scan_records"),
        ("scan_records", "1e18", "operations.scan_records"),
        ("zipf_exponent", "7", "data.zipf_exponent"),
        ("point_reads", "70", "operations.point_reads"),
        ("clients", "2.5", "operations.clients"),
        ("memory_bytes", "64", "machine.memory_bytes"),
        ("core_count", "0", "machine.core_count"),
        ("operations_per_s", "-1", "target.operations_per_s"),
        ("capacity_bytes", "1000", "drive.capacity_bytes"),
        ("endurance_bytes", "nan", "drive.endurance_bytes"),
    ] {
        let line = line_of(&example, key);
        let mut lines: Vec<String> = example.lines().map(String::from).collect();
        lines[line - 1] = format!("{key} = {value}");
        match Workload::from_toml(&lines.join("\n")).unwrap_err() {
            WorkloadError::Invalid {
                line: found,
                field: named,
                ..
            } => {
                assert_eq!((found, named), (line, field));
            }
            other => panic!("{key}: {other}"),
        }
    }
}

#[test]
fn shares_must_add_up() {
    let text = documented_example().replace("updates = 0.20", "updates = 0.40");
    let error = Workload::from_toml(&text).unwrap_err();
    let line = line_of(&text, "[operations]");
    assert!(
        error
            .to_string()
            .starts_with(&format!("line {line}, field operations: 1.2")),
        "{error}"
    );
    let spaced = text.replace("[operations]", "[ operations ]");
    let error = Workload::from_toml(&spaced).unwrap_err().to_string();
    assert!(error.starts_with(&format!("line {line},")), "{error}");
    let inline = "data = { record_count = 1, key_bytes = 8, value_bytes = 8 }\n\
                  operations = { point_reads = 0.5, clients = 1 }\n\
                  machine = { memory_bytes = 1e9, core_count = 1 }\n";
    let error = Workload::from_toml(inline).unwrap_err().to_string();
    assert!(
        error.starts_with("line 2, field operations: 0.5"),
        "{error}"
    );
}

#[test]
fn typing_errors_name_line_and_field() {
    let example = documented_example();
    let text = example.replace("value_bytes", "valu_bytes");
    let error = Workload::from_toml(&text).unwrap_err().to_string();
    assert!(
        error.contains(&format!("line {}", line_of(&text, "valu_bytes")))
            && error.contains("valu_bytes"),
        "{error}"
    );
    let text = example.replace("clients = 64 ", "clients = \"many\" ");
    let error = Workload::from_toml(&text).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!(
            "line {}, field clients: ",
            line_of(&text, "clients")
        )),
        "{error}"
    );
    let text = example.replace("clients = 64 ", "clients = = ");
    let error = Workload::from_toml(&text).unwrap_err();
    assert!(
        matches!(error, WorkloadError::Syntax { line, .. } if line == line_of(&text, "clients")),
        "{error}"
    );
    let text = example.replace("\"synced\"", "\"always\"");
    assert!(
        Workload::from_toml(&text)
            .unwrap_err()
            .to_string()
            .contains("always")
    );
    let error = Workload::from_toml("[data]\nrecord_count = 5\n")
        .unwrap_err()
        .to_string();
    assert!(error.contains("missing field"), "{error}");
    let error = Workload::from_toml("# a = comment\n[data]\nrecord_count = 5\n")
        .unwrap_err()
        .to_string();
    assert!(!error.contains("field #"), "{error}");
}
