//! The OpenMP programs of `examples/omp` and their twins with a file per object: equal results in
//! all modes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../../xtask/skipped.rs"]
mod skipped;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Why programs cannot be built here, if they cannot.
fn lacks() -> Option<&'static str> {
    let has_compiler = Command::new("g++").arg("--version").output().is_ok();
    let has = |header: &str| Path::new("/usr/include").join(header).exists();
    match () {
        () if !has_compiler => Some("g++"),
        () if !has("jpeglib.h") => Some("libjpeg's header (libjpeg-dev)"),
        () if !has("png.h") => Some("libpng's header (libpng-dev)"),
        () => None,
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Builds all programs once, below the target directory; `None` if a tool is missing.
fn programs() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        if let Some(what) = lacks() {
            skipped::skipped(&format!("there is no {what}"));
            return None;
        }
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("omp");
        // Files of an earlier run.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let deps = std::env::current_exe().unwrap();
        let library = deps.parent().unwrap().join("libisobath_c.so");
        for name in ["libisobath_c.so", "libisobath_c.so.0"] {
            std::os::unix::fs::symlink(&library, directory.join(name)).unwrap();
        }
        for source in ["program", "image", "objects_kv", "objects_files"] {
            compile(&directory, source);
        }
        for program in ["generate", "kmeans", "pagerank", "matmul", "access"] {
            compile(&directory, program);
            for backend in ["kv", "files"] {
                link(&directory, program, backend);
            }
        }
        Some(directory)
    });
    built.as_deref()
}

fn compile(directory: &Path, source: &str) {
    let mut command = Command::new("g++");
    command
        .args([
            "-std=c++17",
            "-O1",
            "-fopenmp",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
        ])
        .arg(root().join("crates/isobath-capi/include"))
        .arg("-c")
        .arg(root().join(format!("examples/omp/{source}.cpp")))
        .arg("-o")
        .arg(directory.join(format!("{source}.o")));
    run(&mut command);
}

fn link(directory: &Path, program: &str, backend: &str) {
    let objects = [program, "program", "image", &format!("objects_{backend}")]
        .map(|object| directory.join(format!("{object}.o")));
    let path = directory.display();
    let mut command = Command::new("g++");
    command
        .args(objects)
        .args(["-fopenmp", "-ljpeg", "-lpng", "-lisobath_c"])
        .args([format!("-L{path}"), format!("-Wl,-rpath,{path}")])
        .arg("-o")
        .arg(directory.join(format!("{program}_{backend}")));
    run(&mut command);
}

/// Where a program and its twin keep their objects.
struct Bench {
    programs: &'static Path,
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Option<Bench> {
        Some(Bench {
            programs: programs()?,
            directory: tempfile::tempdir().unwrap(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a program on its objects; what it prints, by name.
    fn run(&self, program: &str, backend: &str, arguments: &[&str]) -> HashMap<String, String> {
        let objects = match backend {
            "kv" => format!(
                "{}?create=yes&pool=16MiB&workers=2",
                self.path("objects.iso").display()
            ),
            _ => self.path("objects").display().to_string(),
        };
        let mut command = Command::new(self.programs.join(format!("{program}_{backend}")));
        let printed = run(command.arg(objects).args(arguments));
        let pair = |line: &str| {
            let (name, value) = line.split_once(' ').unwrap();
            (name.to_owned(), value.to_owned())
        };
        printed.lines().map(pair).collect()
    }

    /// Makes the same inputs for both.
    fn generate(&self, arguments: &[&str]) {
        let kv = self.run("generate", "kv", arguments);
        let files = self.run("generate", "files", arguments);
        assert_eq!(kv["hash"], files["hash"]);
    }

    /// Runs a program and its twin in all modes, with both controllers: all must have the results
    /// of the first run.
    fn compare(&self, program: &str, arguments: &[&str]) {
        let first = self.run(
            program,
            "files",
            &[arguments, &["--isobath-omp-mode=seq"]].concat(),
        );
        assert_ne!(first["results"], "0");
        let hash = first["hash"].clone();
        for backend in ["kv", "files"] {
            for (mode, controller) in [
                ("seq", "kv-ins"),
                ("pc", "kv-ins"),
                ("pda_pc", "kv-ins"),
                ("pda_pc", "kv-mod"),
                ("pda_pc", "kv-mod-printed"),
            ] {
                let log = self.path("log.csv");
                let mode_option = format!("--isobath-omp-mode={mode}");
                let controller = format!("--isobath-omp-controller={controller}");
                let log_option = format!("--isobath-omp-log={}", log.display());
                let more = [
                    &mode_option,
                    &controller,
                    &log_option,
                    "--isobath-omp-interval-ms=2",
                    "--isobath-omp-pc-max=3",
                    "--expect",
                    &hash,
                ];
                let printed = self.run(program, backend, &[arguments, &more].concat());
                for phase in ["create", "map", "wait", "prepare", "compute", "store"] {
                    let seconds: f64 = printed[&format!("{phase}_s")].parse().unwrap();
                    assert!(seconds >= 0.0);
                }
                check_log(&log, mode);
            }
        }
        let wrong = Command::new(self.programs.join(format!("{program}_files")))
            .arg(self.path("objects"))
            .args(arguments)
            .args(["--expect", "0123456789abcdef"])
            .output()
            .unwrap();
        assert_eq!(wrong.status.code(), Some(1));
    }
}

/// A log has numbers of threads that its mode allows, and at least one sample.
fn check_log(path: &Path, mode: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let mut samples = 0;
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), head.len(), "{line}");
        let field = |name: &str| fields[head.iter().position(|head| *head == name).unwrap()];
        let number = |name: &str| -> u32 { field(name).parse().unwrap() };
        assert_eq!(field("mode"), mode);
        assert!((1..=3).contains(&number("pc")), "{line}");
        if mode == "seq" {
            assert_eq!((number("pc"), number("next_pc")), (1, 1));
        }
        if mode != "pda_pc" {
            assert_eq!((number("pda"), number("next_pda")), (1, 1));
        }
        let cpu: f64 = field("cpu").parse().unwrap();
        let memory: f64 = field("memory").parse().unwrap();
        assert!((0.0..=1.0).contains(&cpu) && (0.0..=1.0).contains(&memory));
        samples += 1;
    }
    assert!(samples > 0, "nothing was measured: {text}");
}

#[test]
fn k_means_finds_the_same_clusters() {
    let Some(bench) = Bench::new() else {
        return;
    };
    let size = ["--width", "48", "--height", "32"];
    bench.generate(&[&["images", "40"], &size[..]].concat());
    bench.compare(
        "kmeans",
        &["--clusters", "4", "--batch", "16", "--chunk", "4"],
    );
}

/// Programs end under valgrind, in every mode, on backends that it understands: it runs one thread
/// at a time, and one that waits in io_uring keeps all others from running.
#[test]
fn programs_end_under_valgrind() {
    let Some(bench) = Bench::new() else {
        return;
    };
    if Command::new("valgrind").arg("--version").output().is_err() {
        skipped::skipped("there is no valgrind");
        return;
    }
    bench.generate(&["images", "4", "--width", "24", "--height", "16"]);
    bench.generate(&["matrix", "2", "--tile", "8"]);
    let device = bench.path("objects.iso");
    for backend in ["pread", "libaio"] {
        for (program, more) in [
            ("kmeans", ["--iterations", "2"]),
            ("matmul", ["--seed", "1"]),
        ] {
            let printed = run(Command::new("timeout")
                .args(["300", "valgrind", "-q", "--error-exitcode=9"])
                .arg(bench.programs.join(format!("{program}_kv")))
                .arg(format!("{}?pool=8MiB&backend={backend}", device.display()))
                .args(more)
                .args(["--isobath-omp-mode=pda_pc", "--isobath-omp-pc-max=2"]));
            assert!(printed.contains("\nhash "), "{printed}");
        }
    }
}

#[test]
fn pagerank_finds_the_same_ranks() {
    let Some(bench) = Bench::new() else {
        return;
    };
    let graph = bench.path("graph.txt").display().to_string();
    run(Command::new(bench.programs.join("generate_files")).args([&graph, "graph", "9"]));
    bench.compare(
        "pagerank",
        &["--graph", &graph, "--parts", "12", "--chunk", "2"],
    );
}

/// What `access` stores it finds again, whichever way the files are written and read.
#[test]
fn objects_of_one_size_are_stored_and_loaded() {
    let Some(bench) = Bench::new() else {
        return;
    };
    let files = bench.path("access").display().to_string();
    let place = |how: &str| format!("{files}?io={how}");
    let threads = ["--isobath-omp-pc=3", "--isobath-omp-pc-max=3"];
    let sizes = ["--count", "30", "--size", "4100", "--part", "2"];
    for how in ["synced", "direct", "buffered"] {
        for operation in ["store", "load"] {
            let mut command = Command::new(bench.programs.join("access_files"));
            run(command
                .args([&place(how), "--operation", operation])
                .args(sizes)
                .args(threads));
        }
    }
    let stored = [&["--operation", "store"], &sizes[..], &threads[..]].concat();
    let loaded = [
        &["--operation", "load", "--passes", "2"],
        &sizes[..],
        &threads[..],
    ]
    .concat();
    bench.run("access", "kv", &stored);
    let printed = bench.run("access", "kv", &loaded);
    let number = |name: &str| printed[name].parse::<f64>().unwrap();
    assert!(number("objects_per_s") > 0.0 && number("p50_us") <= number("p99_us"));
    // Other bytes than those of that size's objects are noticed.
    let mut command = Command::new(bench.programs.join("access_files"));
    command.args([
        &place("synced"),
        "--operation",
        "load",
        "--count",
        "30",
        "--size",
        "4000",
    ]);
    assert!(!command.output().unwrap().status.success());
}

#[test]
fn matrices_have_the_same_product() {
    let Some(bench) = Bench::new() else {
        return;
    };
    bench.generate(&["matrix", "3", "--tile", "24"]);
    bench.compare("matmul", &[]);
}

/// A program in C, with OpenMP and without: the header has one thread then, whatever is asked for.
#[test]
fn the_header_is_for_c_with_openmp_and_without() {
    if Command::new("gcc").arg("--version").output().is_err() {
        skipped::skipped("there is no gcc");
        return;
    }
    let deps = std::env::current_exe().unwrap();
    let library = deps.parent().unwrap().join("libisobath_c.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/omp.c");
    for openmp in ["-fopenmp", ""] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        std::os::unix::fs::symlink(&library, directory.join("libisobath_c.so.0")).unwrap();
        let program = directory.join("omp");
        let mut compiler = Command::new("gcc");
        compiler
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-I"])
            .arg(root().join("crates/isobath-capi/include"));
        if openmp.is_empty() {
            // Its pragmas are not known then.
            compiler.arg("-Wno-unknown-pragmas");
        } else {
            compiler.arg(openmp);
        }
        run(compiler
            .arg(&source)
            .arg(&library)
            .arg(format!("-Wl,-rpath,{}", directory.display()))
            .arg("-o")
            .arg(&program));
        let uri = directory.join("dev.iso");
        let uri = format!("{}?create=yes&pool=8MiB&workers=1", uri.display());
        let run = |options: &[&str]| run(Command::new(&program).arg(&uri).args(options));
        let fixed = run(&["--isobath-omp-pc=3", "--isobath-omp-pda=2"]);
        let expected = match openmp {
            "" => "threads 1 1\nobjects 40\n",
            _ => "threads 3 3\nobjects 40\n",
        };
        assert_eq!(fixed, expected, "{openmp}");
        let serial = run(&["--isobath-omp-mode=seq"]);
        assert_eq!(serial, "threads 1 1\nobjects 40\n", "{openmp}");
    }
}

/// The evaluation reads what perf and strace print: locks, no blocks and no clocks.
#[test]
fn the_evaluation_reads_what_tools_print() {
    if Command::new("python3").arg("--version").output().is_err() {
        skipped::skipped("there is no python3");
        return;
    }
    let text = r#"
import evaluate_omp as evaluation
import plot_omp

report = """
    40.00%  [k] ext4_mb_new_blocks
    20.00%  [.] clock_gettime
     3.50%  [k] _raw_spin_lock
     1.00%  [k] folio_unlock
     0.75%  [k] down_read
     0.50%  [k] percpu_up_write
     0.25%  [.] __futex_wait
"""
assert evaluation.lock_code_percent(report) == 6.0, evaluation.lock_code_percent(report)
contention = """ contended   total wait     max wait     avg wait         type   caller

       238      1.50 ms     29.20 us      5.94 us     spinlock   update_blocked_averages+0x4c
        10    250.00 us     90.00 us     25.00 us     rwsem:W    ext4_buffered_write_iter+0x31
         2      3.00 s       2.00 s       1.50 s      mutex      pipe_read+0x50
"""
assert abs(evaluation.contention_seconds(contention) - 3.00175) < 1e-9
calls = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
100.00    0.204117        2650        77         5 futex
------ ----------- ----------- --------- --------- ----------------
100.00    0.204117        2650        77         5 total
"""
assert evaluation.futex_seconds(calls) == (0.204117, 77)
assert evaluation.futex_seconds("") == (0.0, 0)
assert [evaluation.thrashes(*case) for case in ((60, 100, 0), (40, 100, 0), (90, 100, 0.2))] == ["no", "yes", "yes"]
grid = [(pc, pda) for pc in (1, 2, 3) for pda in (1, 2, 4)]
assert "inside" in evaluation.edge_of(grid, "PC 2, PDA 2")
assert "end of what was tried of PDA and PC" in evaluation.edge_of(grid, "PC 3, PDA 4")
assert plot_omp.distribution([3.0, 1.0, 2.0, 4.0]) == [(1.0, 0.25), (2.0, 0.5), (3.0, 0.75), (4.0, 1.0)]
assert plot_omp.distribution(range(10_000))[-1] == (9_999, 1.0)
"#;
    // -B: the checkout stays as it is.
    run(Command::new("python3")
        .args(["-B", "-c", text])
        .current_dir(root().join("scripts")));
}
