//! Operations as futures and streams, for any async runtime.
//!
//! Each runs as a task of the store's workers and is done when its future is ready. Nothing here
//! needs a particular runtime, and nothing blocks the polling thread.
//!
//! All of them are *cancellation-safe*: a future may be dropped at any point, as `select!` and
//! timeouts do. What only reads is given up without a trace. What changes something goes on to its
//! end as a task: it happens as a whole or not at all ([`Tree::clear_async`]: in parts).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::stream::{FusedStream, Stream};

use crate::api::range::Part;
use crate::api::tree::Tree;
use crate::bounds::KeyRange;
use crate::engine::OperationFuture;
use crate::runtime::Urgency;
use crate::{Error, Range, Store, Transaction, TransactionOptions};

/// Records that a task of a [`RangeStream`] fetches at a time, and bytes of these after which it
/// fetches no more: the first task about a leaf's, so that a stream that is left early has read
/// little more than it gave, each later one twice as many.
const FETCHED_AT_ONCE: usize = 256;
const FETCHED_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=256 << 10;

impl Tree {
    /// [`Tree::get`] as a future. Cancellation-safe: it may be dropped at any time.
    pub fn get_async(&self, key: impl AsRef<[u8]>) -> OperationFuture<Option<Vec<u8>>> {
        self.key_future(key.as_ref().to_vec(), |tree, key| tree.get(key))
    }

    fn key_future<T: Send + 'static>(
        &self,
        key: Vec<u8>,
        work: fn(&Tree, &[u8]) -> Result<T, Error>,
    ) -> OperationFuture<T> {
        self.future(move |tree| work(tree, &key))
    }

    /// [`Tree::contains`] as a future. Cancellation-safe: it may be dropped at any time.
    pub fn contains_async(&self, key: impl AsRef<[u8]>) -> OperationFuture<bool> {
        self.key_future(key.as_ref().to_vec(), |tree, key| tree.contains(key))
    }

    /// [`Tree::contains_key`] as a future. Cancellation-safe: it may be dropped at any time.
    pub fn contains_key_async(&self, key: impl AsRef<[u8]>) -> OperationFuture<bool> {
        self.contains_async(key)
    }

    /// [`Tree::get_many`] as a future. Cancellation-safe: it may be dropped at any time.
    pub fn get_many_async<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> OperationFuture<Vec<Option<Vec<u8>>>> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.as_ref().to_vec()).collect();
        self.future(move |tree| tree.get_many(&keys))
    }

    /// [`Tree::insert`] as a future. Cancellation-safe: the change, which begins with this call and
    /// not with the first poll, goes on where the future is dropped; it happens as a whole or not
    /// at all, and reading says which.
    pub fn insert_async(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> OperationFuture<()> {
        let value = value.as_ref().to_vec();
        let key = key.as_ref().to_vec();
        self.future(move |tree| tree.insert(&key, &value))
    }

    /// [`Tree::remove`] as a future. Cancellation-safe: the change goes on where the future is
    /// dropped, as that of [`Tree::insert_async`].
    pub fn remove_async(&self, key: impl AsRef<[u8]>) -> OperationFuture<bool> {
        self.key_future(key.as_ref().to_vec(), |tree, key| tree.remove(key))
    }

    /// [`Tree::clear`] as a future. If it is dropped, the removal goes on until each record of
    /// that time is gone, or one of its commits fails: each takes some hundred records as a whole.
    pub fn clear_async(&self) -> OperationFuture<u64> {
        self.future(Tree::clear)
    }

    /// [`Tree::iter`] as a stream. Cancellation-safe, as [`Tree::range_async`].
    pub fn iter_async(&self) -> RangeStream {
        RangeStream::new(self.iter())
    }

    /// [`Tree::range`] as a stream. Cancellation-safe: it may be dropped at any time, and a future
    /// of its next record, too: the record comes with the next one.
    pub fn range_async(&self, bounds: impl KeyRange) -> RangeStream {
        RangeStream::new(self.range(bounds))
    }

    /// [`Tree::prefix`] as a stream. Cancellation-safe, as [`Tree::range_async`].
    pub fn prefix_async(&self, prefix: impl AsRef<[u8]>) -> RangeStream {
        RangeStream::new(self.prefix(prefix))
    }

    /// [`Tree::keys`] as a stream. Cancellation-safe, as [`Tree::range_async`].
    pub fn keys_async(&self, bounds: impl KeyRange) -> RangeStream<u64> {
        RangeStream::new(self.keys(bounds))
    }

    fn future<T, W>(&self, work: W) -> OperationFuture<T>
    where
        T: Send + 'static,
        W: FnOnce(&Tree) -> Result<T, Error> + Send + 'static,
    {
        let tree = self.clone();
        let task = self
            .runtime
            .spawn(Urgency::Ordinary, None, move || work(&tree));
        task.flat()
    }
}

impl Store {
    /// [`Store::transact`] as a future: `work` runs in a task of a worker, where reading overlaps
    /// with other tasks. Cancellation-safe: the transaction, which begins with this call and not
    /// with the first poll, goes on where the future is dropped; it commits as a whole or not at
    /// all, and reading says which.
    pub fn transact_async<T, E, W>(
        &self,
        options: TransactionOptions,
        work: W,
    ) -> impl Future<Output = Result<T, E>> + Send + 'static + use<T, E, W>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
        W: FnMut(&mut Transaction) -> Result<T, E> + Send + 'static,
    {
        let store = self.clone();
        let task = self.spawn(move || Ok::<_, Error>(store.transact(options, work)));
        async move { task.flat().await? }
    }
}

/// An item of a stream.
type Item<V> = Result<(Vec<u8>, V), Error>;

/// The result of a stream's task: the rest of the range, and the items that it has fetched.
type Fetched<V> = (Range<V>, VecDeque<Item<V>>);

/// Records in key order, from [`Tree::range_async`] or [`Tree::prefix_async`], or their keys with
/// the lengths of their values, from [`Tree::keys_async`].
#[must_use = "a stream does nothing until it is polled"]
pub struct RangeStream<V = Vec<u8>> {
    /// `None` while a task has it, and at the end.
    range: Option<Range<V>>,
    fetched: VecDeque<Item<V>>,
    task: Option<OperationFuture<Fetched<V>>>,
    /// Bytes of the next task.
    bytes: usize,
}

impl<V> RangeStream<V> {
    fn new(range: Range<V>) -> RangeStream<V> {
        RangeStream {
            range: Some(range),
            fetched: VecDeque::new(),
            task: None,
            bytes: *FETCHED_BYTES.start(),
        }
    }
}

impl<V> std::fmt::Debug for RangeStream<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RangeStream").finish_non_exhaustive()
    }
}

fn fetch<V: Part>(mut range: Range<V>, most: usize) -> Fetched<V> {
    let mut fetched = VecDeque::new();
    let mut bytes = 0;
    while fetched.len() < FETCHED_AT_ONCE && bytes < most {
        let Some(record) = range.next() else {
            break;
        };
        bytes += record
            .as_ref()
            .map_or(0, |(key, part)| key.len() + part.bytes());
        fetched.push_back(record);
    }
    (range, fetched)
}

impl<V: Part> Stream for RangeStream<V> {
    type Item = Item<V>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        // Bound: a task that fetches nothing is the last one.
        loop {
            if let Some(record) = this.fetched.pop_front() {
                return Poll::Ready(Some(record));
            }
            if let Some(range) = this.range.take() {
                let runtime = std::sync::Arc::clone(range.runtime());
                let bytes = this.bytes;
                this.bytes = (2 * bytes).min(*FETCHED_BYTES.end());
                let task = runtime.spawn(Urgency::Ordinary, None, move || Ok(fetch(range, bytes)));
                this.task = Some(task.flat());
            }
            let Some(task) = &mut this.task else {
                return Poll::Ready(None);
            };
            let fetched = ready!(Pin::new(task).poll(context));
            this.task = None;
            match fetched {
                Ok((_, fetched)) if fetched.is_empty() => return Poll::Ready(None),
                Ok((range, fetched)) => {
                    this.range = Some(range);
                    this.fetched = fetched;
                }
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

impl<V: Part> FusedStream for RangeStream<V> {
    fn is_terminated(&self) -> bool {
        self.range.is_none() && self.task.is_none() && self.fetched.is_empty()
    }
}
