//! files mount: a tree of files as a file system, served by a process of its own.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use isobath_lab::LabError;
use serde_json::json;

use crate::args::{FilesArgs, FilesMountArgs, GlobalArgs};
use crate::failure::{FAILED, Failure};
use crate::output::Output;

/// Starts the process that serves, and waits until it does.
pub(super) fn mount(
    args: &FilesArgs,
    mount: &FilesMountArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    check_built()?;
    if !Path::new("/dev/fuse").exists() {
        let text =
            "files cannot be mounted here, that needs the device /dev/fuse (kernel module fuse)";
        return Err(Failure::Lab(LabError::Request(text.into())));
    }
    if mount.foreground {
        return serve(args, mount, false, global);
    }
    let program = std::env::current_exe().map_err(LabError::io("find", Path::new("isobath")))?;
    let child = server(&program, args, mount)?
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(LabError::io("run", &program))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        // The end of its output is an answer too.
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    if line.is_empty() {
        let mut said = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            // A file that cannot be read says nothing.
            let _ = stderr.read_to_string(&mut said);
        }
        let code = child.wait().ok().and_then(|status| status.code());
        return Err(Failure::Server {
            said: said.trim().trim_start_matches("isobath: ").to_owned(),
            code: code.and_then(|code| code.try_into().ok()).unwrap_or(FAILED),
        });
    }
    if out.json() {
        return out.document(&json!({
            "mount_point": mount.mount_point,
            "process": child.id(),
        }));
    }
    let point = mount.mount_point.display();
    out.line(&format!(
        "mounted at {point}, served by process {}",
        child.id()
    ))
}

/// The command line of the process that serves, which runs in another directory.
fn server(program: &Path, args: &FilesArgs, mount: &FilesMountArgs) -> Result<Command, Failure> {
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|error| LabError::io("find", path)(error));
    let mut command = Command::new(program);
    command.args(["files", "serve"]);
    for path in &args.store.store {
        command.arg("--store").arg(absolute(path)?);
    }
    if let Some(path) = &args.store.log_path {
        command.arg("--log-path").arg(absolute(path)?);
    }
    if let Some(pool) = args.store.pool {
        command.arg("--pool").arg(pool.0.to_string());
    }
    if let Some(workers) = args.store.workers {
        command.arg("--workers").arg(workers.to_string());
    }
    if let Some(wait) = args.store.wait {
        command.arg("--wait").arg(format!("{}ms", wait.as_millis()));
    }
    command.arg("--tree").arg(&args.tree);
    if mount.allow_other {
        command.arg("--allow-other");
    }
    if let Some(log) = &mount.log {
        command.arg("--log").arg(absolute(log)?);
    }
    command.arg("--").arg(absolute(&mount.mount_point)?);
    Ok(command)
}

#[cfg(feature = "mount")]
fn check_built() -> Result<(), Failure> {
    Ok(())
}

#[cfg(not(feature = "mount"))]
fn check_built() -> Result<(), Failure> {
    Err(Failure::Lab(LabError::NotBuilt {
        what: "FUSE, which mounting files needs",
        cure: "build isobath-cli with --features mount, which its default features contain",
    }))
}

#[cfg(feature = "mount")]
pub(super) use serving::serve;

#[cfg(not(feature = "mount"))]
pub(super) fn serve(
    _: &FilesArgs,
    _: &FilesMountArgs,
    _: bool,
    _: &GlobalArgs,
) -> Result<(), Failure> {
    check_built()
}

/// The work of the serving process.
#[cfg(feature = "mount")]
mod serving {
    use std::io::Write;
    use std::path::Path;
    use std::sync::Mutex;

    use isobath_lab::Monitor;

    use crate::args::{FilesArgs, FilesMountArgs, GlobalArgs};
    use crate::commands::files;
    use crate::commands::store::{self, LARGE_POOL};
    use crate::failure::Failure;
    use crate::progress::Progress;

    /// Serves until it is unmounted, or a signal asks for the end.
    pub(in crate::commands) fn serve(
        args: &FilesArgs,
        mount: &FilesMountArgs,
        in_background: bool,
        global: &GlobalArgs,
    ) -> Result<(), Failure> {
        let store = store::read(&args.store, LARGE_POOL)?;
        let view = files::open(&store, &args.tree)?.view()?;
        let lengths = store.paths().iter().map(std::fs::metadata);
        let options = isobath_files::MountOptions {
            source: args
                .store
                .store
                .first()
                .map_or_else(String::new, |path| path.display().to_string()),
            allow_other: mount.allow_other,
            bytes: lengths.flatten().map(|found| found.len()).sum(),
        };
        let log = open_log(mount.log.as_deref())?;
        if in_background {
            // The terminal's Ctrl-C, and its end, are not for the file system.
            let _ = rustix::process::setsid();
        }
        let progress = Progress::in_order(global, &[])?;
        let tell = move |line: &str| {
            // If the log cannot be written, the message is lost.
            if let Ok(mut log) = log.lock() {
                // A log that cannot be written has no other place to say so.
                let _ = writeln!(log, "isobath: {}", isobath_lab::escape(line.as_bytes()));
            }
        };
        let point = &mount.mount_point;
        let served = isobath_files::serve(
            view,
            point,
            &options,
            tell,
            || progress.cancelled(),
            || {
                // It is served also if the parent has stopped waiting.
                let mut out = std::io::stdout();
                // The parent may be gone.
                let _ = out.write_all(b"ready\n").and_then(|()| out.flush());
            },
        );
        let closed = store.close();
        served?;
        Ok(closed?)
    }

    /// Opens the log of failed reads.
    fn open_log(path: Option<&Path>) -> Result<Mutex<Box<dyn Write + Send>>, Failure> {
        let Some(path) = path else {
            return Ok(Mutex::new(Box::new(std::io::stderr())));
        };
        Ok(Mutex::new(Box::new(isobath::OutputFile::append(path)?)))
    }
}
