//! One operation on a key space, whether it is called or submitted.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::code::{self, Code};
use super::filter::Filter;
use super::space::{Space, Store};
use super::types::{
    kvs_context, kvs_exist_list, kvs_iterator_list, kvs_key, kvs_postprocess_context,
    kvs_postprocess_function, kvs_result, kvs_result::*, kvs_result_buffer, kvs_value,
};
use crate::concurrency::run_callback;

/// A part of the program's memory.
#[derive(Clone, Copy)]
pub(crate) struct Bytes {
    at: *mut u8,
    length: usize,
}

impl Bytes {
    pub(crate) fn new(at: *mut c_void, length: usize) -> Bytes {
        Bytes {
            at: at.cast(),
            length,
        }
    }

    pub(crate) fn length(self) -> usize {
        self.length
    }

    /// # Safety
    ///
    /// The program keeps the memory, and changes nothing of it, while the result lives.
    pub(crate) unsafe fn get<'a>(self) -> &'a [u8] {
        match self.length {
            0 => &[],
            // SAFETY: the caller guarantees this; pointers that are NULL have length 0, as was
            // checked.
            length => unsafe { slice::from_raw_parts(self.at, length) },
        }
    }

    /// # Safety
    ///
    /// The program keeps the memory, and leaves it alone, while the result lives.
    unsafe fn get_mut<'a>(self) -> &'a mut [u8] {
        match self.length {
            0 => &mut [],
            // SAFETY: as above.
            length => unsafe { slice::from_raw_parts_mut(self.at, length) },
        }
    }
}

/// A request's operation, with parameters as they were when they were checked.
pub(crate) enum Operation {
    Store {
        key: Bytes,
        value: Bytes,
        how: Store,
    },
    Retrieve {
        key: Bytes,
        into: Bytes,
        offset: u32,
        deletes: bool,
        out: *mut kvs_value,
    },
    /// A whole value of any length, into memory of the library.
    Load {
        key: Bytes,
        value: Vec<u8>,
    },
    Delete {
        key: Bytes,
        is_error: bool,
    },
    DeleteGroup {
        filter: Filter,
    },
    Exist {
        keys: Vec<Bytes>,
        bits: Bytes,
        out: *mut kvs_exist_list,
    },
    Next {
        handle: u8,
        into: Bytes,
        out: *mut kvs_iterator_list,
    },
}

/// The arguments handed back to the callback.
pub(crate) struct Reply {
    pub(crate) key: *mut kvs_key,
    pub(crate) value: *mut kvs_value,
    pub(crate) option: *mut c_void,
    pub(crate) private: [*mut c_void; 2],
    pub(crate) callback: kvs_postprocess_function,
}

impl Reply {
    pub(crate) fn nothing() -> Reply {
        Reply {
            key: null_mut(),
            value: null_mut(),
            option: null_mut(),
            private: [null_mut(); 2],
            callback: None,
        }
    }
}

/// An operation and its result.
pub(crate) struct Request {
    space: Arc<Space>,
    operation: Operation,
    reply: Reply,
    result: kvs_result,
    /// Why a load failed: another thread reports it than the one that found it.
    reason: String,
    bytes: u64,
    /// How long it was worked on: of transfers only, which report that to their program.
    is_timed: bool,
    busy: Duration,
}

// SAFETY: the pointers are the program's, which leaves what they point to alone until the callback
// is called, as the interface demands; one thread at a time has the request.
unsafe impl Send for Request {}

impl Request {
    pub(crate) fn new(space: Arc<Space>, operation: Operation, reply: Reply) -> Request {
        Request {
            space,
            operation,
            reply,
            result: KVS_ERR_SYS_IO,
            reason: String::new(),
            bytes: 0,
            is_timed: false,
            busy: Duration::ZERO,
        }
    }

    /// A request whose work is timed, with a number to know it by.
    pub(crate) fn numbered(space: Arc<Space>, operation: Operation, index: usize) -> Request {
        let mut reply = Reply::nothing();
        reply.private[0] = index as *mut c_void;
        let mut request = Request::new(space, operation, reply);
        request.is_timed = true;
        request
    }

    /// How long it was worked on, if that was timed.
    pub(crate) fn busy(&self) -> Duration {
        self.busy
    }

    /// The number of a numbered request.
    pub(crate) fn index(&self) -> usize {
        self.reply.private[0] as usize
    }

    /// The value of a load that has run, or why there is none.
    pub(crate) fn into_loaded(self) -> Result<Vec<u8>, (Code, String)> {
        match (self.operation, self.result) {
            (Operation::Load { value, .. }, KVS_SUCCESS) => Ok(value),
            (_, code) => Err((code, self.reason)),
        }
    }

    pub(crate) fn result(&self) -> kvs_result {
        self.result
    }

    fn perform(&mut self) -> Result<(), Code> {
        let space = &*self.space;
        match &mut self.operation {
            Operation::Store { key, value, how } => {
                // SAFETY: the parameters were checked, and the program keeps their memory until the
                // end.
                let (key, value) = unsafe { (key.get(), value.get()) };
                space.store(key, value, *how)?;
                self.bytes = value.len() as u64;
            }
            Operation::Retrieve {
                key,
                into,
                offset,
                deletes,
                out,
            } => {
                let (key, into) = given!((key.get(), into.get_mut()));
                let found = space.retrieve(key, *offset, into, *deletes)?;
                given! {
                    (**out).length = found.copied;
                    (**out).actual_value_size = found.whole;
                }
                self.bytes = u64::from(found.copied);
                if found.is_short {
                    return Err(KVS_ERR_BUFFER_SMALL);
                }
            }
            Operation::Load { key, value } => {
                let found = space.read(given!(key.get()), value);
                match found {
                    Ok(true) => self.bytes = value.len() as u64,
                    Ok(false) => {
                        self.reason = "it does not exist".to_owned();
                        return Err(KVS_ERR_KEY_NOT_EXIST);
                    }
                    Err(error) => {
                        self.reason = error.to_string();
                        return Err(code::of(&error));
                    }
                }
            }
            Operation::Delete { key, is_error } => {
                let was_there = space.delete(given!(key.get()))?;
                if *is_error && !was_there {
                    return Err(KVS_ERR_KEY_NOT_EXIST);
                }
            }
            Operation::DeleteGroup { filter } => space.delete_group(filter)?,
            Operation::Exist { keys, bits, out } => {
                let bits = given!(bits.get_mut());
                bits.fill(0);
                for (at, key) in keys.iter().enumerate() {
                    let found = space.tree.contains(given!(key.get()));
                    let found = found.map_err(|error| code::of(&error))?;
                    bits[at / 8] |= u8::from(found) << (at % 8);
                }
                given!((**out).length = bits.len() as u32);
            }
            Operation::Next { handle, into, out } => {
                let into = given!(into.get_mut());
                let found = space.device.iterators.next(space, *handle, into)?;
                given! {
                    (**out).num_entries = found.entries;
                    (**out).size = found.bytes;
                    (**out).end = u8::from(found.has_ended);
                }
                self.bytes = u64::from(found.bytes);
            }
        }
        Ok(())
    }

    /// Reports the completion to the program.
    pub(crate) fn complete(self) {
        let Some(callback) = self.reply.callback else {
            return;
        };
        let mut context = kvs_postprocess_context {
            context: self.context(),
            ks_hd: self.space.handle as *mut c_void,
            key: self.reply.key,
            value: self.reply.value,
            option: self.reply.option,
            private1: self.reply.private[0],
            private2: self.reply.private[1],
            result: self.result,
            iter_hd: 0,
            result_buffer: kvs_result_buffer { list: null_mut() },
        };
        match self.operation {
            Operation::Exist { out, .. } => context.result_buffer.list = out,
            Operation::Next { handle, out, .. } => {
                context.iter_hd = handle;
                context.result_buffer.iter_list = out;
            }
            _ => {}
        }
        // SAFETY: the program gave a function of this type.
        run_callback(|| unsafe { callback(&mut context) });
    }

    fn context(&self) -> kvs_context {
        match self.operation {
            Operation::Store { .. } => kvs_context::KVS_CMD_STORE,
            Operation::Retrieve { .. } | Operation::Load { .. } => kvs_context::KVS_CMD_RETRIEVE,
            Operation::Delete { .. } => kvs_context::KVS_CMD_DELETE,
            Operation::DeleteGroup { .. } => kvs_context::KVS_CMD_DELETE_GROUP,
            Operation::Exist { .. } => kvs_context::KVS_CMD_EXIST,
            Operation::Next { .. } => kvs_context::KVS_CMD_ITER_NEXT,
        }
    }
}

impl crate::concurrency::Request for Request {
    fn run(&mut self) {
        let begin = self.is_timed.then(Instant::now);
        self.result = code::result(self.perform());
        self.busy = begin.map_or(Duration::ZERO, |begin| begin.elapsed());
    }

    fn fail(&mut self) {
        self.result = KVS_ERR_SYS_IO;
    }

    fn refuse(&mut self) {
        self.result = KVS_ERR_DEV_NOT_OPENED;
        self.reason = "the device is closed".to_owned();
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn has_failed(&self) -> bool {
        self.result != KVS_SUCCESS
    }
}
