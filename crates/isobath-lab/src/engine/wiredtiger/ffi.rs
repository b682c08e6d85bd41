//! WiredTiger behind a safe face. All `unsafe` of the adapter is here.
//!
//! A connection may be used from many threads (the library's documentation says so); a session,
//! with its cursors, stays on the thread that opened it: it is neither `Send` nor `Sync`, as it
//! holds a raw pointer.
#![expect(unsafe_code, reason = "foreign function interface of WiredTiger")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{ptr, slice};

/// An object that only the library looks into.
type Opaque = c_void;

/// `ISO_ABSENT` of shim.c.
const ABSENT: c_int = 1_000_001;
/// `ISO_CONFLICT` of shim.c.
const CONFLICT: c_int = 1_000_002;

unsafe extern "C" {
    fn iso_wt_open(path: *const c_char, config: *const c_char, out: *mut *mut Opaque) -> c_int;
    fn iso_wt_close(connection: *mut Opaque) -> c_int;
    fn iso_wt_message(code: c_int) -> *const c_char;
    fn iso_wt_version() -> *const c_char;
    fn iso_wt_create(connection: *mut Opaque, uri: *const c_char, config: *const c_char) -> c_int;
    fn iso_wt_checkpoint(connection: *mut Opaque) -> c_int;
    fn iso_wt_session_open(
        connection: *mut Opaque,
        config: *const c_char,
        uris: *const *const c_char,
        tables: usize,
        bulk: c_int,
        out: *mut *mut Opaque,
    ) -> c_int;
    fn iso_wt_session_close(session: *mut Opaque);
    fn iso_wt_begin(session: *mut Opaque) -> c_int;
    fn iso_wt_commit(session: *mut Opaque) -> c_int;
    fn iso_wt_rollback(session: *mut Opaque) -> c_int;
    fn iso_wt_get(
        session: *mut Opaque,
        table: usize,
        key: *const u8,
        key_bytes: usize,
        value: *mut *const u8,
        value_bytes: *mut usize,
    ) -> c_int;
    fn iso_wt_put(
        session: *mut Opaque,
        table: usize,
        key: *const u8,
        key_bytes: usize,
        value: *const u8,
        value_bytes: usize,
    ) -> c_int;
    fn iso_wt_delete(session: *mut Opaque, table: usize, key: *const u8, key_bytes: usize)
    -> c_int;
    fn iso_wt_seek(session: *mut Opaque, table: usize, key: *const u8, key_bytes: usize) -> c_int;
    fn iso_wt_next(session: *mut Opaque, table: usize) -> c_int;
    fn iso_wt_current(
        session: *mut Opaque,
        table: usize,
        key: *mut *const u8,
        key_bytes: *mut usize,
        value: *mut *const u8,
        value_bytes: *mut usize,
    ) -> c_int;
    fn iso_wt_reset(session: *mut Opaque, table: usize) -> c_int;
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// Another transaction was in the way.
    Conflict,
    /// The library's message.
    Other(String),
}

fn checked(code: c_int) -> Result<(), Failed> {
    match code {
        0 => Ok(()),
        CONFLICT => Err(Failed::Conflict),
        code => {
            // SAFETY: the library answers a NUL-terminated string that stays until the thread asks
            // again.
            let message = unsafe { CStr::from_ptr(iso_wt_message(code)) };
            Err(Failed::Other(message.to_string_lossy().into_owned()))
        }
    }
}

/// `false` if there is no record.
fn found(code: c_int) -> Result<bool, Failed> {
    match code {
        ABSENT => Ok(false),
        code => checked(code).map(|()| true),
    }
}

fn text(text: impl Into<Vec<u8>>) -> Result<CString, Failed> {
    CString::new(text).map_err(|_| Failed::Other("a text contains a zero byte".to_owned()))
}

/// # Safety
/// `data` is valid for `bytes`, or `bytes` is 0, for as long as the answer is used.
unsafe fn bytes<'b>(data: *const u8, bytes: usize) -> &'b [u8] {
    match bytes {
        0 => &[],
        // SAFETY: the caller guarantees this.
        _ => unsafe { slice::from_raw_parts(data, bytes) },
    }
}

pub(super) fn version() -> String {
    // SAFETY: a constant of the library.
    let version = unsafe { CStr::from_ptr(iso_wt_version()) };
    version.to_string_lossy().into_owned()
}

/// An open database.
pub(super) struct Connection {
    connection: *mut Opaque,
    uris: Vec<CString>,
}

// SAFETY: the library's documentation says that a connection may be shared by threads.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl Connection {
    /// Opens the directory, and makes the tables that it lacks.
    pub(super) fn open(
        path: &Path,
        config: &str,
        tables: &[&str],
        table_config: &str,
    ) -> Result<Connection, Failed> {
        let uris = tables.iter().map(|name| text(format!("table:{name}")));
        let uris = uris.collect::<Result<Vec<_>, _>>()?;
        let (path, config) = (text(path.as_os_str().as_bytes())?, text(config)?);
        let table_config = text(table_config)?;
        let mut connection = ptr::null_mut();
        // SAFETY: all texts are NUL-terminated and outlive the call.
        checked(unsafe { iso_wt_open(path.as_ptr(), config.as_ptr(), &raw mut connection) })?;
        let opened = Connection { connection, uris };
        for uri in &opened.uris {
            // SAFETY: as above, and the connection is open.
            checked(unsafe { iso_wt_create(connection, uri.as_ptr(), table_config.as_ptr()) })?;
        }
        Ok(opened)
    }

    /// A session over all tables, or, for loading in order, over one.
    pub(super) fn session(&self, config: &str, bulk: Option<usize>) -> Result<Session<'_>, Failed> {
        let config = text(config)?;
        let uris = match bulk {
            Some(table) => &self.uris[table..=table],
            None => &self.uris[..],
        };
        let pointers: Vec<*const c_char> = uris.iter().map(|uri| uri.as_ptr()).collect();
        let mut session = ptr::null_mut();
        // SAFETY: the connection is open, the array has `len` texts, and all outlive the call.
        checked(unsafe {
            iso_wt_session_open(
                self.connection,
                config.as_ptr(),
                pointers.as_ptr(),
                pointers.len(),
                bulk.is_some().into(),
                &raw mut session,
            )
        })?;
        Ok(Session {
            session,
            _connection: self,
        })
    }

    /// Writes everything to the files.
    pub(super) fn checkpoint(&self) -> Result<(), Failed> {
        // SAFETY: the connection is open.
        checked(unsafe { iso_wt_checkpoint(self.connection) })
    }

    /// Closes, and says what failed at that.
    pub(super) fn close(self) -> Result<(), Failed> {
        let connection = self.connection;
        // `Drop` would close it a second time.
        std::mem::forget(self);
        // SAFETY: sessions borrow the connection, so there are none.
        checked(unsafe { iso_wt_close(connection) })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: as in `close`; here a failure is of an opening that failed already.
        unsafe { iso_wt_close(self.connection) };
    }
}

/// One thread's way in.
pub(super) struct Session<'c> {
    session: *mut Opaque,
    _connection: &'c Connection,
}

impl Session<'_> {
    pub(super) fn begin(&mut self) -> Result<(), Failed> {
        // SAFETY: the session is open, as in all that follows.
        checked(unsafe { iso_wt_begin(self.session) })
    }

    pub(super) fn commit(&mut self) -> Result<(), Failed> {
        // SAFETY: as above.
        checked(unsafe { iso_wt_commit(self.session) })
    }

    pub(super) fn roll_back(&mut self) -> Result<(), Failed> {
        // SAFETY: as above.
        checked(unsafe { iso_wt_rollback(self.session) })
    }

    /// `false` if the key is absent.
    pub(super) fn get(
        &mut self,
        table: usize,
        key: &[u8],
        visit: impl FnOnce(&[u8]),
    ) -> Result<bool, Failed> {
        let (mut value, mut len) = (ptr::null(), 0);
        // SAFETY: the key is valid for its length; the value is until the cursor is reset, which is
        // after `visit`.
        unsafe {
            let code = iso_wt_get(
                self.session,
                table,
                key.as_ptr(),
                key.len(),
                &raw mut value,
                &raw mut len,
            );
            if !found(code)? {
                return Ok(false);
            }
            visit(bytes(value, len));
            checked(iso_wt_reset(self.session, table))?;
        }
        Ok(true)
    }

    pub(super) fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), Failed> {
        // SAFETY: key and value are valid for their lengths during the call; the insertion copies
        // them.
        checked(unsafe {
            iso_wt_put(
                self.session,
                table,
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
            )
        })
    }

    pub(super) fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), Failed> {
        // SAFETY: the key is valid for its length.
        checked(unsafe { iso_wt_delete(self.session, table, key.as_ptr(), key.len()) })
    }

    /// Visits records from `from` on until `visit` says `false`.
    pub(super) fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Failed> {
        // SAFETY: the key is valid for its length; key and value of the record are until the cursor
        // moves.
        unsafe {
            let mut code = iso_wt_seek(self.session, table, from.as_ptr(), from.len());
            while found(code)? {
                let (mut key, mut key_bytes) = (ptr::null(), 0);
                let (mut value, mut value_bytes) = (ptr::null(), 0);
                checked(iso_wt_current(
                    self.session,
                    table,
                    &raw mut key,
                    &raw mut key_bytes,
                    &raw mut value,
                    &raw mut value_bytes,
                ))?;
                if !visit(bytes(key, key_bytes), bytes(value, value_bytes)) {
                    break;
                }
                code = iso_wt_next(self.session, table);
            }
            checked(iso_wt_reset(self.session, table))
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by `Connection::session`, closed once; an open transaction is rolled back
        // by that.
        unsafe { iso_wt_session_close(self.session) };
    }
}
