//! The table of handles. A handle is a number that is never given out again: a closed one is
//! recognised, and nothing is read through it. Each thread keeps its last handles, so looking up
//! takes no lock.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Weak};

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
    /// By handle. They keep nothing alive: a device that was closed gives its memory back whatever
    /// threads remember.
    static USED: RefCell<Vec<(usize, Weak<Space>)>> = const { RefCell::new(Vec::new()) };
}

/// Lists an open device.
pub(crate) fn add_device(device: Arc<Device>) {
    REGISTRY.write().devices.insert(device.handle, device);
}

/// Lists an open key space, unless its device is being closed.
pub(crate) fn add_space(space: Arc<Space>) -> Result<(), Code> {
    let mut registry = REGISTRY.write();
    // Asked with the lock: a device that is closed takes its key spaces out of the list, and
    // nothing comes in later.
    space.check_open()?;
    registry.spaces.insert(space.handle, space);
    Ok(())
}

/// The open device of a handle.
pub(crate) fn device(handle: *mut c_void) -> Result<Arc<Device>, Code> {
    let found = REGISTRY.read().devices.get(&(handle as usize)).cloned();
    let device = found.ok_or(KVS_ERR_DEV_NOT_EXIST)?;
    match device.is_open() {
        true => Ok(device),
        false => Err(device.not_open(KVS_ERR_DEV_NOT_EXIST)),
    }
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
        let found = used.iter().find(|(known, _)| *known == handle);
        found.and_then(|(_, space)| space.upgrade())
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
    // The thread ends: its entries are gone.
    let _ = USED.try_with(|used| {
        let mut used = used.borrow_mut();
        used.retain(|(_, space)| space.strong_count() > 0);
        used.truncate(REMEMBERED - 1);
        used.insert(0, (handle, Arc::downgrade(&space)));
    });
    Ok(space)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::kvs::config::Config;
    use crate::kvs::filter::Filter;
    use crate::kvs::kvs_close_device;
    use crate::kvs::request::{Bytes, Operation, Reply, Request};
    use crate::kvs::space::Store;

    fn device_with_a_space() -> (tempfile::TempDir, Arc<Device>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dev.iso");
        let uri = format!("{}?create=yes&pool=8MiB&workers=1", path.display());
        let opened = Device::open(Config::of_uri(&uri).unwrap(), device::new_device_handle());
        let opened = opened.ok().unwrap();
        opened.create_space(b"space", 0, 0).ok().unwrap();
        (directory, opened)
    }

    #[test]
    fn a_closed_device_gives_its_memory_back() {
        let (_directory, opened) = device_with_a_space();
        let space_handle = device::new_space_handle();
        let space = opened.open_space(b"space", space_handle).ok().unwrap();
        add_space(space).ok().unwrap();
        let (handle, weak) = (opened.handle, Arc::downgrade(&opened));
        add_device(opened);
        let request = || {
            let (key, value) = (b"key!", b"value");
            let operation = Operation::Store {
                key: Bytes::new(key.as_ptr().cast_mut().cast(), key.len()),
                value: Bytes::new(value.as_ptr().cast_mut().cast(), value.len()),
                how: Store::Post,
            };
            let space = super::space(space_handle as *mut c_void).ok().unwrap();
            (
                Arc::clone(&space.device),
                Request::new(space, operation, Reply::nothing()),
            )
        };
        for _ in 0..2 {
            let (device, request) = request();
            device.call(request).ok().unwrap();
        }
        let (device, submitted) = request();
        device.submit(submitted).ok().unwrap();
        drop(device);
        assert_eq!(kvs_close_device(handle as *mut c_void), KVS_SUCCESS);
        // This thread remembers all that it has used.
        assert_eq!(weak.strong_count(), 0);
    }

    #[test]
    fn a_key_space_of_a_closed_device_is_not_listed() {
        // As where one thread closes the device, and another one has opened the key space just
        // before.
        let (_directory, opened) = device_with_a_space();
        let space = opened.open_space(b"space", device::new_space_handle());
        assert!(opened.close().is_ok());
        assert_eq!(add_space(space.ok().unwrap()), Err(KVS_ERR_KS_NOT_OPEN));
        let again = opened.open_space(b"space", device::new_space_handle());
        assert_eq!(again.err(), Some(KVS_ERR_DEV_NOT_OPENED));
        // Nothing keeps the store's memory.
        assert_eq!(Arc::strong_count(&opened), 1);
    }

    #[test]
    fn a_closed_key_space_gets_no_iterator() {
        let (_directory, opened) = device_with_a_space();
        let open = || opened.open_space(b"space", device::new_space_handle()).ok();
        let everything = crate::kvs::types::kvs_key_group_filter {
            bitmask: [0; 4],
            bit_pattern: [0; 4],
        };
        let everything = Filter::new(&everything);
        // As where a thread has found the key space, and another one closes it before the iterator
        // is there.
        for _ in 0..20 {
            let space = open().unwrap();
            opened.close_space(&space);
            let refused = opened.iterators.open(&space, everything, false);
            assert_eq!(refused, Err(KVS_ERR_KS_NOT_OPEN));
        }
        assert!(
            opened
                .iterators
                .open(&open().unwrap(), everything, false)
                .is_ok()
        );
        assert!(opened.close().is_ok());
    }
}
