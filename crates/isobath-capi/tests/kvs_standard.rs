//! The interface is the standard's: 31 functions with its prototypes, 25 result codes, its
//! constants and layouts, all by literal numbers.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../../xtask/skipped.rs"]
mod skipped;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The functions of the SNIA Key Value Storage API 1.1, as KV-SSD programs call them: name and
/// parameters.
const FUNCTIONS: [(&str, &str); 31] = [
    ("kvs_open_device", "char *, kvs_device_handle *"),
    ("kvs_close_device", "kvs_device_handle"),
    ("kvs_get_device_info", "kvs_device_handle, kvs_device *"),
    ("kvs_get_device_capacity", "kvs_device_handle, uint64_t *"),
    (
        "kvs_get_device_utilization",
        "kvs_device_handle, uint32_t *",
    ),
    ("kvs_get_min_key_length", "kvs_device_handle, uint32_t *"),
    ("kvs_get_max_key_length", "kvs_device_handle, uint32_t *"),
    ("kvs_get_min_value_length", "kvs_device_handle, uint32_t *"),
    ("kvs_get_max_value_length", "kvs_device_handle, uint32_t *"),
    (
        "kvs_get_optimal_value_length",
        "kvs_device_handle, uint32_t *",
    ),
    (
        "kvs_create_key_space",
        "kvs_device_handle, kvs_key_space_name *, uint64_t, kvs_option_key_space",
    ),
    (
        "kvs_delete_key_space",
        "kvs_device_handle, kvs_key_space_name *",
    ),
    (
        "kvs_list_key_spaces",
        "kvs_device_handle, uint32_t, uint32_t, kvs_key_space_name *, uint32_t *",
    ),
    (
        "kvs_open_key_space",
        "kvs_device_handle, char *, kvs_key_space_handle *",
    ),
    ("kvs_close_key_space", "kvs_key_space_handle"),
    (
        "kvs_get_key_space_info",
        "kvs_key_space_handle, kvs_key_space *",
    ),
    (
        "kvs_get_kvp_info",
        "kvs_key_space_handle, kvs_key *, kvs_kvp_info *",
    ),
    (
        "kvs_retrieve_kvp",
        "kvs_key_space_handle, kvs_key *, kvs_option_retrieve *, kvs_value *",
    ),
    (
        "kvs_retrieve_kvp_async",
        "kvs_key_space_handle, kvs_key *, kvs_option_retrieve *, void *, void *, kvs_value *, kvs_postprocess_function",
    ),
    (
        "kvs_store_kvp",
        "kvs_key_space_handle, kvs_key *, kvs_value *, kvs_option_store *",
    ),
    (
        "kvs_store_kvp_async",
        "kvs_key_space_handle, kvs_key *, kvs_value *, kvs_option_store *, void *, void *, kvs_postprocess_function",
    ),
    (
        "kvs_delete_kvp",
        "kvs_key_space_handle, kvs_key *, kvs_option_delete *",
    ),
    (
        "kvs_delete_kvp_async",
        "kvs_key_space_handle, kvs_key *, kvs_option_delete *, void *, void *, kvs_postprocess_function",
    ),
    (
        "kvs_delete_key_group",
        "kvs_key_space_handle, kvs_key_group_filter *",
    ),
    (
        "kvs_delete_key_group_async",
        "kvs_key_space_handle, kvs_key_group_filter *, void *, void *, kvs_postprocess_function",
    ),
    (
        "kvs_exist_kv_pairs",
        "kvs_key_space_handle, uint32_t, kvs_key *, kvs_exist_list *",
    ),
    (
        "kvs_exist_kv_pairs_async",
        "kvs_key_space_handle, uint32_t, kvs_key *, kvs_exist_list *, void *, void *, kvs_postprocess_function",
    ),
    (
        "kvs_create_iterator",
        "kvs_key_space_handle, kvs_option_iterator *, kvs_key_group_filter *, kvs_iterator_handle *",
    ),
    (
        "kvs_delete_iterator",
        "kvs_key_space_handle, kvs_iterator_handle",
    ),
    (
        "kvs_iterate_next",
        "kvs_key_space_handle, kvs_iterator_handle, kvs_iterator_list *",
    ),
    (
        "kvs_iterate_next_async",
        "kvs_key_space_handle, kvs_iterator_handle, kvs_iterator_list *, void *, void *, kvs_postprocess_function",
    ),
];

/// The result codes, in the order of their numbers: the first one is 0.
const CODES: [&str; 25] = [
    "KVS_SUCCESS",
    "KVS_ERR_BUFFER_SMALL",
    "KVS_ERR_DEV_CAPAPCITY",
    "KVS_ERR_DEV_NOT_EXIST",
    "KVS_ERR_KS_CAPACITY",
    "KVS_ERR_KS_EXIST",
    "KVS_ERR_KS_INDEX",
    "KVS_ERR_KS_NAME",
    "KVS_ERR_KS_NOT_EXIST",
    "KVS_ERR_KS_NOT_OPEN",
    "KVS_ERR_KS_OPEN",
    "KVS_ERR_ITERATOR_FILTER_INVALID",
    "KVS_ERR_ITERATOR_MAX",
    "KVS_ERR_ITERATOR_NOT_EXIST",
    "KVS_ERR_ITERATOR_OPEN",
    "KVS_ERR_KEY_LENGTH_INVALID",
    "KVS_ERR_KEY_NOT_EXIST",
    "KVS_ERR_OPTION_INVALID",
    "KVS_ERR_PARAM_INVALID",
    "KVS_ERR_SYS_IO",
    "KVS_ERR_VALUE_LENGTH_INVALID",
    "KVS_ERR_VALUE_OFFSET_INVALID",
    "KVS_ERR_VALUE_OFFSET_MISALIGNED",
    "KVS_ERR_VALUE_UPDATE_NOT_ALLOWED",
    "KVS_ERR_DEV_NOT_OPENED",
];

/// The constants and enumerators of the standard's header.
const NUMBERS: [(&str, u32); 35] = [
    ("KVS_MIN_KEY_LENGTH", 4),
    ("KVS_MAX_KEY_LENGTH", 255),
    ("KVS_MIN_VALUE_LENGTH", 0),
    ("KVS_MAX_VALUE_LENGTH", 2_097_152),
    ("KVS_OPTIMAL_VALUE_LENGTH", 4096),
    ("KVS_ALIGNMENT_UNIT", 512),
    ("KVS_VALUE_LENGTH_ALIGNMENT_UNIT", 4),
    ("KVS_MAX_ITERATE_HANDLE", 16),
    ("KVS_MAX_KEY_GROUP_BYTES", 4),
    ("KVS_ITERATOR_BUFFER_SIZE", 32_768),
    ("G_ITER_KEY_SIZE_FIXED", 16),
    ("MAX_CONT_PATH_LEN", 255),
    ("MAX_KEYSPACE_NAME_LEN", 255),
    ("KVS_CMD_DELETE", 1),
    ("KVS_CMD_DELETE_GROUP", 2),
    ("KVS_CMD_EXIST", 3),
    ("KVS_CMD_ITER_CREATE", 4),
    ("KVS_CMD_ITER_DELETE", 5),
    ("KVS_CMD_ITER_NEXT", 6),
    ("KVS_CMD_RETRIEVE", 7),
    ("KVS_CMD_STORE", 8),
    ("KVS_KEY_ORDER_NONE", 0),
    ("KVS_KEY_ORDER_ASCEND", 1),
    ("KVS_KEY_ORDER_DESCEND", 2),
    ("KVS_ITERATOR_KEY", 0),
    ("KVS_ITERATOR_KEY_VALUE", 1),
    ("KVS_STORE_POST", 0),
    ("KVS_STORE_UPDATE_ONLY", 1),
    ("KVS_STORE_NOOVERWRITE", 2),
    ("KVS_STORE_APPEND", 3),
    ("KVS_NOASSOCIATION", 0),
    ("KVS_ASSOCIATION_STREAM", 1),
    ("sizeof(kvs_iterator_handle)", 1),
    ("sizeof(kvs_device_handle)", 8),
    ("sizeof(kvs_key_space_handle)", 8),
];

/// A type, its size, and each field with its offset and size.
type Layout = (&'static str, usize, &'static [(&'static str, usize, usize)]);

/// Layouts of the standard's types where pointers have 8 bytes.
const LAYOUTS: [Layout; 17] = [
    (
        "kvs_api_version",
        3,
        &[("major", 0, 1), ("minor", 1, 1), ("micro", 2, 1)],
    ),
    ("kvs_option_key_space", 4, &[("ordering", 0, 4)]),
    ("kvs_option_delete", 1, &[("kvs_delete_error", 0, 1)]),
    ("kvs_option_iterator", 4, &[("iter_type", 0, 4)]),
    ("kvs_option_retrieve", 1, &[("kvs_retrieve_delete", 0, 1)]),
    (
        "kvs_option_store",
        16,
        &[("st_type", 0, 4), ("assoc", 8, 8)],
    ),
    (
        "kvs_association",
        8,
        &[("assoc_type", 0, 4), ("assoc_hint", 4, 2)],
    ),
    ("kvs_key", 16, &[("key", 0, 8), ("length", 8, 2)]),
    (
        "kvs_value",
        24,
        &[
            ("value", 0, 8),
            ("length", 8, 4),
            ("actual_value_size", 12, 4),
            ("offset", 16, 4),
        ],
    ),
    (
        "kvs_key_space_name",
        16,
        &[("name_len", 0, 4), ("name", 8, 8)],
    ),
    (
        "kvs_key_space",
        40,
        &[
            ("opened", 0, 1),
            ("capacity", 8, 8),
            ("free_size", 16, 8),
            ("count", 24, 8),
            ("name", 32, 8),
        ],
    ),
    (
        "kvs_device",
        40,
        &[
            ("capacity", 0, 8),
            ("unalloc_capacity", 8, 8),
            ("max_value_len", 16, 4),
            ("max_key_len", 20, 4),
            ("optimal_value_len", 24, 4),
            ("optimal_value_granularity", 28, 4),
            ("extended_info", 32, 8),
        ],
    ),
    (
        "kvs_exist_list",
        32,
        &[
            ("num_keys", 0, 4),
            ("keys", 8, 8),
            ("length", 16, 4),
            ("result_buffer", 24, 8),
        ],
    ),
    (
        "kvs_key_group_filter",
        8,
        &[("bitmask", 0, 4), ("bit_pattern", 4, 4)],
    ),
    (
        "kvs_iterator_list",
        24,
        &[
            ("num_entries", 0, 4),
            ("end", 4, 1),
            ("size", 8, 4),
            ("it_list", 16, 8),
        ],
    ),
    (
        "kvs_postprocess_context",
        72,
        &[
            ("context", 0, 4),
            ("ks_hd", 8, 8),
            ("key", 16, 8),
            ("value", 24, 8),
            ("option", 32, 8),
            ("private1", 40, 8),
            ("private2", 48, 8),
            ("result", 56, 4),
            ("iter_hd", 60, 1),
            ("result_buffer", 64, 8),
            ("result_buffer.iter_list", 64, 8),
            ("result_buffer.list", 64, 8),
        ],
    ),
    (
        "kvs_kvp_info",
        24,
        &[("key_len", 0, 2), ("key", 8, 8), ("value_len", 16, 4)],
    ),
];

fn include() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// The header declares these functions and, but for those that say so in their names or are known
/// to KV-SSD programs, no others.
#[test]
fn the_header_has_the_31_functions() {
    let text = std::fs::read_to_string(include().join("kvs_api.h")).unwrap();
    let declared = text.lines().filter(|line| !line.starts_with('#'));
    let mut found: Vec<&str> = declared
        .filter_map(|line| line.strip_prefix("kvs_result kvs_"))
        .filter_map(|rest| rest.split('(').next())
        .filter(|name| !name.starts_with("isobath_"))
        .collect();
    found.sort_unstable();
    let mut expected = FUNCTIONS.map(|(name, _)| name.strip_prefix("kvs_").unwrap());
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// The codes' enumeration has these names with these numbers and no others.
#[test]
fn the_header_has_the_25_result_codes() {
    let text = std::fs::read_to_string(include().join("kvs_result.h")).unwrap();
    let found: Vec<(String, u32)> = text
        .lines()
        .filter_map(|line| line.trim().split_once(" = 0x"))
        .map(|(name, rest)| {
            let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
            (name.to_owned(), u32::from_str_radix(&digits, 16).unwrap())
        })
        .collect();
    let expected: Vec<(String, u32)> = CODES.map(str::to_owned).into_iter().zip(0..).collect();
    assert_eq!(found, expected);
}

fn has_compiler() -> bool {
    let there = Command::new("gcc").arg("--version").output().is_ok();
    if !there {
        skipped::skipped("there is no gcc");
    }
    there
}

/// A compiler for C and one for C++ see the constants and layouts of the standard's header, as
/// programs include it: alone.
#[test]
#[cfg(target_pointer_width = "64")]
fn the_header_has_the_standards_numbers_and_layouts() {
    if !has_compiler() {
        return;
    }
    let mut text = "#include <kvs_api.h>\n".to_owned();
    for (name, number) in NUMBERS {
        writeln!(text, "_Static_assert({name} == {number}, \"{name}\");").unwrap();
    }
    for (of, size, fields) in LAYOUTS {
        writeln!(text, "_Static_assert(sizeof({of}) == {size}, \"{of}\");").unwrap();
        for (field, offset, size) in fields {
            writeln!(
                text,
                "_Static_assert(offsetof({of}, {field}) == {offset} && sizeof((({of} *)0)->{field}) == {size}, \"{of}.{field}\");",
            )
            .unwrap();
        }
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, standard, text) in [
        ("standard.c", "-std=gnu11", text.clone()),
        (
            "standard.cpp",
            "-std=c++17",
            text.replace("_Static_assert", "static_assert"),
        ),
    ] {
        let source = directory.path().join(name);
        std::fs::write(&source, text).unwrap();
        let output = Command::new("gcc")
            .args([standard, "-Wall", "-Wextra", "-Werror", "-c", "-I"])
            .arg(include())
            .arg(&source)
            .arg("-o")
            .arg(directory.path().join("standard.o"))
            .output()
            .unwrap();
        let messages = String::from_utf8_lossy(&output.stderr);
        let lacks_cpp = messages.contains("cc1plus");
        assert!(output.status.success() || lacks_cpp, "{messages}");
    }
}

/// Every function can be called by the standard's prototype, which a compiler compares, and is in
/// the library.
#[test]
fn the_library_has_the_functions_with_their_prototypes() {
    if !has_compiler() {
        return;
    }
    let mut text = "#include <kvs_api.h>\n".to_owned();
    for (name, parameters) in FUNCTIONS {
        writeln!(text, "kvs_result (*of_{name})({parameters}) = {name};").unwrap();
    }
    for (number, name) in CODES.iter().enumerate() {
        writeln!(text, "_Static_assert({name} == {number}, \"{name}\");").unwrap();
    }
    text += "int main(void) { return 0; }\n";
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("standard.c");
    std::fs::write(&source, text).unwrap();
    let built = std::env::current_exe().unwrap();
    let output = Command::new("gcc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include())
        .arg(&source)
        .arg(built.parent().unwrap().join("libisobath_c.so"))
        .arg("-o")
        .arg(directory.path().join("standard"))
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
}
