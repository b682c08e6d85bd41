//! The interface is the standard's: 31 functions with its prototypes, and 25 result codes with its numbers.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The functions of the SNIA Key Value Storage API 1.1, as KV-SSD programs call them: name and parameters.
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

fn include() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// The header declares these functions and, but for those that say so in their names or are known to KV-SSD programs, no others.
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

/// Every function can be called by the standard's prototype, which a compiler compares, and is in the library.
#[test]
fn the_library_has_the_functions_with_their_prototypes() {
    if Command::new("gcc").arg("--version").output().is_err() {
        eprintln!("skipped: there is no gcc");
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
