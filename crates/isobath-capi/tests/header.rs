//! `isobath.h` is what `src/abi` says.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};

const MODULES: [&str; 12] = [
    "status",
    "bytes",
    "options",
    "store",
    "tree",
    "batch",
    "transaction",
    "iterator",
    "value",
    "queue",
    "changes",
    "admin",
];

/// Modules of src/files, in the order of the header.
const FILES: [&str; 4] = ["result", "open", "data", "change"];

const FILES_HEADER: &str = "\
/*
 * Directory trees in a device of kvs_api.h or a store of isobath.h, see docs/files.md. Generated from src/files; do not edit.
 *
 * kvs_create makes keys and values of files outside, kvs_map finds the keys of data, kvs_store and kvs_retrieve move contents, the
 * other functions change names. Each change is atomic and survives crashes. Paths are bytes that end with a zero; they begin at the
 * root, with or without a slash. Functions that can fail return a result code; kvs_files_last_error() has the message of the calling
 * thread's last failed call. Pointers must be valid or NULL, which is KVS_FILES_ERR_NULL where something belongs.
 */";

fn header() -> String {
    generate("abi", &MODULES, |_| {})
}

fn files_header() -> String {
    generate("files", &FILES, |config| {
        config.header = Some(FILES_HEADER.into());
        config.include_guard = Some("KVS_FILES_H".into());
        config.sys_includes = Vec::new();
        config.includes = vec!["isobath.h".into(), "kvs_api.h".into()];
        config.export.include = Vec::new();
        config.export.exclude = vec!["isobath_store".into()];
    })
}

fn generate(
    directory: &str,
    modules: &[&str],
    change: impl FnOnce(&mut cbindgen::Config),
) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    change(&mut config);
    let mut builder = cbindgen::Builder::new().with_config(config);
    for module in modules {
        builder = builder.with_src(root.join(format!("src/{directory}/{module}.rs")));
    }
    let mut bytes = Vec::new();
    builder.generate().unwrap().write(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    // Sections that Rust requires and C programmers do not need.
    let mut kept = String::new();
    let mut skips = false;
    for line in text.lines() {
        if line.trim() == "// # Safety" {
            skips = true;
            // And the empty line before it.
            kept.truncate(kept.trim_end_matches([' ', '/', '\n']).len());
            kept.push('\n');
        }
        skips &= line.starts_with("//");
        if skips {
            continue;
        }
        kept += line.trim_end();
        kept.push('\n');
    }
    kept
}

/// `ISOBATH_WRITE_HEADER=1 cargo test -p isobath-capi --test header` writes it again.
#[test]
fn the_header_is_up_to_date() {
    is_up_to_date("isobath.h", &header());
}

/// The same of `kvs_files.h`.
#[test]
fn the_header_for_files_is_up_to_date() {
    is_up_to_date("kvs_files.h", &files_header());
}

fn is_up_to_date(name: &str, made: &str) {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let path: PathBuf = include.join(name);
    if std::env::var_os("ISOBATH_WRITE_HEADER").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (there, made)) in there.lines().zip(made.lines()).enumerate() {
        assert_eq!(there, made, "include/{name}:{}", number + 1);
    }
    assert_eq!(there.len(), made.len());
}

/// Functions with unmangled names, by the files that they are in.
fn exported(directory: &str) -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        for part in text.split("#[unsafe(no_mangle)]").skip(1) {
            let rest = part.split("fn ").nth(1).unwrap();
            names.push(rest.split('(').next().unwrap().to_owned());
        }
    }
    names.sort();
    names
}

#[test]
fn headers_declare_every_function() {
    for (sources, header, functions) in [
        ("src/abi", "include/isobath.h", 60),
        ("src/kvs", "include/kvs_api.h", 31 + 8),
        ("src/omp", "include/isobath_omp.h", 12),
        ("src/files", "include/kvs_files.h", 25),
    ] {
        let text =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(header)).unwrap();
        let names = exported(sources);
        assert!(names.len() >= functions, "{sources}: {}", names.len());
        for name in names {
            assert!(text.contains(&format!("{name}(")), "{header} lacks {name}");
        }
    }
}

/// Each function of `isobath.h` and `kvs_files.h` says which threads may call it.
#[test]
fn thread_safety_is_stated_for_each_function() {
    let of = |directory: &'static str, modules: &[&'static str]| -> Vec<_> {
        let paths = modules
            .iter()
            .map(|module| format!("src/{directory}/{module}.rs"));
        paths.collect()
    };
    for module in [of("abi", &MODULES), of("files", &FILES)].concat() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&module);
        let text = std::fs::read_to_string(path).unwrap();
        let parts: Vec<&str> = text.split("#[unsafe(no_mangle)]").collect();
        for pair in parts.windows(2) {
            let name = pair[1]
                .split("fn ")
                .nth(1)
                .unwrap()
                .split('(')
                .next()
                .unwrap();
            let docs = pair[0].rsplit("\n\n").next().unwrap().to_lowercase();
            let says = [
                "any thread",
                "one thread at a time",
                "'s thread",
                "no other thread",
            ];
            let frees = name.ends_with("_free");
            // Lines are wrapped anywhere.
            let flat: String = docs
                .replace("\n///", "")
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ");
            assert!(
                frees || says.iter().any(|words| flat.contains(words)),
                "{module}: {name}: {flat}"
            );
        }
    }
}
