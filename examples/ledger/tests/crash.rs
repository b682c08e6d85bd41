//! Kills the program in the middle of its work, again and again, and audits what it leaves.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

fn ledger(path: &Path, command: &str) -> Command {
    let mut process = Command::new(env!("CARGO_BIN_EXE_ledger"));
    process.arg(path).arg(command);
    process
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.isobath");
    for round in 1..=5 {
        let mut worker = ledger(&path, "work")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines();
        let mut acknowledged = 0;
        for line in lines.by_ref().take(50 * round) {
            acknowledged = acknowledged.max(line.unwrap().parse().unwrap());
        }
        worker.kill().unwrap(); // SIGKILL: the program gets no chance to do anything
        worker.wait().unwrap();
        // Its output before it was killed counts, too; the last line may be cut short.
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        for line in rest.iter().rev().skip(1) {
            acknowledged = acknowledged.max(line.parse().unwrap());
        }

        let audit = ledger(&path, "audit").output().unwrap();
        let said = String::from_utf8(audit.stdout).unwrap();
        let error = String::from_utf8(audit.stderr).unwrap();
        assert!(audit.status.success(), "round {round}: {error}");
        let count: u64 = said.split(' ').next().unwrap().parse().unwrap();
        assert!(
            count >= acknowledged,
            "round {round}: {count} of {acknowledged} are left"
        );
    }
}
