//! Programs in C and C++ against the shared and the static library, under valgrind if that is
//! installed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

#[path = "../../../xtask/skipped.rs"]
mod skipped;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use isobath_c::kvs::types::*;
use isobath_c::kvs::{kvs_close_device, kvs_errstr};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether a program is there; says so if not.
fn has(tool: &str) -> bool {
    let there = Command::new(tool).arg("--version").output().is_ok();
    if !there {
        skipped::skipped(&format!("there is no {tool}"));
    }
    there
}

fn ok(output: Output, what: &str) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// A directory with the libraries that cargo built for this test, by the names that a linker and a
/// loader look for.
fn libraries(directory: &Path) -> PathBuf {
    let built = std::env::current_exe().unwrap();
    let built = built.parent().unwrap();
    let libraries = directory.join("lib");
    std::fs::create_dir(&libraries).unwrap();
    for (name, file) in [
        ("libisobath_c.so", "libisobath_c.so"),
        ("libisobath_c.so.0", "libisobath_c.so"),
        ("libisobath_c.a", "libisobath_c.a"),
    ] {
        let from = built.join(file);
        assert!(from.exists(), "{} was not built", from.display());
        std::os::unix::fs::symlink(from, libraries.join(name)).unwrap();
    }
    libraries
}

/// Compiles an example, or a source elsewhere.
fn compile(directory: &Path, source: &Path, link: &[&str]) -> PathBuf {
    let is_cpp = source
        .extension()
        .is_some_and(|extension| extension == "cpp");
    let program = directory.join(source.file_stem().unwrap());
    let (compiler, standard) = match is_cpp {
        true => ("g++", "-std=c++17"),
        false => ("gcc", "-std=gnu11"),
    };
    let mut command = Command::new(compiler);
    command
        .args([
            standard, "-Wall", "-Wextra", "-Werror", "-g", "-pthread", "-I",
        ])
        .arg(root().join("crates/isobath-capi/include"))
        .arg(source)
        .args(link)
        .arg("-o")
        .arg(&program);
    ok(command.output().unwrap(), "compiling");
    program
}

/// Compiles an example against the shared library.
fn example(directory: &Path, name: &str) -> PathBuf {
    let libraries = directory.join("lib");
    let search = format!("-L{}", libraries.display());
    let path = format!("-Wl,-rpath,{}", libraries.display());
    let source = root().join("examples/c").join(name);
    compile(directory, &source, &[&search, &path, "-lisobath_c"])
}

/// A device's URI.
fn uri(directory: &Path, more: &str) -> String {
    let path = directory.join("dev.iso");
    format!("{}?create=yes&pool=8MiB&workers=1{more}", path.display())
}

#[test]
fn programs_in_c_and_cpp_run() {
    if !has("gcc") || !has("g++") {
        return;
    }
    for (source, more) in [
        ("people.c", None),
        ("changes.c", None),
        ("words.cpp", None),
        ("kv_tour.c", Some("")),
        (
            "kv_tour.c",
            Some("&channel=serial&queue_depth=1&data_tasks=1"),
        ),
        (
            "kv_threads.cpp",
            Some("&completion=polling&queue_depth=3&data_tasks=2"),
        ),
        ("kv_pool.c", Some("")),
        ("kv_pool.c", Some("&queue_depth=2&data_tasks=1&workers=2")),
        ("kv_pool.c", Some("&channel=serial&value_cache=1MiB")),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        libraries(directory);
        let program = example(directory, source);
        let argument = match more {
            None => directory.join("store.iso").display().to_string(),
            Some(more) => uri(directory, more),
        };
        let output = Command::new(&program).arg(&argument).output().unwrap();
        let printed = ok(output, source);
        assert!(
            printed.contains("done") || printed.contains("sea 60"),
            "{printed}"
        );
        if source == "kv_pool.c" {
            assert!(printed.starts_with("0 key spaces"), "{printed}");
            assert!(printed.contains("1: 250 and 750 keys"), "{printed}");
            // The next run finds the files of this one.
            let more = [&argument, "3", "77"];
            let output = Command::new(&program).args(more).output().unwrap();
            let printed = ok(output, source);
            assert!(printed.starts_with("1 key spaces"), "{printed}");
            assert!(printed.contains("0: 20 and 57 keys"), "{printed}");
        }
    }
}

/// Trees of files, in C; under valgrind if it is installed.
#[test]
fn a_program_keeps_its_files_in_a_device() {
    if !has("gcc") {
        return;
    }
    for valgrind in [false, true] {
        if valgrind && !has("valgrind") {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        libraries(directory);
        let program = example(directory, "files_tour.c");
        let mut command = Command::new(match valgrind {
            true => "valgrind".as_ref(),
            false => program.as_os_str(),
        });
        if valgrind {
            command
                .args(["-q", "--error-exitcode=9", "--leak-check=full"])
                .arg("--errors-for-leak-kinds=definite")
                .arg(&program);
        }
        let output = command
            .arg(uri(directory, "&backend=pread"))
            .arg(directory)
            .output();
        assert_eq!(ok(output.unwrap(), "files_tour"), "done\n");
        assert_eq!(
            std::fs::read_dir(directory.join("out")).unwrap().count(),
            21
        );
    }
}

/// Valgrind understands pread, and no rings.
#[test]
fn programs_run_under_valgrind() {
    if !has("gcc") || !has("g++") || !has("valgrind") {
        return;
    }
    for source in [
        "people.c",
        "changes.c",
        "words.cpp",
        "kv_tour.c",
        "kv_threads.cpp",
        "kv_pool.c",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        libraries(directory);
        let program = example(directory, source);
        let mut command = Command::new("valgrind");
        command
            .args(["-q", "--error-exitcode=9", "--leak-check=full"])
            .args([
                "--errors-for-leak-kinds=definite",
                "--child-silent-after-fork=yes",
            ])
            .arg(&program);
        match source {
            "people.c" | "words.cpp" => command.arg(directory.join("store.iso")).arg("pread"),
            // A reader beside the writer is the third store of the process. Each reserves 36 GiB of
            // address space, and valgrind has 128 GiB: it refuses the third table.
            "changes.c" => command
                .arg(directory.join("store.iso"))
                .args(["pread", "alone"]),
            "kv_tour.c" => command.arg(uri(directory, "&backend=pread")),
            "kv_pool.c" => command
                .arg(uri(directory, "&backend=pread"))
                .args(["3", "200"]),
            _ => command.arg(uri(directory, "&backend=pread&completion=polling")),
        };
        ok(command.output().unwrap(), source);
    }
}

/// A static program needs no library at run time.
#[test]
fn the_static_library_links() {
    if !has("gcc") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let archive = libraries(directory).join("libisobath_c.a");
    let source = root().join("examples/c/kv_tour.c");
    let archive = archive.display().to_string();
    let program = compile(
        directory,
        &source,
        &[&archive, "-lpthread", "-ldl", "-lm", "-lgcc_s"],
    );
    ok(
        Command::new(program)
            .arg(uri(directory, ""))
            .output()
            .unwrap(),
        "static",
    );
}

/// A program for the calls of version 1.0, in C and in C++.
#[test]
fn programs_for_version_1_0_compile() {
    if !has("gcc") || !has("g++") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let text = "#define KVS_ISOBATH_API_1_0\n#include <kvs_api.h>\n\
        kvs_result all(kvs_key_space_handle ks, kvs_key *k, kvs_value *v, kvs_exist_list *e, kvs_iterator_list *l,\n\
                       kvs_key_group_filter *g, kvs_postprocess_function f) {\n\
          kvs_retrieve_kvp_async(ks, k, NULL, v, f); kvs_store_kvp_async(ks, k, v, NULL, f);\n\
          kvs_delete_kvp_async(ks, k, NULL, f); kvs_delete_key_group_async(ks, g, f);\n\
          kvs_exist_kv_pairs_async(ks, 1, k, e, f); return kvs_iterate_next_async(ks, 1, l, f);\n\
        }\n";
    for name in ["old.c", "old.cpp"] {
        let source = directory.path().join(name);
        std::fs::write(&source, text).unwrap();
        compile(directory.path(), &source, &["-c"]);
    }
}

/// Programs for key-value SSDs include the interface alone, whose header there brings more with it.
#[test]
fn what_programs_expect_of_the_header_is_there() {
    if !has("gcc") || !has("g++") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let text = "#include <kvs_api.h>\n\
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;\n\
        int name_of(char *name, kvs_key_space_name *space) {\n\
          memset(name, 0, MAX_KEYSPACE_NAME_LEN);\n\
          pthread_mutex_lock(&lock);\n\
          snprintf(name, MAX_KEYSPACE_NAME_LEN, \"%s\", \"name\");\n\
          pthread_mutex_unlock(&lock);\n\
          space->name_len = (uint32_t)strlen(name);\n\
          return fprintf(stderr, \"%s\", name);\n\
        }\n";
    for name in ["alone.c", "alone.cpp"] {
        let source = directory.path().join(name);
        std::fs::write(&source, text).unwrap();
        compile(directory.path(), &source, &["-c"]);
    }
}

/// Sizes, offsets and numbers of a type, as C has to see them.
macro_rules! layout {
    ($text:ident, $($type:ident { $($field:ident),* })*) => {$(
        writeln!($text, "_Static_assert(sizeof({0}) == {1}, \"{0}\");", stringify!($type), size_of::<$type>()).unwrap();
        $(writeln!(
            $text,
            "_Static_assert(offsetof({0}, {1}) == {2} && sizeof((({0} *)0)->{1}) == {3}, \"{0}.{1}\");",
            stringify!($type), stringify!($field), std::mem::offset_of!($type, $field),
            size_of_field(|value: &$type| &raw const value.$field)
        ).unwrap();)*
    )*};
}

/// The size of what a pointer to a field points to.
fn size_of_field<T, F>(_: impl Fn(&T) -> *const F) -> usize {
    size_of::<F>()
}

#[test]
fn c_sees_the_same_layouts_and_numbers() {
    if !has("gcc") {
        return;
    }
    let mut text = "#include <kvs_api.h>\n".to_owned();
    layout! { text,
        kvs_option_key_space { ordering }
        kvs_option_delete { kvs_delete_error }
        kvs_option_iterator { iter_type }
        kvs_option_retrieve { kvs_retrieve_delete }
        kvs_option_store { st_type, assoc }
        kvs_association { assoc_type, assoc_hint }
        kvs_key { key, length }
        kvs_value { value, length, actual_value_size, offset }
        kvs_key_space_name { name_len, name }
        kvs_key_space { opened, capacity, free_size, count, name }
        kvs_device {
            capacity, unalloc_capacity, max_value_len, max_key_len, optimal_value_len,
            optimal_value_granularity, extended_info
        }
        kvs_exist_list { num_keys, keys, length, result_buffer }
        kvs_key_group_filter { bitmask, bit_pattern }
        kvs_iterator_list { num_entries, end, size, it_list }
        kvs_postprocess_context {
            context, ks_hd, key, value, option, private1, private2, result, iter_hd, result_buffer
        }
        kvs_kvp_info { key_len, key, value_len }
        kvs_isobath_counters {
            issued, in_flight, completed, failed, in_flight_max, waits, bytes, threads, queue_depth,
            data_tasks, channel
        }
    }
    // The 25 result codes, by the names that the library gives them.
    for code in 0..25 {
        // SAFETY: a string that ends with a zero.
        #[allow(unsafe_code)]
        let name = unsafe { std::ffi::CStr::from_ptr(kvs_errstr(code)) };
        let name = name.to_str().unwrap();
        writeln!(text, "_Static_assert({name} == {code}, \"{name}\");").unwrap();
    }
    for (name, number) in [
        ("KVS_MIN_KEY_LENGTH", limits::MIN_KEY_LENGTH),
        ("KVS_MAX_KEY_LENGTH", limits::MAX_KEY_LENGTH),
        ("KVS_MAX_VALUE_LENGTH", limits::MAX_VALUE_LENGTH),
        ("KVS_OPTIMAL_VALUE_LENGTH", limits::OPTIMAL_VALUE_LENGTH),
        ("KVS_ALIGNMENT_UNIT", limits::ALIGNMENT_UNIT),
        ("KVS_MAX_ITERATE_HANDLE", limits::MAX_ITERATE_HANDLE as u32),
        (
            "KVS_MAX_KEY_GROUP_BYTES",
            limits::MAX_KEY_GROUP_BYTES as u32,
        ),
        (
            "MAX_KEYSPACE_NAME_LEN",
            limits::MAX_KEYSPACE_NAME_LEN as u32,
        ),
        ("KVS_CMD_DELETE", kvs_context::KVS_CMD_DELETE as u32),
        (
            "KVS_CMD_DELETE_GROUP",
            kvs_context::KVS_CMD_DELETE_GROUP as u32,
        ),
        ("KVS_CMD_EXIST", kvs_context::KVS_CMD_EXIST as u32),
        ("KVS_CMD_ITER_NEXT", kvs_context::KVS_CMD_ITER_NEXT as u32),
        ("KVS_CMD_RETRIEVE", kvs_context::KVS_CMD_RETRIEVE as u32),
        ("KVS_CMD_STORE", kvs_context::KVS_CMD_STORE as u32),
        ("KVS_STORE_APPEND", 3),
        ("KVS_KEY_ORDER_DESCEND", 2),
        ("KVS_ITERATOR_KEY_VALUE", 1),
    ] {
        writeln!(text, "_Static_assert({name} == {number}, \"{name}\");").unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("layout.c");
    std::fs::write(&source, text).unwrap();
    compile(directory.path(), &source, &["-c"]);
}

/// Kills a program that stores, again and again: whatever it had printed is there, and nothing is
/// torn.
#[test]
fn what_was_acknowledged_outlives_a_kill() {
    if !has("gcc") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    libraries(directory);
    let program = example(directory, "kv_writer.c");
    let mut acknowledged: Vec<u64> = Vec::new();
    let mut first = 0;
    for round in 1..=3 {
        let mut child = Command::new(&program)
            .args([
                uri(directory, "&queue_depth=8&data_tasks=4"),
                first.to_string(),
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut count = 0;
        for line in output.lines() {
            acknowledged.push(line.unwrap().parse().unwrap());
            count += 1;
            if count == 150 * round {
                // SIGKILL; what it printed before that is read to the end.
                child.kill().unwrap();
            }
        }
        assert!(count >= 150 * round, "the writer ended early");
        child.wait().unwrap();
        first = acknowledged.iter().max().unwrap() + 1000;

        let device = support::device(directory, "&open_timeout=20");
        let space = support::open_space(device, "crash").unwrap();
        let value = |number: u64| {
            let length = if number % 16 == 15 { 30_000 } else { 100 };
            vec![(number % 251) as u8; length]
        };
        for number in &acknowledged {
            let key = format!("key-{number:08}");
            let found = support::get(space, key.as_bytes());
            assert_eq!(found, Some(value(*number)), "{number}");
        }
        // A change that was not acknowledged is there as a whole or not at all.
        let everything = support::filter([0; 4], [0; 4]);
        for (key, found) in support::all(space, 1, everything, 64 << 10) {
            let number = std::str::from_utf8(&key[4..]).unwrap().parse().unwrap();
            assert_eq!(found, value(number), "{number}");
        }
        assert_eq!(kvs_close_device(device), kvs_result::KVS_SUCCESS);
    }
}
