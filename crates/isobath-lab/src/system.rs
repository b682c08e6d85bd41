//! Programs of the system that the laboratory runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::LabError;

/// A system program, also if the user's PATH leaves it out.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).collect::<Vec<_>>();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    let mut candidates = directories.iter().chain(&system).map(|d| d.join(name));
    candidates.find(|candidate| candidate.is_file())
}

/// Runs a system program; what it printed.
///
/// # Errors
/// The program is missing, or what it said if it failed.
pub(crate) fn run(name: &str, args: &[&str], file: &Path) -> Result<String, LabError> {
    let program = tool(name).unwrap_or_else(|| name.into());
    let output = Command::new(&program).args(args).arg(file).output();
    let output = output.map_err(LabError::io("run", &program))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(LabError::input(
        file,
        format!("{name} failed: {}", said.trim().replace('\n', "; ")),
    ))
}

/// Puts a loop device over a file, past the page cache, with blocks of 4 KiB.
///
/// # Errors
/// As [`run`].
pub(crate) fn attach_loop(file: &Path) -> Result<PathBuf, LabError> {
    let args = ["--find", "--show", "--direct-io=on", "--sector-size=4096"];
    run("losetup", &args, file).map(PathBuf::from)
}

/// Privileges and programs that this process lacks for file systems on loop devices.
pub(crate) fn lacks_for_loop_devices(formats: bool) -> Vec<&'static str> {
    let mut needs = Vec::new();
    if !rustix::process::geteuid().is_root() {
        needs.push("root's rights");
    }
    if !Path::new("/dev/loop-control").exists() {
        needs.push("loop devices (/dev/loop-control, kernel module loop)");
    }
    if tool("losetup").is_none() {
        needs.push("the program losetup (Debian: util-linux)");
    }
    if formats && tool("mkfs.ext4").is_none() {
        needs.push("the program mkfs.ext4 (Debian: e2fsprogs)");
    }
    needs
}
