//! The types of `kvs_struct.h`, `kvs_const.h` and `kvs_result.h`. A test compiles C that compares
//! sizes, offsets and numbers.

use std::ffi::{c_char, c_void};

/// Numbers of `kvs_const.h`.
pub mod limits {
    /// Fewest bytes of a key.
    pub const MIN_KEY_LENGTH: u32 = 4;
    /// Most bytes of a key.
    pub const MAX_KEY_LENGTH: u32 = 255;
    /// Most bytes of a value, unless a configuration allows more.
    pub const MAX_VALUE_LENGTH: u32 = 2 << 20;
    /// The length of a value that a device is said to like best.
    pub const OPTIMAL_VALUE_LENGTH: u32 = 4096;
    /// What offsets within values are multiples of.
    pub const ALIGNMENT_UNIT: u32 = 512;
    /// Iterators of a device that may be open at a time.
    pub const MAX_ITERATE_HANDLE: usize = 16;
    /// Bytes of a key that a group filter looks at.
    pub const MAX_KEY_GROUP_BYTES: usize = 4;
    /// Most bytes of a key space's name.
    pub const MAX_KEYSPACE_NAME_LEN: usize = 255;
}

/// A result code.
#[repr(C)]
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum kvs_result {
    KVS_SUCCESS = 0x000,
    KVS_ERR_BUFFER_SMALL = 0x001,
    KVS_ERR_DEV_CAPAPCITY = 0x002,
    KVS_ERR_DEV_NOT_EXIST = 0x003,
    KVS_ERR_KS_CAPACITY = 0x004,
    KVS_ERR_KS_EXIST = 0x005,
    KVS_ERR_KS_INDEX = 0x006,
    KVS_ERR_KS_NAME = 0x007,
    KVS_ERR_KS_NOT_EXIST = 0x008,
    KVS_ERR_KS_NOT_OPEN = 0x009,
    KVS_ERR_KS_OPEN = 0x00A,
    KVS_ERR_ITERATOR_FILTER_INVALID = 0x00B,
    KVS_ERR_ITERATOR_MAX = 0x00C,
    KVS_ERR_ITERATOR_NOT_EXIST = 0x00D,
    KVS_ERR_ITERATOR_OPEN = 0x00E,
    KVS_ERR_KEY_LENGTH_INVALID = 0x00F,
    KVS_ERR_KEY_NOT_EXIST = 0x010,
    KVS_ERR_OPTION_INVALID = 0x011,
    KVS_ERR_PARAM_INVALID = 0x012,
    KVS_ERR_SYS_IO = 0x013,
    KVS_ERR_VALUE_LENGTH_INVALID = 0x014,
    KVS_ERR_VALUE_OFFSET_INVALID = 0x015,
    KVS_ERR_VALUE_OFFSET_MISALIGNED = 0x016,
    KVS_ERR_VALUE_UPDATE_NOT_ALLOWED = 0x017,
    KVS_ERR_DEV_NOT_OPENED = 0x018,
}

/// The operation that a callback reports.
#[repr(C)]
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum kvs_context {
    KVS_CMD_DELETE = 0x01,
    KVS_CMD_DELETE_GROUP = 0x02,
    KVS_CMD_EXIST = 0x03,
    KVS_CMD_ITER_CREATE = 0x04,
    KVS_CMD_ITER_DELETE = 0x05,
    KVS_CMD_ITER_NEXT = 0x06,
    KVS_CMD_RETRIEVE = 0x07,
    KVS_CMD_STORE = 0x08,
}

/// A device's handle: a number.
pub type kvs_device_handle = *mut c_void;
/// A key space's handle: a number.
pub type kvs_key_space_handle = *mut c_void;
/// An iterator's handle: 1 to 16.
pub type kvs_iterator_handle = u8;

/// Options of a new key space.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_option_key_space {
    /// A `kvs_key_order`; C may give any number.
    pub ordering: u32,
}

/// Options of a deletion. C has bytes here that are 0 or 1.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_option_delete {
    /// A key that does not exist is an error.
    pub kvs_delete_error: u8,
}

/// Options of an iterator.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_option_iterator {
    /// A `kvs_iterator_type`.
    pub iter_type: u32,
}

/// Options of a retrieval.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_option_retrieve {
    /// Deletes the retrieved pair.
    pub kvs_retrieve_delete: u8,
}

/// A key.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_key {
    /// Its bytes.
    pub key: *mut c_void,
    /// How many.
    pub length: u16,
}

/// A value, or a buffer for one.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_value {
    /// Its bytes.
    pub value: *mut c_void,
    /// How many.
    pub length: u32,
    /// Bytes of the whole value.
    pub actual_value_size: u32,
    /// Bytes to skip.
    pub offset: u32,
}

/// A hint of which values belong together.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_association {
    /// A `kvs_association_type`.
    pub assoc_type: u32,
    /// Such as a stream's number.
    pub assoc_hint: u16,
}

/// Options of a store operation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_option_store {
    /// A `kvs_store_type`.
    pub st_type: u32,
    /// Not looked at.
    pub assoc: *mut kvs_association,
}

/// A key space's name.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_key_space_name {
    /// Bytes.
    pub name_len: u32,
    /// The name.
    pub name: *mut c_char,
}

/// Properties of a key space.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_key_space {
    /// It is open.
    pub opened: u8,
    /// Bytes that it may have.
    pub capacity: u64,
    /// Bytes that it may still take.
    pub free_size: u64,
    /// Pairs.
    pub count: u64,
    /// Its name.
    pub name: *mut kvs_key_space_name,
}

/// Properties of a device.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_device {
    /// Bytes.
    pub capacity: u64,
    /// Bytes that no key space has reserved.
    pub unalloc_capacity: u64,
    /// Bytes.
    pub max_value_len: u32,
    /// Bytes.
    pub max_key_len: u32,
    /// Bytes.
    pub optimal_value_len: u32,
    /// Bytes.
    pub optimal_value_granularity: u32,
    /// NULL.
    pub extended_info: *mut c_void,
}

/// Keys that are asked for.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_exist_list {
    /// How many.
    pub num_keys: u32,
    /// The keys.
    pub keys: *mut kvs_key,
    /// Bytes of the buffer.
    pub length: u32,
    /// A bit for each key.
    pub result_buffer: *mut u8,
}

/// Which keys belong to a group.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct kvs_key_group_filter {
    /// Bits that count.
    pub bitmask: [u8; limits::MAX_KEY_GROUP_BYTES],
    /// What they must be.
    pub bit_pattern: [u8; limits::MAX_KEY_GROUP_BYTES],
}

/// Entries that an iterator found.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_iterator_list {
    /// How many.
    pub num_entries: u32,
    /// Nothing is left.
    pub end: u8,
    /// Bytes of the buffer.
    pub size: u32,
    /// The buffer.
    pub it_list: *mut u8,
}

/// A buffer of a callback's context.
#[repr(C)]
#[derive(Clone, Copy)]
pub union kvs_result_buffer {
    /// Of an iteration.
    pub iter_list: *mut kvs_iterator_list,
    /// Of a question whether keys exist.
    pub list: *mut kvs_exist_list,
}

impl std::fmt::Debug for kvs_result_buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("kvs_result_buffer").finish_non_exhaustive()
    }
}

/// What a callback receives.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_postprocess_context {
    /// The operation.
    pub context: kvs_context,
    /// The key space.
    pub ks_hd: kvs_key_space_handle,
    /// As given.
    pub key: *mut kvs_key,
    /// As given, with the result.
    pub value: *mut kvs_value,
    /// As given.
    pub option: *mut c_void,
    /// As given.
    pub private1: *mut c_void,
    /// As given.
    pub private2: *mut c_void,
    /// How it went.
    pub result: kvs_result,
    /// The iterator.
    pub iter_hd: kvs_iterator_handle,
    /// As given, with the result.
    pub result_buffer: kvs_result_buffer,
}

/// A callback.
pub type kvs_postprocess_function = Option<unsafe extern "C" fn(*mut kvs_postprocess_context)>;

/// Properties of a pair.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_kvp_info {
    /// Bytes.
    pub key_len: u16,
    /// A buffer for the key, or NULL.
    pub key: *mut u8,
    /// Bytes.
    pub value_len: u32,
}

/// Numbers of the concurrency manager.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct kvs_isobath_counters {
    /// Requests that were accepted.
    pub issued: u64,
    /// Of those, the ones that are not completed.
    pub in_flight: u64,
    /// Requests that are completed.
    pub completed: u64,
    /// Of those, the ones that failed.
    pub failed: u64,
    /// The most that one thread ever had in flight.
    pub in_flight_max: u64,
    /// Times that a thread waited because its limit was reached.
    pub waits: u64,
    /// Bytes of values that were moved.
    pub bytes: u64,
    /// Threads that issued requests.
    pub threads: u32,
    /// Requests in flight for each data task.
    pub queue_depth: u32,
    /// Data tasks of a thread.
    pub data_tasks: u32,
    /// 0 parallel, 1 serial.
    pub channel: u32,
}
