//! A device: a store, its key spaces and iterators, and the queues of the threads that use it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use isobath::{Error, OpenError, Store, Tree, WriteBatch};
use parking_lot::Mutex;

use super::cache::Cache;
use super::code::{self, Code};
use super::config::{Completion, Config};
use super::iterator::Iterators;
use super::request::Request;
use super::space::Space;
use super::types::{kvs_result::*, limits};
use crate::concurrency::{
    CompletionThread, Counters, Lane, Limits, Port, Refused, generation, in_callback,
};
use crate::message;

/// The tree that has a record for each key space.
const CATALOG: &str = "kvs";
/// The prefix of names of key spaces' trees; a number follows, which no other key space of the
/// device ever has.
const TREE_PREFIX: &str = "kvs.";
/// Bytes of a frame of the pool.
const FRAME_BYTES: u64 = 4096;

/// Whether a tree of this name belongs to the device itself: the catalog, or a key space.
pub(crate) fn is_own_tree(name: &[u8]) -> bool {
    name == CATALOG.as_bytes() || name.starts_with(TREE_PREFIX.as_bytes())
}

/// The catalog's record of the last number.
const LAST_ID: &[u8] = b"i";
/// The prefix of the catalog's keys of key spaces; the name follows.
const NAME: u8 = b'n';
/// The prefix of the catalog's keys of key spaces being created or deleted; the number follows.
const UNFINISHED: u8 = b'u';

/// A key space's entry in the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    /// Bytes; 0 without a limit.
    pub(crate) capacity: u64,
    pub(crate) ordering: u8,
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.id.to_le_bytes().to_vec();
        bytes.extend(self.capacity.to_le_bytes());
        bytes.push(self.ordering);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Entry> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (capacity, rest) = rest.split_first_chunk()?;
        let [ordering] = rest else { return None };
        Some(Entry {
            id: u64::from_le_bytes(*id),
            capacity: u64::from_le_bytes(*capacity),
            ordering: *ordering,
        })
    }

    fn tree_name(&self) -> String {
        tree_name(self.id)
    }
}

/// An open device.
pub(crate) struct Device {
    pub(crate) handle: usize,
    store: Store,
    catalog: Tree,
    config: Config,
    is_open: AtomicBool,
    /// Of the process that has opened it: forked children have no workers.
    generation: u32,
    /// Whether all threads share one data channel.
    is_serial: AtomicBool,
    pub(crate) limits: Arc<Limits>,
    serial_limits: Arc<Limits>,
    serial: OnceLock<Arc<Lane<Request>>>,
    /// The queues of each thread that has used the device. Locked when a thread uses it first, and
    /// for numbers.
    threads: Mutex<Vec<Arc<ThreadQueues>>>,
    completion: Mutex<Option<CompletionThread<Request>>>,
    /// Open key spaces by name; locked while key spaces are created, deleted, opened, closed.
    pub(crate) spaces: Mutex<HashMap<Vec<u8>, Arc<Space>>>,
    pub(crate) iterators: Iterators,
    /// Values that were read, if the configuration gives memory for them.
    pub(crate) cache: Cache,
}

/// One thread's queues of a device.
pub(crate) struct ThreadQueues {
    pub(crate) port: Arc<Port<Request>>,
    lane: OnceLock<Arc<Lane<Request>>>,
    /// For transfers, whose thread takes its results itself whatever the configuration says of
    /// callbacks.
    is_transfer: bool,
}

impl ThreadQueues {
    /// The thread has ended; another one may take them over.
    pub(crate) fn retire(&self) {
        self.port.is_orphan.store(true, Ordering::Release);
    }
}

/// A thread's queues of the devices that it has used, by handle. The devices own them: those of a
/// closed one are gone.
#[derive(Default)]
struct Mine(Vec<(usize, Weak<ThreadQueues>)>);

impl Drop for Mine {
    fn drop(&mut self) {
        for queues in self.0.iter().filter_map(|(_, queues)| queues.upgrade()) {
            queues.retire();
        }
    }
}

thread_local! {
    static MINE: RefCell<Mine> = RefCell::default();
    /// Handles of the devices of the transfers that this thread is in.
    static TRANSFERS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Device {
    /// Opens the device of a configuration.
    pub(crate) fn open(config: Config, handle: usize) -> Result<Arc<Device>, Code> {
        let options = config.options();
        if !config.create && !config.path.exists() {
            let reason = format!(
                "{} does not exist; create=yes makes it",
                config.path.display()
            );
            return Err(code::because(KVS_ERR_DEV_NOT_EXIST, reason));
        }
        let opened = match config.create {
            true => Store::open_or_create(&config.path, &options),
            false => Store::open(&config.path, &options),
        };
        let store = opened.map_err(|error| open_code(&error))?;
        let catalog = store
            .open_or_create_tree(CATALOG)
            .map_err(|error| code::of(&error))?;
        let completion = match config.completion {
            Completion::Polling => None,
            Completion::Thread => Some(
                CompletionThread::start(Request::complete)
                    .map_err(|error| code::because(KVS_ERR_SYS_IO, error.to_string()))?,
            ),
        };
        let device = Device {
            handle,
            store,
            catalog,
            is_open: AtomicBool::new(true),
            generation: generation(),
            is_serial: AtomicBool::new(config.is_serial),
            limits: Arc::new(Limits::new(config.queue_depth, config.data_tasks)),
            serial_limits: Arc::new(Limits::new(1, 1)),
            serial: OnceLock::new(),
            threads: Mutex::default(),
            completion: Mutex::new(completion),
            spaces: Mutex::default(),
            iterators: Iterators::default(),
            cache: Cache::new(config.value_cache),
            config,
        };
        device.drop_unfinished()?;
        Ok(Arc::new(device))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire) && !self.is_of_parent()
    }

    /// Whether it was opened by the process that has forked this one.
    fn is_of_parent(&self) -> bool {
        self.generation != generation()
    }

    /// `code`, for a device that is not open, and why.
    pub(crate) fn not_open(&self, code: Code) -> Code {
        match self.is_of_parent() {
            true => code::because(
                code,
                "the device was opened before this process was forked; open it after the fork, in one process",
            ),
            false => code,
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Most bytes of a value.
    pub(crate) fn max_value(&self) -> u32 {
        self.config.max_value
    }

    pub(crate) fn is_serial(&self) -> bool {
        self.is_serial.load(Ordering::Relaxed)
    }

    pub(crate) fn set_serial(&self, is_serial: bool) {
        self.is_serial.store(is_serial, Ordering::Relaxed);
    }

    pub(crate) fn is_polled(&self) -> bool {
        self.config.completion == Completion::Polling
    }

    /// Drops the rest of key spaces that were being created or deleted when the process ended.
    /// Trees that the catalog does not name are another program's, whatever they are called.
    fn drop_unfinished(&self) -> Result<(), Code> {
        let failed = |error: Error| code::of(&error);
        let mut unfinished = Vec::new();
        for record in self.catalog.prefix([UNFINISHED]) {
            unfinished.push(record.map_err(failed)?.0);
        }
        for key in unfinished {
            let tree = tree_name(number_of(&key[1..]));
            match self.store.drop_tree(&tree) {
                Ok(()) | Err(Error::NoSuchTree { .. }) => {}
                Err(error) => return Err(failed(error)),
            }
            self.catalog.remove(&key).map_err(failed)?;
        }
        Ok(())
    }

    /// A number that no key space had, and no tree of another program has.
    fn new_id(&self) -> Result<u64, Code> {
        let failed = |error: Error| code::of(&error);
        // Bound: each round finds another tree of the store.
        loop {
            let mut id = 0;
            self.catalog
                .update(LAST_ID, |last| {
                    id = last.map_or(0, number_of).saturating_add(1);
                    Some(id.to_le_bytes().to_vec())
                })
                .map_err(failed)?;
            match self.store.tree(&tree_name(id)) {
                Ok(_) => {}
                Err(Error::NoSuchTree { .. }) => return Ok(id),
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// All key spaces, by name.
    pub(crate) fn entries(&self) -> Result<Vec<(Vec<u8>, Entry)>, Code> {
        let mut entries = Vec::new();
        for record in self.catalog.prefix([NAME]) {
            let (key, value) = record.map_err(|error| code::of(&error))?;
            let entry = Entry::decode(&value).ok_or_else(|| not_a_device(&key))?;
            entries.push((key[1..].to_vec(), entry));
        }
        Ok(entries)
    }

    /// The record of a key space.
    pub(crate) fn entry(&self, name: &[u8]) -> Result<Option<Entry>, Code> {
        let found = self.catalog.get(catalog_key(name));
        let Some(value) = found.map_err(|error| code::of(&error))? else {
            return Ok(None);
        };
        Entry::decode(&value)
            .map(Some)
            .ok_or_else(|| not_a_device(name))
    }

    /// Makes a key space.
    pub(crate) fn create_space(
        &self,
        name: &[u8],
        capacity: u64,
        ordering: u8,
    ) -> Result<(), Code> {
        let _guard = self.spaces.lock();
        if self.entry(name)?.is_some() {
            return Err(KVS_ERR_KS_EXIST);
        }
        if capacity > 0 && capacity > self.unallocated()? {
            return Err(KVS_ERR_DEV_CAPAPCITY);
        }
        let failed = |error: Error| code::of(&error);
        let id = self.new_id()?;
        let entry = Entry {
            id,
            capacity,
            ordering,
        };
        // A crash before the last step leaves a tree, or none, that the next opening drops.
        self.catalog
            .insert(unfinished_key(id), b"")
            .map_err(failed)?;
        self.store.create_tree(&entry.tree_name()).map_err(failed)?;
        let mut finished = WriteBatch::new();
        finished.insert(&self.catalog, catalog_key(name), entry.encode());
        finished.remove(&self.catalog, unfinished_key(id));
        self.store.write(&finished).map_err(failed)
    }

    /// Deletes a key space, and closes it.
    pub(crate) fn delete_space(&self, name: &[u8]) -> Result<(), Code> {
        let mut spaces = self.spaces.lock();
        let entry = self.entry(name)?.ok_or(KVS_ERR_KS_NOT_EXIST)?;
        let failed = |error: Error| code::of(&error);
        // The record first: a crash between the two leaves a tree that the next opening drops.
        let mut begun = WriteBatch::new();
        begun.remove(&self.catalog, catalog_key(name));
        begun.insert(&self.catalog, unfinished_key(entry.id), b"");
        self.store.write(&begun).map_err(failed)?;
        if let Some(space) = spaces.remove(name) {
            space.set_deleted();
            self.iterators.close_of(space.handle);
        }
        // A value that a load in flight still reads is not kept.
        let change = self.cache.change_many(entry.id);
        let dropped = self.store.drop_tree(&entry.tree_name());
        drop(change);
        dropped.map_err(failed)?;
        let removed = self.catalog.remove(unfinished_key(entry.id));
        removed.map(|_| ()).map_err(failed)
    }

    /// Opens a key space.
    pub(crate) fn open_space(
        self: &Arc<Self>,
        name: &[u8],
        handle: usize,
    ) -> Result<Arc<Space>, Code> {
        let mut spaces = self.spaces.lock();
        // Asked with the lock: closing takes out all entries of the list, and none comes in later.
        if !self.is_open() {
            return Err(KVS_ERR_DEV_NOT_OPENED);
        }
        let entry = self.entry(name)?.ok_or(KVS_ERR_KS_NOT_EXIST)?;
        if spaces.contains_key(name) {
            return Err(KVS_ERR_KS_OPEN);
        }
        let tree = self
            .store
            .tree(&entry.tree_name())
            .map_err(|error| code::of(&error))?;
        let is_descending = entry.ordering == 2;
        let id = (handle, entry.id);
        let properties = (entry.capacity, is_descending);
        let space = Space::new(Arc::clone(self), id, name.to_vec(), tree, properties)?;
        let space = Arc::new(space);
        spaces.insert(name.to_vec(), Arc::clone(&space));
        Ok(space)
    }

    /// Closes a key space.
    pub(crate) fn close_space(&self, space: &Space) {
        let mut spaces = self.spaces.lock();
        space.set_closed();
        self.iterators.close_of(space.handle);
        if spaces
            .get(&space.name)
            .is_some_and(|open| open.handle == space.handle)
        {
            spaces.remove(&space.name);
        }
    }

    /// Bytes that the device can hold: what the configuration says, else what the store has and its
    /// file system can give.
    pub(crate) fn capacity(&self) -> u64 {
        if let Some(bytes) = self.config.capacity {
            return bytes;
        }
        let stats = self.store.stats();
        stats.volume_bytes + self.available()
    }

    /// Bytes that the file system can give.
    fn available(&self) -> u64 {
        let path = self.config.path.as_os_str().as_encoded_bytes();
        let Ok(path) = CString::new(path) else {
            return 0;
        };
        // SAFETY: all zeros are a statvfs; the call reads a string that ends with a zero and writes
        // that struct.
        unsafe {
            let mut found: libc::statvfs = std::mem::zeroed();
            match libc::statvfs(path.as_ptr(), &mut found) {
                0 => found.f_bavail * found.f_frsize,
                _ => 0,
            }
        }
    }

    /// Bytes that pages and kept values may still take.
    pub(crate) fn unused_bytes(&self) -> u64 {
        self.store.stats().pool_free_frames * FRAME_BYTES + self.cache.unused_bytes()
    }

    /// Bytes that pages and values take.
    pub(crate) fn used(&self) -> u64 {
        self.store.stats().allocated_bytes
    }

    /// Bytes that no key space has reserved and nothing takes.
    pub(crate) fn unallocated(&self) -> Result<u64, Code> {
        let promised: u64 = self
            .entries()?
            .iter()
            .map(|(_, entry)| entry.capacity)
            .sum();
        Ok(self.capacity().saturating_sub(promised.max(self.used())))
    }

    /// The calling thread's queues.
    pub(crate) fn queues(&self) -> Arc<ThreadQueues> {
        let found = MINE.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            let found = mine.0.iter().find(|(handle, _)| *handle == self.handle);
            if let Some(queues) = found.and_then(|(_, queues)| queues.upgrade()) {
                return queues;
            }
            mine.0.retain(|(_, queues)| queues.strong_count() > 0);
            let queues = self.adopt(false);
            mine.0.push((self.handle, Arc::downgrade(&queues)));
            queues
        });
        found.unwrap_or_else(|_| self.adopt(false))
    }

    /// A transfer of the calling thread begins: what it has in flight only this thread hands over.
    pub(crate) fn enter_transfer(&self) {
        // The thread ends: its entries are gone.
        let _ = TRANSFERS.try_with(|all| all.borrow_mut().push(self.handle));
    }

    /// Refuses to close a device whose requests the calling thread itself is to hand over, later.
    pub(crate) fn check_no_transfer(&self) -> Result<(), Code> {
        let in_transfer = TRANSFERS.try_with(|all| all.borrow().contains(&self.handle));
        match in_transfer.unwrap_or(false) {
            true => Err(code::because(
                KVS_ERR_SYS_IO,
                "a load of this thread uses the device: close it after the load",
            )),
            false => Ok(()),
        }
    }

    /// The last transfer of the calling thread has ended.
    pub(crate) fn leave_transfer() {
        // The thread ends: its entries are gone.
        let _ = TRANSFERS.try_with(|all| all.borrow_mut().pop());
    }

    /// Queues of a thread that has ended, or new ones.
    pub(crate) fn adopt(&self, is_transfer: bool) -> Arc<ThreadQueues> {
        let mut threads = self.threads.lock();
        let free = threads.iter().find(|queues| {
            queues.is_transfer == is_transfer
                && queues.port.in_flight() == 0
                && queues.port.is_orphan.swap(false, Ordering::AcqRel)
        });
        if let Some(queues) = free {
            return Arc::clone(queues);
        }
        let ready = match is_transfer {
            true => None,
            false => self.completion.lock().as_ref().map(CompletionThread::ready),
        };
        let queues = Arc::new(ThreadQueues {
            port: Arc::new(Port::new(ready)),
            lane: OnceLock::new(),
            is_transfer,
        });
        threads.push(Arc::clone(&queues));
        queues
    }

    /// The lane for the thread's requests now.
    pub(crate) fn lane<'q>(&'q self, queues: &'q ThreadQueues) -> &'q Arc<Lane<Request>> {
        let (lane, limits) = match self.is_serial() {
            true => (&self.serial, &self.serial_limits),
            false => (&queues.lane, &self.limits),
        };
        lane.get_or_init(|| Arc::new(Lane::new(self.store.clone(), Arc::clone(limits))))
    }

    /// Submits a request of the calling thread. Waits while that has as many in flight as may be;
    /// inside a callback, which others may wait for, only as long as there are slots.
    pub(crate) fn submit(&self, mut request: Request) -> Result<(), Code> {
        let queues = self.queues();
        let port = &queues.port;
        if !in_callback() && port.in_flight() >= u64::from(self.limits.in_flight()) {
            port.count_wait();
            self.wait_for_room(port);
        }
        // Bound: a slot is free as soon as a request of this thread has completed.
        loop {
            let lane = self.lane(&queues);
            match lane.submit(port, request, || self.is_open()) {
                Ok(()) => return Ok(()),
                Err(Refused::Closed) => return Err(KVS_ERR_DEV_NOT_OPENED),
                Err(Refused::Full(_)) if in_callback() => {
                    let reason = "too many requests in flight to submit more in a callback";
                    return Err(code::because(KVS_ERR_SYS_IO, reason));
                }
                Err(Refused::Full(back)) => {
                    request = back;
                    self.wait_for_room(port);
                }
            }
        }
    }

    /// Does what a direct call asks for: on this thread, or in its turn in the serial channel.
    pub(crate) fn call(&self, mut request: Request) -> Result<(), Code> {
        use crate::concurrency::Request as _;
        let queues = self.queues();
        let port = &queues.port;
        if !self.is_serial() {
            port.count_issued();
            request.run();
            port.count_completed(request.has_failed(), request.bytes());
            return into_result(request.result());
        }
        // Bound: as in `submit`.
        loop {
            let lane = self.lane(&queues);
            match lane.call(port, request, || self.is_open()) {
                Ok(done) => return into_result(done.map_or(KVS_ERR_SYS_IO, |done| done.result())),
                Err(Refused::Closed) => return Err(KVS_ERR_DEV_NOT_OPENED),
                Err(Refused::Full(back)) => {
                    request = back;
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Waits until the thread may have one more request in flight. If the program polls, this
    /// hands results over.
    fn wait_for_room(&self, port: &Arc<Port<Request>>) {
        // Each round, the limits as they are now.
        let has_room = || port.in_flight() < u64::from(self.limits.in_flight());
        while !has_room() {
            match self.is_polled() {
                true => {
                    // Another thread, which closes the device, may take the results.
                    port.wait_until(None, || port.has_completions() || has_room());
                    while let Some(request) = port.poll() {
                        request.complete();
                    }
                }
                false => {
                    // Several are submitted after one wait: a quarter of what the data tasks do not
                    // work on.
                    let limit = self.limits.in_flight();
                    let spare = limit.saturating_sub(self.limits.data_tasks()) / 4;
                    // Raising a limit wakes no waiter: it looks again.
                    let pause = std::time::Duration::from_millis(10);
                    port.wait_for_room(u64::from(limit - spare.max(1)), pause);
                }
            }
        }
    }

    /// The numbers of all threads together, and how many of them live.
    pub(crate) fn counters(&self) -> (Counters, u32) {
        let threads = self.threads.lock();
        let mut sum = Counters::default();
        let mut live = 0;
        for queues in threads.iter() {
            sum.add(queues.port.counters());
            live += u32::from(!queues.port.is_orphan.load(Ordering::Relaxed));
        }
        (sum, live)
    }

    /// Closes the device: refuses new requests, waits for those in flight, calls the callbacks
    /// that are left.
    pub(crate) fn close(&self) -> Result<(), Code> {
        if !self.is_open.swap(false, Ordering::SeqCst) {
            return Err(KVS_ERR_DEV_NOT_EXIST);
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        // In a callback of the device, too: of what this thread hands over only the callbacks that
        // run are not waited for, and those count as handed over.
        let thread = self.completion.lock();
        let hands_over =
            self.is_polled() || thread.as_ref().is_some_and(CompletionThread::is_current);
        drop(thread);
        let pause = Some(std::time::Duration::from_millis(1));
        for queues in &threads {
            let port = &queues.port;
            while port.in_flight() > 0 {
                if !hands_over || queues.is_transfer {
                    port.wait_until(pause, || port.in_flight() == 0);
                    continue;
                }
                match port.poll() {
                    Some(request) => request.complete(),
                    None => {
                        port.wait_until(pause, || port.has_completions());
                    }
                }
            }
        }
        let thread = self.completion.lock().take();
        if let Some(mut thread) = thread {
            thread.stop();
        }
        for (_, space) in self.spaces.lock().drain() {
            space.set_closed();
        }
        self.iterators.close_all();
        self.store.clone().close().map_err(|error| code::of(&error))
    }
}

/// How many handles were given out. Those of devices are even, those of key spaces odd.
static HANDLES: AtomicU32 = AtomicU32::new(1);

/// A device's handle, which nothing else of this process ever has.
pub(crate) fn new_device_handle() -> usize {
    HANDLES.fetch_add(1, Ordering::Relaxed) as usize * 2
}

/// A key space's handle, which nothing else of this process ever has.
pub(crate) fn new_space_handle() -> usize {
    HANDLES.fetch_add(1, Ordering::Relaxed) as usize * 2 + 1
}

/// Whether a handle was once a key space's. One that failed to be opened counts: its handle was
/// never given out.
pub(crate) fn was_space(handle: usize) -> bool {
    let number = handle / 2;
    handle % 2 == 1 && number > 0 && number < HANDLES.load(Ordering::Relaxed) as usize
}

/// A number as the catalog has it.
fn number_of(record: &[u8]) -> u64 {
    record.try_into().map_or(0, u64::from_le_bytes)
}

fn into_result(result: super::types::kvs_result) -> Result<(), Code> {
    match result {
        KVS_SUCCESS => Ok(()),
        code => Err(code),
    }
}

fn tree_name(id: u64) -> String {
    format!("{TREE_PREFIX}{id}")
}

fn unfinished_key(id: u64) -> Vec<u8> {
    [&[UNFINISHED], &id.to_le_bytes()[..]].concat()
}

fn catalog_key(name: &[u8]) -> Vec<u8> {
    [&[NAME], name].concat()
}

fn not_a_device(name: &[u8]) -> Code {
    let name = String::from_utf8_lossy(name);
    code::because(
        KVS_ERR_SYS_IO,
        format!("the record of key space {name:?} is malformed"),
    )
}

fn open_code(error: &OpenError) -> Code {
    message::set(error.to_string());
    match error {
        OpenError::BadOption { .. } => KVS_ERR_PARAM_INVALID,
        OpenError::NotAStore { .. } => KVS_ERR_DEV_NOT_EXIST,
        _ => KVS_ERR_SYS_IO,
    }
}

/// Whether a length may be that of a key.
pub(crate) fn is_key_length(length: usize) -> bool {
    (limits::MIN_KEY_LENGTH as usize..=limits::MAX_KEY_LENGTH as usize).contains(&length)
}
