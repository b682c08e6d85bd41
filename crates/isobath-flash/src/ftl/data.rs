//! Storage for the contents of flash pages.

use std::collections::HashMap;

/// Contents of flash pages, by slot (superblock × pages per superblock, rounded up to a power of
/// two, + page).
///
/// The device reads a slot only after writing it and before erasing it.
pub trait PageData {
    /// Copies the contents of `slot` to `out`.
    fn read(&self, slot: u32, out: &mut [u8]);
    /// Programs `slot`.
    fn write(&mut self, slot: u32, page: &[u8]);
    /// Programs `to` with what `from` holds.
    fn copy(&mut self, from: u32, to: u32);
    /// Forgets the contents of `slots`.
    fn erase(&mut self, slots: std::ops::Range<u32>);
    /// True if contents are kept; false lets the device skip copying them.
    fn keeps_contents(&self) -> bool {
        true
    }
}

/// Keeps no contents: reads give zeros. For counting write amplification at full speed.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoData;

impl PageData for NoData {
    fn read(&self, _slot: u32, out: &mut [u8]) {
        out.fill(0);
    }
    fn write(&mut self, _slot: u32, _page: &[u8]) {}
    fn copy(&mut self, _from: u32, _to: u32) {}
    fn erase(&mut self, _slots: std::ops::Range<u32>) {}
    fn keeps_contents(&self) -> bool {
        false
    }
}

/// Keeps contents in memory, one allocation per programmed page; pages of zeros take none.
#[derive(Debug, Clone, Default)]
pub struct MemoryData {
    pages: HashMap<u32, Box<[u8]>>,
}

impl MemoryData {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }
}

impl PageData for MemoryData {
    fn read(&self, slot: u32, out: &mut [u8]) {
        match self.pages.get(&slot) {
            Some(page) => out.copy_from_slice(page),
            None => out.fill(0),
        }
    }

    fn write(&mut self, slot: u32, page: &[u8]) {
        if page.iter().all(|&byte| byte == 0) {
            self.pages.remove(&slot);
        } else {
            self.pages.insert(slot, page.into());
        }
    }

    fn copy(&mut self, from: u32, to: u32) {
        // The old slot is erased before it is read again, so its contents can move.
        if let Some(page) = self.pages.remove(&from) {
            self.pages.insert(to, page);
        }
    }

    fn erase(&mut self, slots: std::ops::Range<u32>) {
        for slot in slots {
            self.pages.remove(&slot);
        }
    }
}
