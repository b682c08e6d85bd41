//! Every function of `isobath.h` with each of its pointers NULL in turn: `ISOBATH_NULL`, unless the
//! header says that it may be.
//!
//! The calls are written from the header, so that a function that is new is asked, too.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../../xtask/skipped.rs"]
mod skipped;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Parameters that may be NULL, by what the header says.
const OPTIONAL: [&str; 30] = [
    // "`options` may be NULL."
    "isobath_store_create options",
    "isobath_store_open options",
    "isobath_store_open_or_create options",
    "isobath_store_in_memory options",
    "isobath_store_needs_recovery options",
    "isobath_transaction_begin options",
    "isobath_transact options",
    "isobath_restore options",
    "isobath_changes_open_beside options",
    // "Where that is NULL all trees as they are now."
    "isobath_changes_open from",
    "isobath_changes_open_beside from",
    // Arguments of a callback are the program's.
    "isobath_trees argument",
    "isobath_update argument",
    "isobath_transact argument",
    "isobath_transaction_put_from argument",
    "isobath_check argument",
    "isobath_backup argument",
    "isobath_restore argument",
    // "NULL stands for no value."
    "isobath_compare_and_swap old_value",
    "isobath_compare_and_swap new_value",
    "isobath_compare_and_swap current",
    "isobath_delete_range removed",
    "isobath_loader_finish stored",
    "isobath_compact gained",
    "isobath_discard_free_segments bytes",
    "isobath_check progress",
    "isobath_backup since",
    "isobath_backup progress",
    "isobath_backup report",
    "isobath_restore progress",
];
/// "A bound that is NULL is none", of every function that has one; an iterator's key and value:
/// "either may be NULL".
const OPTIONAL_ANYWHERE: [&str; 2] = ["lower", "upper"];
const OPTIONAL_OF_ITERATORS: [&str; 2] = ["key", "value"];

/// A function of the header.
#[derive(Debug)]
struct Function {
    name: String,
    gives_status: bool,
    /// Types and names.
    parameters: Vec<(String, String)>,
}

impl Function {
    fn is_optional(&self, parameter: &str) -> bool {
        let name = format!("{} {parameter}", self.name);
        let is_step = ["isobath_iterator_next", "isobath_iterator_previous"];
        OPTIONAL.contains(&name.as_str())
            || OPTIONAL_ANYWHERE.contains(&parameter)
            || (is_step.contains(&self.name.as_str()) && OPTIONAL_OF_ITERATORS.contains(&parameter))
    }
}

/// The functions that a header declares.
fn functions(text: &str) -> Vec<Function> {
    let (_, declared) = text.split_once("#endif // __cplusplus").unwrap();
    let code: Vec<&str> = declared
        .lines()
        .filter(|line| !line.starts_with("//") && !line.starts_with('#'))
        .collect();
    let mut found = Vec::new();
    for declaration in code.join(" ").split(';') {
        let declaration = declaration.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some((head, parameters)) = declaration.split_once('(') else {
            continue;
        };
        let parameters = parameters.strip_suffix(')').expect("a prototype");
        // The name follows the last blank or star.
        let split = |text: &str| {
            let at = text.rfind([' ', '*']).unwrap() + 1;
            (text[..at].trim().to_owned(), text[at..].to_owned())
        };
        let (result, name) = split(head);
        let parameters = match parameters {
            "void" => Vec::new(),
            list => list.split(", ").map(|one| split(one.trim())).collect(),
        };
        found.push(Function {
            name,
            gives_status: result == "enum isobath_status" || result == "int32_t",
            parameters,
        });
    }
    found
}

/// An expression of C for a parameter that is right.
fn right(kind: &str, name: &str) -> String {
    let objects = [
        "options",
        "store",
        "tree",
        "loader",
        "batch",
        "transaction",
        "iterator",
        "writer",
        "reader",
        "queue",
        "changes",
    ];
    for object in objects {
        let plain = format!("struct isobath_{object} *");
        if kind == plain || kind == format!("const {plain}") {
            return object.to_owned();
        }
        if kind == format!("struct isobath_{object} **") {
            return format!("&(struct isobath_{object} *){{0}}");
        }
    }
    match kind {
        "const char *const *" => "paths".to_owned(),
        "const char *" => "\"name\"".to_owned(),
        "const void *" if name == "data" || name == "value" => "\"val\"".to_owned(),
        "const void *" => "\"key\"".to_owned(),
        "void *" => "buffer".to_owned(),
        "bool" => "false".to_owned(),
        // Bytes of keys and values, and no more than what arrays have.
        "int32_t" | "uint32_t" | "int64_t" | "uint64_t" | "size_t" => "3".to_owned(),
        "isobath_tree_visitor" => "visit".to_owned(),
        "isobath_update_function" => "update".to_owned(),
        "isobath_work" => "work".to_owned(),
        "isobath_source" => "source".to_owned(),
        "isobath_progress" => "progress".to_owned(),
        "struct isobath_bytes" => "(struct isobath_bytes){0}".to_owned(),
        "const struct isobath_request *" => "&request".to_owned(),
        "const struct isobath_slice *" => "slices".to_owned(),
        // Room for as many as `count` says.
        kind => match kind
            .strip_prefix("const ")
            .unwrap_or(kind)
            .strip_suffix(" *")
        {
            Some(of) => format!("({of}[4]){{0}}"),
            None => panic!("a test must say what {kind} {name} is"),
        },
    }
}

const PRELUDE: &str = r#"
#include <isobath.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const paths[3] = {"no/such", "no/such", "no/such"};
static char buffer[64];
static isobath_slice slices[4] = {{"key", 3}, {"key", 3}, {"key", 3}, {"key", 3}};
static void visit(void *argument, const char *name) { (void)argument, (void)name; }
static void update(void *argument, const isobath_slice *old_value, isobath_slice *new_value) {
  (void)argument, (void)old_value;
  *new_value = (isobath_slice){"new", 3};
}
static int32_t work(void *argument, isobath_transaction *transaction) { (void)argument, (void)transaction; return ISOBATH_OK; }
static int32_t source(void *argument, void *to, size_t capacity, size_t *length) {
  (void)argument, (void)to, (void)capacity;
  *length = 0;
  return ISOBATH_OK;
}
static bool progress(void *argument, uint64_t is_done, uint64_t total) { (void)argument, (void)is_done, (void)total; return true; }
static void check(int status) {
  if (status != ISOBATH_OK) { fprintf(stderr, "%s: %s\n", isobath_status_name(status), isobath_last_error()); exit(1); }
}

int main(void) {
  isobath_options *options = isobath_options_new();
  check(isobath_options_set(options, "pool_bytes", "8MiB"));
  check(isobath_options_set_number(options, "workers", 1));
  isobath_store *store;
  check(isobath_store_in_memory(options, &store));
  isobath_tree *tree;
  check(isobath_tree_create(store, "tree", &tree));
  check(isobath_put(tree, "key", 3, "val", 3));
  isobath_loader *loader;
  check(isobath_loader_new(tree, &loader));
  isobath_batch *batch = isobath_batch_new();
  isobath_transaction *transaction;
  check(isobath_transaction_begin(store, NULL, &transaction));
  isobath_iterator *iterator;
  check(isobath_range(tree, NULL, NULL, &iterator));
  isobath_writer *writer;
  check(isobath_writer_new(tree, "key", 3, &writer));
  isobath_reader *reader;
  check(isobath_reader_new(tree, "key", 3, &reader));
  isobath_queue *queue;
  check(isobath_queue_new(store, 1, 1, false, &queue));
  isobath_changes *changes;
  check(isobath_changes_open(store, NULL, &changes));
  isobath_request request = {.operation = ISOBATH_OP_GET, .tree = tree, .key = "key", .key_length = 3};
"#;

const END: &str = r#"
  request.tree = NULL;
  printf("request.tree %s\n", isobath_status_name(isobath_queue_submit(queue, &request)));
  request.tree = tree;
  request.key = NULL;
  printf("request.key %s\n", isobath_status_name(isobath_queue_submit(queue, &request)));
  request.key = "key";
  request.operation = ISOBATH_OP_PUT;
  request.value_length = 3;
  printf("request.value %s\n", isobath_status_name(isobath_queue_submit(queue, &request)));
  request.operation = ISOBATH_OP_COMMIT;
  printf("request.transaction %s\n", isobath_status_name(isobath_queue_submit(queue, &request)));
  isobath_bytes value;
  check(isobath_get(tree, "key", 3, &value));
  isobath_bytes_free(value);
  isobath_changes_free(changes);
  isobath_queue_free(queue);
  isobath_reader_free(reader);
  isobath_writer_free(writer);
  isobath_iterator_free(iterator);
  isobath_transaction_free(transaction);
  isobath_batch_free(batch);
  isobath_loader_free(loader);
  isobath_tree_free(tree);
  check(isobath_store_close(store));
  isobath_store_free(store);
  isobath_options_free(options);
  printf("end DONE\n");
  return 0;
}
"#;

fn is_pointer(kind: &str) -> bool {
    let callbacks = ["visitor", "function", "work", "source", "progress"];
    kind.ends_with('*')
        || callbacks
            .iter()
            .any(|end| kind.starts_with("isobath_") && kind.ends_with(end))
}

#[test]
fn pointers_that_are_null() {
    if Command::new("gcc").arg("--version").output().is_err() {
        skipped::skipped("there is no gcc");
        return;
    }
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let header = std::fs::read_to_string(include.join("isobath.h")).unwrap();
    let functions = functions(&header);
    assert!(functions.len() > 70, "{}", functions.len());
    let mut text = PRELUDE.to_owned();
    let mut asked = BTreeMap::new();
    let mut optional = 0;
    for function in &functions {
        for (at, (kind, parameter)) in function.parameters.iter().enumerate() {
            if !is_pointer(kind) {
                continue;
            }
            if function.is_optional(parameter) {
                optional += 1;
                continue;
            }
            let arguments: Vec<String> = function
                .parameters
                .iter()
                .enumerate()
                .map(|(other, (kind, name))| match other == at {
                    true => "NULL".to_owned(),
                    false => right(kind, name),
                })
                .collect();
            let call = format!("{}({})", function.name, arguments.join(", "));
            let case = format!("{}.{parameter}", function.name);
            match function.gives_status {
                true => {
                    writeln!(
                        text,
                        "  printf(\"{case} %s\\n\", isobath_status_name({call}));"
                    )
                    .unwrap();
                    asked.insert(case, "ISOBATH_NULL");
                }
                // Freeing, and lengths of nothing.
                false => writeln!(text, "  (void){call};").unwrap(),
            }
            writeln!(text, "  fflush(stdout);").unwrap();
        }
    }
    // Each of the exceptions is one.
    let bounds = functions
        .iter()
        .flat_map(|function| &function.parameters)
        .filter(|(_, name)| OPTIONAL_ANYWHERE.contains(&name.as_str()))
        .count();
    assert_eq!(
        optional,
        OPTIONAL.len() + bounds + 2 * OPTIONAL_OF_ITERATORS.len()
    );
    text += END;
    for field in ["tree", "key", "value", "transaction"] {
        asked.insert(format!("request.{field}"), "ISOBATH_NULL");
    }
    asked.insert("end".to_owned(), "DONE");

    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("nulls.c");
    std::fs::write(&source, &text).unwrap();
    let built = std::env::current_exe().unwrap();
    let built = built.parent().unwrap();
    std::os::unix::fs::symlink(
        built.join("libisobath_c.so"),
        directory.path().join("libisobath_c.so.0"),
    )
    .unwrap();
    let program = directory.path().join("nulls");
    let path = directory.path().display();
    let compiled = Command::new("gcc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-nonnull"])
        .arg("-I")
        .arg(&include)
        .arg(&source)
        .arg(built.join("libisobath_c.so"))
        .arg(format!("-Wl,-rpath,{path}"))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{messages}");
    // A file that a mistake makes goes away with the directory.
    let output = Command::new(&program)
        .current_dir(directory.path())
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let answers: BTreeMap<String, &str> = printed
        .lines()
        .map(|line| {
            let (case, status) = line.split_once(' ').unwrap();
            (case.to_owned(), status)
        })
        .collect();
    let wrong: Vec<_> = asked
        .iter()
        .filter(|(case, status)| answers.get(*case) != Some(*status))
        .map(|(case, _)| (case, answers.get(case)))
        .collect();
    assert!(output.status.success(), "{}: {errors}", output.status);
    assert_eq!(wrong, []);
}
