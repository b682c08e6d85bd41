//! What handles stand for. A handle is a number that is never given out again, so that one which was closed is known as such
//! and nothing is read through it. Each thread keeps what it has used last: looking up takes no lock.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock};

use parking_lot::RwLock;

use super::code::Code;
use super::device::{self, Device};
use super::space::Space;
use super::types::kvs_result::*;

/// Key spaces that a thread remembers.
const REMEMBERED: usize = 8;

#[derive(Default)]
struct Registry {
    devices: HashMap<usize, Arc<Device>>,
    spaces: HashMap<usize, Arc<Space>>,
}

static REGISTRY: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);

thread_local! {
    static USED: RefCell<Vec<Arc<Space>>> = const { RefCell::new(Vec::new()) };
}

/// Lists an open device.
pub(crate) fn add_device(device: Arc<Device>) {
    REGISTRY.write().devices.insert(device.handle, device);
}

/// Lists an open key space.
pub(crate) fn add_space(space: Arc<Space>) {
    REGISTRY.write().spaces.insert(space.handle, space);
}

/// The open device of a handle.
pub(crate) fn device(handle: *mut c_void) -> Result<Arc<Device>, Code> {
    let found = REGISTRY.read().devices.get(&(handle as usize)).cloned();
    found
        .filter(|device| device.is_open())
        .ok_or(KVS_ERR_DEV_NOT_EXIST)
}

/// Takes a device that is being closed out of the list, with its key spaces.
pub(crate) fn remove_device(handle: usize) {
    let mut registry = REGISTRY.write();
    registry.devices.remove(&handle);
    registry
        .spaces
        .retain(|_, space| space.device.handle != handle);
}

/// Takes a closed key space out of the list.
pub(crate) fn remove_space(handle: usize) {
    REGISTRY.write().spaces.remove(&handle);
}

/// The open key space of a handle.
pub(crate) fn space(handle: *mut c_void) -> Result<Arc<Space>, Code> {
    let handle = handle as usize;
    let remembered = USED.try_with(|used| {
        let used = used.borrow();
        used.iter().find(|space| space.handle == handle).cloned()
    });
    if let Ok(Some(space)) = remembered {
        space.check_open()?;
        return Ok(space);
    }
    look_up(handle)
}

#[cold]
fn look_up(handle: usize) -> Result<Arc<Space>, Code> {
    let found = REGISTRY.read().spaces.get(&handle).cloned();
    let Some(space) = found else {
        // It was closed, with its device or alone, or is no key space's.
        return Err(match device::was_space(handle) {
            true => KVS_ERR_KS_NOT_OPEN,
            false => KVS_ERR_KS_NOT_EXIST,
        });
    };
    space.check_open()?;
    let _ = USED.try_with(|used| {
        let mut used = used.borrow_mut();
        used.retain(|space| space.check_open().is_ok());
        used.truncate(REMEMBERED - 1);
        used.insert(0, Arc::clone(&space));
    });
    Ok(space)
}
