//! Trees.

use std::cell::RefCell;

use isobath::WriteBatch;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator, PyList, PyMemoryView, PySequence, PyTuple};

use crate::bytes::{Buffer, Keys};
use crate::cursor::{Batch, Cursor, Gives};
use crate::errors::Failure;
use crate::operation::{Answer, Operation};
use crate::source::{Extent, Part, Source};
use crate::store::{Store, go_on};
use crate::transaction::Transaction;
use crate::value::{Content, Reader, Writer};
use crate::waiting::{Progress, run};

/// Keys that are read, counted or removed between two looks for signals.
const KEYS_AT_ONCE: usize = 4096;
const COUNTED_AT_ONCE: usize = 1 << 16;
/// Records, and bytes of these, that a call takes from an iterable before it releases the GIL.
const TAKEN_AT_ONCE: usize = 1024;
const TAKEN_BYTES: usize = 1 << 20;
/// Bytes of a value that its buffer is kept after, for the thread's next call.
const KEPT_BYTES: usize = 64 << 10;

thread_local! {
    static VALUE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A tree, or what a transaction sees of it. `isobath.Tree` adds what needs no native code.
#[pyclass(subclass, frozen, weakref, mapping, module = "isobath._native")]
pub(crate) struct Tree {
    source: Source,
    owner: Py<PyAny>,
}

type Value<'py> = Option<Bound<'py, PyBytes>>;

impl Tree {
    /// The value of a key.
    #[inline]
    fn value<'py>(&self, py: Python<'py>, key: &[u8]) -> Result<Value<'py>, Failure> {
        let mut value = VALUE.take();
        let found = py.detach(|| self.source.get_into(key, &mut value));
        let bytes = found.map(|found| found.then(|| PyBytes::new(py, &value)));
        if value.capacity() <= KEPT_BYTES {
            VALUE.set(value);
        }
        bytes
    }

    /// The values of some keys.
    fn values<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyList>> {
        let keys = keys.iter_borrowed().map(|key| key.extract());
        let keys: Vec<Buffer<'_>> = keys.collect::<PyResult<_>>()?;
        let found = py.detach(|| Found::read(&self.source, &keys))?;
        let value = |at| found.value(at).map(|value| PyBytes::new(py, value));
        PyList::new(py, (0..keys.len()).map(value))
    }

    fn remove(&self, py: Python<'_>, key: &[u8]) -> Result<bool, Failure> {
        py.detach(|| {
            self.source
                .change(|tree| tree.remove(key), |open, tree| open.remove(tree, key))
        })
    }

    fn record<'py>(
        py: Python<'py>,
        record: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        record.map(|(key, value)| (PyBytes::new(py, &key), PyBytes::new(py, &value)))
    }

    /// Starts work on the tree as a task.
    fn start(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<Answer, Failure> + Send + 'static,
    ) -> PyResult<Operation> {
        // A transaction's lock is not for tasks: its worker would wait with one.
        let tree = self.plain()?.clone();
        let store = self.owner.bind(py).cast::<Store>()?.get().open()?;
        let task = py.detach(|| store.spawn(work));
        Ok(Operation::new(async move {
            match task.await {
                Ok(answer) => answer,
                Err(panic) => {
                    // It was not run if the store is closed.
                    tree.contains_async(b"").await?;
                    let message = panic.to_string();
                    Err(isobath::Error::TaskPanicked { message }.into())
                }
            }
        }))
    }

    pub(crate) fn plain(&self) -> Result<&isobath::Tree, Failure> {
        match self.source.open {
            None => Ok(&self.source.tree),
            Some(_) => Err(Failure::Value(
                "this belongs to no transaction: call it on a tree of the store".to_owned(),
            )),
        }
    }
}

#[pymethods]
impl Tree {
    /// A tree of a store by its name; or a tree as a transaction sees it.
    #[new]
    fn new(
        py: Python<'_>,
        owner: &Bound<'_, PyAny>,
        tree: &Bound<'_, PyAny>,
        how: &str,
    ) -> PyResult<Tree> {
        let source = if let Ok(transaction) = owner.cast::<Transaction>() {
            let tree = tree.cast::<Tree>()?.get();
            Source {
                tree: tree.source.tree.clone(),
                open: Some(transaction.get().open()?.clone()),
            }
        } else {
            let store = owner.cast::<Store>()?.get().open()?;
            let name = tree.extract::<&str>()?;
            let tree = py.detach(|| match how {
                "create" => store.create_tree(name),
                "open_or_create" => store.open_or_create_tree(name),
                _ => store.tree(name),
            });
            Source {
                tree: tree.map_err(Failure::from)?,
                open: None,
            }
        };
        Ok(Tree {
            source,
            owner: owner.clone().unbind(),
        })
    }

    /// Cycles through a store's attributes, as a subclass may have them, can be collected.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.owner)
    }

    /// The tree's name.
    #[getter]
    fn name(&self) -> &str {
        self.source.tree.name()
    }

    /// The store, or the transaction that this is a view of.
    #[getter]
    fn owner(&self, py: Python<'_>) -> Py<PyAny> {
        self.owner.clone_ref(py)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: Buffer<'_>) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.value(py, &key)?;
        Ok(value.ok_or_else(|| Failure::Missing(key.to_vec()))?)
    }

    /// The value of a key, or `default`.
    #[pyo3(signature = (key, default=None, /))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: Buffer<'_>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.value(py, &key)?;
        Ok(value.map(Bound::into_any).or(default))
    }

    /// The value of a key as a read-only buffer: the engine's own copy. `None` if there is none.
    fn view<'py>(
        &self,
        py: Python<'py>,
        key: Buffer<'_>,
    ) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        let mut value = Vec::new();
        if !py.detach(|| self.source.get_into(&key, &mut value))? {
            return Ok(None);
        }
        let content = Bound::new(py, Content(value))?;
        PyMemoryView::from(&content).map(Some)
    }

    /// A part of the value of a key, as `self[key][start:stop]`; nothing else of a large value is
    /// read. `None` if there is no value.
    #[pyo3(signature = (key, start=None, stop=None))]
    fn part<'py>(
        &self,
        py: Python<'py>,
        key: Buffer<'_>,
        start: Option<i64>,
        stop: Option<i64>,
    ) -> PyResult<Value<'py>> {
        let bytes = py.detach(|| self.source.part(&key, Part { start, stop }))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    fn __contains__(&self, py: Python<'_>, key: Buffer<'_>) -> PyResult<bool> {
        let found = py.detach(|| {
            self.source.read(
                |tree| tree.contains(&key),
                |open, tree| open.contains(tree, &key),
            )
        });
        Ok(found?)
    }

    fn __setitem__(&self, py: Python<'_>, key: Buffer<'_>, value: Buffer<'_>) -> PyResult<()> {
        let done = py.detach(|| {
            self.source.change(
                |tree| tree.insert(&key, &value),
                |open, tree| open.insert(tree, &key, &value),
            )
        });
        Ok(done?)
    }

    fn __delitem__(&self, py: Python<'_>, key: Buffer<'_>) -> PyResult<()> {
        match self.remove(py, &key)? {
            true => Ok(()),
            false => Err(Failure::Missing(key.to_vec()).into()),
        }
    }

    /// Removes a key; whether it had a value.
    fn discard(&self, py: Python<'_>, key: Buffer<'_>) -> PyResult<bool> {
        Ok(self.remove(py, &key)?)
    }

    /// Takes the value of a key away: the value, or `None`.
    fn take<'py>(&self, py: Python<'py>, key: Buffer<'_>) -> PyResult<Value<'py>> {
        // Bound: each round but the last finds that another change of the key has succeeded.
        loop {
            let Some(old) = self.value(py, &key)? else {
                return Ok(None);
            };
            let bytes = old.as_bytes();
            if py.detach(|| self.source.compare_and_swap(&key, Some(bytes), None))? {
                return Ok(Some(old));
            }
            py.check_signals()?;
        }
    }

    /// Gives a key the value `new` if it has the value `old`, in one step; `None` stands for no
    /// value. Whether it had.
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: Buffer<'_>,
        old: Option<Buffer<'_>>,
        new: Option<Buffer<'_>>,
    ) -> PyResult<bool> {
        let swapped = py.detach(|| {
            self.source
                .compare_and_swap(&key, old.as_deref(), new.as_deref())
        });
        Ok(swapped?)
    }

    /// Gives a key the value that a function makes of its value, `None` standing for none.
    fn modify<'py>(
        &self,
        py: Python<'py>,
        key: Buffer<'_>,
        function: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Bound: as in `take`.
        loop {
            let old = self.value(py, &key)?;
            let result = function.call1((&old,))?;
            let new: Option<Buffer<'_>> = match result.is_none() {
                true => None,
                false => Some(result.extract()?),
            };
            let old = old.as_ref().map(|old| old.as_bytes());
            let swap = || self.source.compare_and_swap(&key, old, new.as_deref());
            if py.detach(swap)? {
                return Ok(result);
            }
            py.check_signals()?;
        }
    }

    /// The values of many keys, in their order.
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut chunks = Chunks::of(keys)?;
        let mut values = self.values(py, &chunks.next()?)?;
        // Bound: an endless iterable ends with ^C.
        loop {
            let chunk = chunks.next()?;
            if chunk.is_empty() {
                return Ok(values);
            }
            py.check_signals()?;
            let more = self.values(py, &chunk)?;
            values = values
                .as_sequence()
                .in_place_concat(more.as_sequence())?
                .cast_into()?;
        }
    }

    /// Gives many keys their values, all at once.
    fn put_many(&self, py: Python<'_>, items: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut items = Items(items.try_iter()?);
        let mut batch = WriteBatch::new();
        let tree = &self.source.tree;
        items.for_each(py, |records| match &self.source.open {
            None => {
                for (key, value) in records {
                    batch.insert(tree, key, value);
                }
                Ok(())
            }
            Some(_) => {
                let nothing = |_: &isobath::Tree| Ok(());
                self.source.change(nothing, |open, tree| {
                    let mut records = records.iter();
                    records.try_for_each(|(key, value)| open.insert(tree, key, value))
                })
            }
        })?;
        if batch.is_empty() {
            return Ok(());
        }
        let owner = self.owner.bind(py).cast::<Store>()?.get();
        let store = owner.open()?;
        Ok(py.detach(|| store.write(&batch)).map_err(Failure::from)?)
    }

    /// Loads records in any order; how many there are.
    fn load(
        &self,
        py: Python<'_>,
        items: &Bound<'_, PyAny>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        // What it has spilled is dropped without the GIL, too.
        let mut loader = self.plain()?.loader().map_err(Failure::from)?;
        let taken = Items(items.try_iter()?).for_each(py, |records| {
            for (key, value) in records {
                loader.push(key, value)?;
            }
            Ok(())
        });
        if let Err(error) = taken {
            py.detach(|| drop(loader));
            return Err(error);
        }
        run(py, Progress::new(progress), true, move |work| {
            let mut watch = |_: &'static str, done, total| go_on(work.tell(done, total));
            Ok(loader.finish(&mut watch)?)
        })
    }

    /// Iterates over the records of a range.
    #[pyo3(signature = (gives, start, stop, prefix, reverse))]
    fn cursor(
        &self,
        py: Python<'_>,
        gives: &str,
        start: Option<Buffer<'_>>,
        stop: Option<Buffer<'_>>,
        prefix: Option<Buffer<'_>>,
        reverse: bool,
    ) -> PyResult<Cursor> {
        let keys = Keys::of(start, stop, prefix);
        let owner = self.owner.clone_ref(py);
        Ok(Cursor::new(
            self.source.clone(),
            keys,
            Gives::of(gives),
            reverse,
            owner,
        ))
    }

    /// The number of keys of a range.
    #[pyo3(signature = (start=None, stop=None, prefix=None))]
    fn count(
        &self,
        py: Python<'_>,
        start: Option<Buffer<'_>>,
        stop: Option<Buffer<'_>>,
        prefix: Option<Buffer<'_>>,
    ) -> PyResult<u64> {
        let mut keys = Keys::of(start, stop, prefix);
        let mut count = 0;
        let extent = Extent {
            is_reverse: false,
            keys_only: true,
            records: COUNTED_AT_ONCE,
            bytes: usize::MAX,
        };
        while !py.detach(|| self.source.visit(&mut keys, extent, |_, _, _| count += 1))? {
            py.check_signals()?;
        }
        Ok(count)
    }

    /// Removes the keys of a range; how many there were.
    #[pyo3(signature = (start=None, stop=None, prefix=None))]
    fn remove_range(
        &self,
        py: Python<'_>,
        start: Option<Buffer<'_>>,
        stop: Option<Buffer<'_>>,
        prefix: Option<Buffer<'_>>,
    ) -> PyResult<u64> {
        let mut keys = Keys::of(start, stop, prefix);
        let mut removed = 0;
        let extent = Extent {
            is_reverse: false,
            keys_only: true,
            records: KEYS_AT_ONCE,
            bytes: usize::MAX,
        };
        // Bound: each round removes the first keys that are left of the range.
        loop {
            let whole = keys.clone();
            let (count, is_last) = py.detach(|| -> Result<(u64, bool), Failure> {
                let is_last = self.source.visit(&mut keys, extent, |_, _, _| {})?;
                let part = match is_last {
                    true => whole,
                    false => whole.up_to(&keys),
                };
                let count = self.source.change(
                    |tree| tree.remove_range(part.bounds()),
                    |open, tree| open.remove_range(tree, part.bounds()),
                )?;
                Ok((count, is_last))
            })?;
            removed += count;
            if is_last {
                return Ok(removed);
            }
            py.check_signals()?;
        }
    }

    /// Removes the first record and returns it; `None` if there is none.
    fn pop_first<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let record = py.detach(|| {
            self.source
                .change(isobath::Tree::pop_first, |open, tree| open.pop_first(tree))
        })?;
        let record = Tree::record(py, record);
        record
            .map(|record| record.into_bound_py_any(py))
            .transpose()
    }

    /// Removes the last record and returns it; `None` if there is none.
    fn pop_last<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let record = py.detach(|| {
            self.source
                .change(isobath::Tree::pop_last, |open, tree| open.pop_last(tree))
        })?;
        let record = Tree::record(py, record);
        record
            .map(|record| record.into_bound_py_any(py))
            .transpose()
    }

    /// Reads a value piece by piece.
    fn reader(&self, py: Python<'_>, key: Buffer<'_>) -> PyResult<Reader> {
        let reader = py.detach(|| {
            self.source.read(
                |tree| tree.reader(&key),
                |open, tree| open.reader(tree, &key),
            )
        })?;
        let reader = reader.ok_or_else(|| Failure::Missing(key.to_vec()))?;
        Ok(Reader::new(reader))
    }

    /// Writes a value piece by piece.
    fn writer(&self, py: Python<'_>, key: Buffer<'_>) -> PyResult<Writer> {
        let tree = self.plain()?;
        let writer = py.detach(|| tree.writer(&key)).map_err(Failure::from)?;
        Ok(Writer::new(writer))
    }

    fn start_get(&self, py: Python<'_>, key: Buffer<'_>) -> PyResult<Operation> {
        let tree = self.plain()?;
        let value = py.detach(|| tree.get_async(&key));
        Ok(Operation::new(async { Ok(Answer::Value(value.await?)) }))
    }

    #[pyo3(signature = (key, start, stop))]
    fn start_part(
        &self,
        py: Python<'_>,
        key: Buffer<'_>,
        start: Option<i64>,
        stop: Option<i64>,
    ) -> PyResult<Operation> {
        let (source, key) = (self.source.clone(), key.to_vec());
        let part = Part { start, stop };
        self.start(py, move || Ok(Answer::Value(source.part(&key, part)?)))
    }

    fn start_get_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Operation> {
        let tree = self.plain()?;
        let mut taken: Vec<Vec<u8>> = Vec::new();
        for key in keys.try_iter()? {
            taken.push(key?.extract::<Buffer<'_>>()?.to_vec());
        }
        let values = py.detach(|| tree.get_many_async(&taken));
        Ok(Operation::new(async { Ok(Answer::Values(values.await?)) }))
    }

    fn start_put(&self, py: Python<'_>, key: Buffer<'_>, value: Buffer<'_>) -> PyResult<Operation> {
        let tree = self.plain()?;
        let done = py.detach(|| tree.insert_async(&key, &value));
        Ok(Operation::new(async {
            done.await?;
            Ok(Answer::Nothing)
        }))
    }

    fn start_discard(&self, py: Python<'_>, key: Buffer<'_>) -> PyResult<Operation> {
        let tree = self.plain()?;
        let removed = py.detach(|| tree.remove_async(&key));
        Ok(Operation::new(async {
            Ok(Answer::Whether(removed.await?))
        }))
    }

    /// Reads some records of a range; whether these are the last.
    #[expect(clippy::too_many_arguments, reason = "as `cursor`, and how many")]
    #[pyo3(signature = (gives, start, stop, prefix, reverse, records))]
    fn start_range(
        &self,
        py: Python<'_>,
        gives: &str,
        start: Option<Buffer<'_>>,
        stop: Option<Buffer<'_>>,
        prefix: Option<Buffer<'_>>,
        reverse: bool,
        records: usize,
    ) -> PyResult<Operation> {
        let mut keys = Keys::of(start, stop, prefix);
        let gives = Gives::of(gives);
        let source = self.source.clone();
        self.start(py, move || {
            let (batch, is_last) = Batch::read(&source, &mut keys, gives, reverse, records)?;
            Ok(Answer::Records(gives, batch, is_last))
        })
    }

    /// About how many records there are, from some of the leaves.
    fn estimate_len(&self, py: Python<'_>) -> PyResult<u64> {
        let tree = self.plain()?;
        Ok(py.detach(|| tree.estimate_len()).map_err(Failure::from)?)
    }

    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tree = self.plain()?;
        let stats = py.detach(|| tree.stats()).map_err(Failure::from)?;
        let dict = PyDict::new(py);
        dict.set_item("is_exact", stats.is_exact)?;
        dict.set_item("levels", stats.levels)?;
        dict.set_item("leaf_pages", stats.leaf_pages)?;
        dict.set_item("inner_pages", stats.inner_pages)?;
        dict.set_item("records", stats.records)?;
        dict.set_item("key_bytes", stats.key_bytes)?;
        dict.set_item("value_bytes", stats.value_bytes)?;
        dict.set_item("large_values", stats.large_values)?;
        dict.set_item("large_value_bytes", stats.large_value_bytes)?;
        dict.set_item("bytes", stats.bytes)?;
        dict.set_item("leaf_fill", stats.leaf_fill)?;
        dict.set_item("memory_records", stats.memory_records)?;
        dict.set_item("runs", stats.runs)?;
        dict.set_item("run_records", stats.run_records)?;
        dict.set_item("run_bytes", stats.run_bytes)?;
        Ok(dict)
    }
}

/// An iterable of keys, some at a time.
enum Chunks<'py> {
    /// A list or tuple, and how many of it were taken.
    Sequence(Bound<'py, PySequence>, usize),
    Iterator(Bound<'py, PyIterator>),
}

impl<'py> Chunks<'py> {
    fn of(keys: &Bound<'py, PyAny>) -> PyResult<Chunks<'py>> {
        if keys.is_instance_of::<PyList>() || keys.is_instance_of::<PyTuple>() {
            return Ok(Chunks::Sequence(keys.cast::<PySequence>()?.clone(), 0));
        }
        Ok(Chunks::Iterator(keys.try_iter()?))
    }

    /// The next keys; none at the end.
    fn next(&mut self) -> PyResult<Bound<'py, PyTuple>> {
        match self {
            Chunks::Sequence(keys, taken) => {
                let first = *taken;
                *taken += KEYS_AT_ONCE;
                keys.get_slice(first, *taken)?.to_tuple()
            }
            Chunks::Iterator(keys) => {
                let py = keys.py();
                let taken = keys.by_ref().take(KEYS_AT_ONCE);
                PyTuple::new(py, taken.collect::<PyResult<Vec<_>>>()?)
            }
        }
    }
}

/// The values of many keys, one after another.
#[derive(Default)]
struct Found {
    bytes: Vec<u8>,
    /// By the indexes of the keys: where the value begins, and its length.
    places: Vec<Option<(usize, usize)>>,
}

impl Found {
    fn read(source: &Source, keys: &[Buffer<'_>]) -> Result<Found, Failure> {
        let mut found = Found {
            bytes: Vec::new(),
            places: vec![None; keys.len()],
        };
        if source.open.is_some() {
            let nothing = |_: &isobath::Tree| Ok(Vec::new());
            let values = source.read(nothing, |open, tree| open.get_many(tree, keys))?;
            for (at, value) in values.iter().enumerate() {
                found.take(at, value.as_deref());
            }
        } else {
            source
                .tree
                .get_each(keys, |at, value| found.take(at, value))?;
        }
        Ok(found)
    }

    fn take(&mut self, at: usize, value: Option<&[u8]>) {
        self.places[at] = value.map(|value| (self.bytes.len(), value.len()));
        self.bytes.extend_from_slice(value.unwrap_or_default());
    }

    fn value(&self, at: usize) -> Option<&[u8]> {
        let (first, length) = self.places[at]?;
        Some(&self.bytes[first..first + length])
    }
}

/// Pairs of an iterable.
struct Items<'py>(Bound<'py, PyIterator>);

impl<'py> Items<'py> {
    /// Calls `take` with some pairs at a time, without the GIL.
    fn for_each(
        &mut self,
        py: Python<'py>,
        mut take: impl FnMut(&[(Buffer<'_>, Buffer<'_>)]) -> Result<(), Failure> + Send,
    ) -> PyResult<()> {
        loop {
            let pairs = self.some()?;
            if pairs.is_empty() {
                return Ok(());
            }
            let records: Vec<(Buffer<'_>, Buffer<'_>)> = pairs
                .iter()
                .map(|(key, value)| Ok((key.extract()?, value.extract()?)))
                .collect::<PyResult<_>>()?;
            py.detach(|| take(&records))?;
            py.check_signals()?;
        }
    }

    fn some(&mut self) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let mut pairs = Vec::new();
        let mut bytes = 0;
        while pairs.len() < TAKEN_AT_ONCE && bytes < TAKEN_BYTES {
            let Some(item) = self.0.next().transpose()? else {
                break;
            };
            let (key, value): (Bound<'py, PyAny>, Bound<'py, PyAny>) = item
                .extract()
                .map_err(|_| PyTypeError::new_err("each item is a pair (key, value)"))?;
            bytes += value.len().unwrap_or(0);
            pairs.push((key, value));
        }
        Ok(pairs)
    }
}
