//! Running the real command.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory of one test, with the command run inside it.
pub(crate) struct Place(tempfile::TempDir);

/// What one run answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Answer {
    fn of(output: Output) -> Answer {
        Answer {
            code: output.status.code().unwrap_or(-1),
            out: output.stdout,
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Standard output as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    /// The lines of standard output as JSON documents.
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        self.text()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }

    /// Asserts success.
    #[track_caller]
    pub(crate) fn ok(self) -> Answer {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// Asserts an exit code and a part of the message, and that the message is
    /// one sentence for a person: no debug output, no panic.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, message: &str) -> Answer {
        assert_eq!(self.code, code, "{self:?}");
        assert!(
            self.err.contains(message),
            "`{message}` is not in: {}",
            self.err
        );
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
}

impl Place {
    pub(crate) fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).unwrap();
        }
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn command(&self) -> Command {
        command_in(self.0.path())
    }

    /// Runs the command with these arguments.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, args: &[A]) -> Answer {
        Answer::of(self.command().args(args).output().unwrap())
    }

    /// Runs the command as if the terminal had so many columns.
    pub(crate) fn run_in_columns(&self, columns: &str, args: &[&str]) -> Answer {
        let mut command = self.command();
        Answer::of(command.env("COLUMNS", columns).args(args).output().unwrap())
    }

    /// Runs the command with this standard input.
    pub(crate) fn feed<A: AsRef<OsStr>>(&self, args: &[A], input: &[u8]) -> Answer {
        let mut child = self
            .command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that fails early closes its end; that is not our failure.
        let _ = child.stdin.take().unwrap().write_all(input);
        Answer::of(child.wait_with_output().unwrap())
    }

    /// Names in the directory, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// A store `s.iso` with these records in tree `main`.
    pub(crate) fn store(&self, records: &[(&str, &str)]) {
        let lines: String = records.iter().map(|(k, v)| format!("{k}\t{v}\n")).collect();
        self.feed(
            &["load", "-s", "s.iso", "--create", "lines"],
            lines.as_bytes(),
        )
        .ok();
    }
}

/// The command in `dir`, not looking at the environment.
pub(crate) fn command_in(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isobath"));
    command
        .current_dir(dir)
        .env_remove("ISOBATH_STORE")
        .env_remove("COLUMNS");
    command
}
