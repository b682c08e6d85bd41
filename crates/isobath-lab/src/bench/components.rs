//! CPU time by component while the clients run, as the kernel's profiler samples it (paper 001,
//! Figure 16).
//!
//! `perf` samples this process and says of each sample in which function it was. Functions of
//! Isobath belong to the folder of their module, those of other engines to their library. Code of
//! one component that the compiler inlined into another one's function counts there. A sample
//! within an interrupt is an interrupt's, whatever that interrupted; elsewhere in the kernel the
//! nearest call decides that is known.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::record::RunRecord;
use crate::LabError;

/// Samples per second of CPU time: no divisor of a timer's rate, so that periodic work is met at
/// all its places.
const SAMPLES_PER_S: u32 = 997;
/// How long `perf` may take to begin: it writes its file's header first.
const BEGIN_MAX: Duration = Duration::from_secs(5);

/// A running `perf`, and its file.
pub(super) struct Profiler {
    perf: Child,
    samples: tempfile::TempDir,
}

impl Profiler {
    /// Whether `perf` is there and may look at this process.
    pub(super) fn check() -> Result<(), LabError> {
        let mut profiler = Profiler::start()?;
        profiler.interrupt();
        Ok(())
    }

    /// Begins to sample this process, threads that it starts later included.
    pub(super) fn start() -> Result<Profiler, LabError> {
        let samples = tempfile::Builder::new()
            .prefix("isobath-perf-")
            .tempdir()
            .map_err(LabError::io("make", &std::env::temp_dir()))?;
        let file = samples.path().join(FILE);
        let mut perf = Command::new("perf")
            .args(["record", "--quiet", "-g", "-F"])
            .arg(SAMPLES_PER_S.to_string())
            .arg("-p")
            .arg(std::process::id().to_string())
            .arg("-o")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| refused(&error.to_string()))?;
        let began = Instant::now();
        loop {
            if let Ok(Some(_)) = perf.try_wait() {
                let mut words = String::new();
                if let Some(stderr) = perf.stderr.take() {
                    let lines = BufReader::new(stderr).lines().map_while(Result::ok);
                    words = lines.collect::<Vec<_>>().join(" ");
                }
                return Err(refused(&words));
            }
            let written = std::fs::metadata(&file).map_or(0, |meta| meta.len());
            if written > 0 || began.elapsed() > BEGIN_MAX {
                return Ok(Profiler { perf, samples });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends `perf` as ^C does, so that it completes its file.
    fn interrupt(&mut self) {
        let pid = i32::try_from(self.perf.id()).ok();
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            // It may have ended.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        // It may have ended.
        let _ = self.perf.wait();
    }

    /// Ends the sampling; each component's share of the samples, the largest first.
    pub(super) fn end(mut self) -> Result<Vec<(String, f64)>, LabError> {
        self.interrupt();
        let mut script = Command::new("perf")
            .args(["script", "--no-inline", "-F", "ip,sym,dso", "-i"])
            .arg(self.samples.path().join(FILE))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| refused(&error.to_string()))?;
        let output = script.stdout.take();
        let lines = output
            .into_iter()
            .flat_map(|output| BufReader::new(output).lines());
        let shares = shares(lines.map_while(Result::ok));
        // It may have ended.
        let _ = script.wait();
        Ok(shares)
    }
}

impl Drop for Profiler {
    /// A run that failed has no use for the samples.
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.perf.kill();
        let _ = self.perf.wait();
    }
}

const FILE: &str = "perf.data";

fn refused(words: &str) -> LabError {
    LabError::Request(format!(
        "CPU time by component needs `perf` (Debian: linux-perf), which did not run: {}; install it, and be root or set \
         kernel.perf_event_paranoid to 1 or less",
        words.trim()
    ))
}

/// Shares of the components in what `perf script` prints: for each sample its function and those
/// that called it, a line each; empty lines end a sample. The callers in the program are not looked
/// at: it is compiled without what would find them.
fn shares(lines: impl Iterator<Item = String>) -> Vec<(String, f64)> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut sample = Vec::new();
    // The last sample may have no empty line after it.
    for line in lines.chain([String::new()]) {
        if let Some(frame) = Frame::parse(&line) {
            sample.push(frame);
        } else if !sample.is_empty() {
            *counts.entry(component(&sample)).or_default() += 1;
            sample.clear();
        }
    }
    let all: u64 = counts.values().sum();
    let share = |(name, count)| (name, count as f64 / all.max(1) as f64);
    let mut shares: Vec<(String, f64)> = counts.into_iter().map(share).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    shares
}

/// A function of a sample, and the file that it is from.
struct Frame {
    function: String,
    file: String,
}

impl Frame {
    /// `  55d0c0de isobath::btree::get (/usr/bin/isobath)`; nothing of an empty line.
    fn parse(line: &str) -> Option<Frame> {
        let (_, rest) = line.trim().split_once(' ')?;
        let (function, file) = rest.rsplit_once(" (")?;
        Some(Frame {
            function: function.trim().to_owned(),
            file: file.trim_end_matches(')').to_owned(),
        })
    }

    /// Whether the function's name has one of these words.
    fn has(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.function.contains(word))
    }

    fn in_kernel(&self) -> bool {
        self.file.starts_with('[') && self.file != "[vdso]" && self.file != "[unknown]"
    }
}

/// Words in the names of functions that handle interrupts.
const INTERRUPTS: &[&str] = &["interrupt", "softirq", "sysvec", "_irq_exit", "handle_irq"];
/// The purpose of the kernel's other functions, by words of their names; the first that fits
/// counts.
const KERNEL: [(&str, &[&str]); 4] = [
    (
        "kernel: sleeping and waking",
        &[
            "schedule",
            "futex",
            "try_to_wake_up",
            "eventfd",
            "epoll",
            "nanosleep",
            "exit_to_user",
        ],
    ),
    (
        "kernel: I/O calls",
        &[
            "io_uring",
            "io_submit",
            "io_getevents",
            "io_wq",
            "io_worker",
            "vfs_",
            "ksys_p",
            "fsync",
            "fdatasync",
            "fallocate",
            "blk_",
            "ext4_",
            "xfs_",
            "sys_pread",
            "sys_pwrite",
        ],
    ),
    (
        "kernel: memory",
        &[
            "page_fault",
            "sys_mmap",
            "sys_munmap",
            "sys_madvise",
            "sys_brk",
            "sys_mprotect",
        ],
    ),
    ("kernel: system calls", &["entry_SYSCALL", "syscall"]),
];

/// The component of a module of Isobath, by the beginning of its path.
const MODULES: [(&str, &str); 16] = [
    ("isobath_lab", "benchmark"),
    ("isobath_io", "I/O submission and completion"),
    ("isobath_flash", "cleaning policy"),
    ("isobath::btree", "B-tree"),
    ("isobath::buffer", "buffer pool and eviction"),
    ("isobath::page", "pages"),
    ("isobath::pagestore", "page store and cleaner"),
    ("isobath::log", "log"),
    ("isobath::txn", "transactions"),
    ("isobath::runtime", "tasks"),
    ("isobath::checkpoint", "checkpoints"),
    ("isobath::recovery", "checkpoints"),
    ("isobath::extent", "large values"),
    ("isobath::api", "store interface"),
    ("isobath::engine", "store interface"),
    ("isobath::shared", "store interface"),
];

/// The component of a sample, whose function comes first and its callers after it.
fn component(sample: &[Frame]) -> String {
    let Some(first) = sample.first() else {
        return "unknown".to_owned();
    };
    if first.in_kernel() {
        let kernel = || sample.iter().take_while(|frame| frame.in_kernel());
        if kernel().any(|frame| frame.has(INTERRUPTS)) {
            return "kernel: interrupts".to_owned();
        }
        let known = kernel().find_map(|frame| {
            let part = KERNEL.iter().find(|(_, words)| frame.has(words));
            part.map(|(name, _)| *name)
        });
        return known.unwrap_or("kernel: other").to_owned();
    }
    if let Some(at) = first.function.find("isobath") {
        let path = &first.function[at..];
        let module = MODULES.iter().find(|(module, _)| {
            let rest = path.strip_prefix(module);
            rest.is_some_and(|rest| rest.starts_with("::") || rest.is_empty())
        });
        return module
            .map_or("store interface", |(_, name)| name)
            .to_owned();
    }
    if first.file == "[vdso]" {
        return "clock".to_owned();
    }
    let file = Path::new(&first.file)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    match file.split_once(".so") {
        Some(("libc" | "libm", _)) => "libc: copying, comparing, allocating".to_owned(),
        Some((library, _)) => library.to_owned(),
        // Functions of the standard library and of crates, which are within the program.
        None => "libraries".to_owned(),
    }
}

/// The table of what each component takes of an operation's CPU time: all of it, then a row for
/// each component that a record has, and a column for each record.
#[must_use]
pub fn components(records: &[&RunRecord]) -> Vec<Vec<String>> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in records.iter().flat_map(|r| &r.cpu_by_component) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let row = |name: &str, of: &dyn Fn(&RunRecord) -> Option<String>| {
        let cells = records.iter().map(|r| of(r).unwrap_or_default());
        [name.to_owned()].into_iter().chain(cells).collect()
    };
    let all = |r: &RunRecord| Some(format!("{:.2}", r.cpu_us_per_operation));
    let rows = names.iter().map(|name| {
        row(name, &|r: &RunRecord| {
            let (_, us) = r.cpu_by_component.iter().find(|(known, _)| known == name)?;
            let share = 100.0 * us / r.cpu_us_per_operation.max(f64::MIN_POSITIVE);
            Some(format!("{us:.2} ({share:.0}%)"))
        })
    });
    [row("all", &all)].into_iter().chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the form that `perf script --no-inline -F ip,sym,dso` of Linux 6.1 prints; the interrupt
    /// is one that it printed.
    const SCRIPT: &str = "
	          74297c isobath_lab::bench::clients::Shared::client (/usr/bin/isobath)


	          5f0010 <isobath::buffer::pool::Pool as core::fmt::Debug>::fmt (/usr/bin/isobath)
	               0 [unknown] ([unknown])

	ffffffff817686d4 iomap_dio_bio_end_io ([kernel.kallsyms])
	ffffffff81b056d0 blk_update_request ([kernel.kallsyms])
	ffffffff81b06d2c blk_mq_end_request ([kernel.kallsyms])
	ffffffff81b03e79 blk_done_softirq ([kernel.kallsyms])
	ffffffff8136213d handle_softirqs ([kernel.kallsyms])
	ffffffff81000d62 asm_common_interrupt ([kernel.kallsyms])
	ffffffff81768000 io_submit_sqes ([kernel.kallsyms])
	          740c89 isobath_lab::bench::clients::Client::get (/usr/bin/isobath)

	ffffffff81768000 virtqueue_add ([virtio_ring])
	ffffffff81768000 __do_sys_io_uring_enter ([kernel.kallsyms])

	          163b28 __memcmp_evex_movbe (/usr/lib/x86_64-linux-gnu/libc.so.6)

	             b28 rocksdb::BlockIter<rocksdb::Slice>::Next() (/usr/lib/x86_64-linux-gnu/librocksdb.so.7.8.3)

	             a63 core::ptr::drop_in_place<isobath::txn::Transaction> (/usr/bin/isobath)

	             a63 isobath::pagestore::allocator::Allocator::take (/usr/bin/isobath)
";

    #[test]
    fn samples_belong_to_components() {
        let shares = shares(SCRIPT.lines().map(str::to_owned));
        let mut names: Vec<&str> = shares.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let expected = [
            "benchmark",
            "buffer pool and eviction",
            "kernel: I/O calls",
            "kernel: interrupts",
            "libc: copying, comparing, allocating",
            "librocksdb",
            "page store and cleaner",
            "transactions",
        ];
        assert_eq!(names, expected);
        assert!(
            shares
                .iter()
                .all(|(_, share)| (share - 0.125).abs() < 1e-12)
        );
    }

    #[test]
    fn nothing_sampled_has_no_components() {
        assert_eq!(shares(std::iter::empty()), []);
    }
}
