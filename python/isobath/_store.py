"""Stores, transactions and snapshots."""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack

from isobath import _native
from isobath._aio import end
from isobath._changes import Changes
from isobath._errors import Error, Forked, InvalidArgument, SnapshotTooOld
from isobath._stats import CheckReport, Compaction, Stats
from isobath._tree import Tree
from isobath._types import Progress

T = TypeVar("T")
PathLike = str | os.PathLike[str]
#: When a commit is acknowledged: once it is on the drive (`"synced"`), at once while it is on the
#: drive at most so many seconds later (a number), or at once (`"none"`).
Durability = Literal["synced", "none"] | float

#: Attempts of a transaction, and the seconds of its first and longest pauses between them.
_ATTEMPTS = 64
_QUICK_ATTEMPTS = 3
_FIRST_PAUSE = 50e-6
_LONGEST_PAUSE = 0.02


def _is_retried(error: Error, commits: bool) -> bool:
    """Whether a transaction runs again: not for what its work met elsewhere."""
    return error.retryable if commits else isinstance(error, SnapshotTooOld)


def _pause(attempt: int) -> float:
    """Seconds in which the transactions go first that one was in conflict with."""
    if attempt <= _QUICK_ATTEMPTS:
        return 0.0
    longest = min(_FIRST_PAUSE * 2.0 ** (attempt - _QUICK_ATTEMPTS), _LONGEST_PAUSE)
    return longest * random.uniform(0.25, 1)


def paths_of(path: PathLike | Sequence[PathLike]) -> list[PathLike]:
    """The paths of a store's files, or of backups."""
    paths = [path] if isinstance(path, (str, os.PathLike)) else path
    if isinstance(paths, (bytes, bytearray)) or not isinstance(paths, Iterable):
        raise TypeError(f"a path is a str or os.PathLike, or a list of them, not {_kind(path)}")
    paths = list(paths)
    for one in paths:
        if not isinstance(one, (str, os.PathLike)):
            raise TypeError(f"a path is a str or os.PathLike, not {_kind(one)}")
        text = os.fsdecode(one)
        if not text or "\0" in text:
            raise InvalidArgument(f"a path is empty, or has a zero byte: {text!r}")
    if not paths:
        raise InvalidArgument("no path is named")
    return paths


def _kind(value: object) -> str:
    return type(value).__name__


class Options(TypedDict, total=False):
    """How a store is opened. Sizes are bytes, times are seconds."""

    #: Memory for pages; by default a quarter of the machine's.
    pool_bytes: int
    #: Worker threads; by default one per core.
    workers: int
    tasks_per_worker: int
    task_stack_bytes: int
    transaction_bytes: int
    depth_per_worker: int
    segment_bytes: int
    expected_bytes: int
    #: Bytes that the store may grow to; `None` as far as the file system goes.
    volume_limit_bytes: int | None
    fill_factor: float
    log_bytes: int
    log_path: PathLike
    #: Trees that are larger than the pool take updates like an LSM tree; on by default.
    overlays: bool
    publish_stats: bool
    #: Opens the store as it is now, beside any writer.
    read_only: bool
    #: How long opening waits for another process that has the store open for writing.
    open_timeout: float
    stripe_unit: int
    version_store_bytes: int
    backend: Literal["auto", "io_uring", "libaio", "pread"]
    direct: Literal["auto", "required", "off"]
    cleaning_policy: str
    durability: Durability


class Store(_native.Store):
    """An open store: named trees in a file, in a block device, or striped over several.

    A store closes at the end of a `with` block, by `close`, and at the end of the program. One
    process at a time has it open for writing. A pickled store is opened again by its path, with
    the same options; in a process that has it open already, unpickling gives that one.
    """

    __slots__ = ("_closed", "_options")

    _options: Options
    _closed: bool

    @classmethod
    def open(cls, path: PathLike | Sequence[PathLike], **options: Unpack[Options]) -> Self:
        """Opens a store that exists."""
        return cls._made(path, "open", options)

    @classmethod
    def create(cls, path: PathLike | Sequence[PathLike], **options: Unpack[Options]) -> Self:
        """Creates a store on files that do not exist yet, or on empty block devices."""
        return cls._made(path, "create", options)

    @classmethod
    def open_or_create(cls, path: PathLike | Sequence[PathLike], **options: Unpack[Options]) -> Self:
        """Opens a store, or creates it if nothing is there yet."""
        return cls._made(path, "open_or_create", options)

    @classmethod
    def in_memory(cls, **options: Unpack[Options]) -> Self:
        """Makes a store that is gone when it is closed."""
        return cls._made((), "memory", options)

    @classmethod
    def _made(cls, path: PathLike | Sequence[PathLike], how: str, options: Options) -> Self:
        paths = [] if how == "memory" else paths_of(path)
        store = cls(paths, how, dict(options))
        store._options = options
        store._closed = False
        with _LISTING:
            _OPEN.add(store)
        return store

    @property
    def closed(self) -> bool:
        """Whether this object was closed."""
        return self._closed

    @property
    def read_only(self) -> bool:
        """Whether it was opened for reading only."""
        return self._options.get("read_only", False)

    def close(self) -> None:
        """Writes a checkpoint and closes the store. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Forked:
            # The parent closes it; what ends the block in the child goes on.
            if error is None:
                raise

    def __repr__(self) -> str:
        paths = ", ".join(os.fspath(path) for path in self.paths) or "in memory"
        return f"<isobath.Store {paths}>"

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[type[Store], list[str], Options]]:
        if not self.paths:
            raise TypeError("a store in memory cannot be pickled: it has no path")
        return _reopened, (type(self), [os.fspath(path) for path in self.paths], self._options)

    # Trees.

    def tree(self, name: str) -> Tree:
        """The tree of this name."""
        return Tree(self, name, "open")

    def create_tree(self, name: str) -> Tree:
        """Makes a tree."""
        return Tree(self, name, "create")

    def open_or_create_tree(self, name: str) -> Tree:
        """The tree of this name, which is made if there is none."""
        return Tree(self, name, "open_or_create")

    # Transactions.

    def transaction(
        self,
        *,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
        durability: Durability | None = None,
        read_only: bool = False,
    ) -> Transaction:
        """Begins a transaction over all trees, for a `with` block.

        It commits at the end of the block, and rolls back if the block raises an exception. The
        commit raises `Conflict` if another transaction was first; `transact` runs the work again
        then.
        """
        transaction = Transaction(self, isolation, durability, read_only)
        transaction.store = self
        return transaction

    def transact(
        self,
        work: Callable[[Transaction], T],
        *,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
        durability: Durability | None = None,
        attempts: int = _ATTEMPTS,
    ) -> T:
        """Calls `work` with a transaction and commits it; what `work` returns.

        If another transaction was first, calls it again with a new one. Exceptions of `work` roll
        back and come out unchanged.
        """
        attempt = 0
        while True:
            attempt += 1
            transaction = self.transaction(isolation=isolation, durability=durability)
            commits = False
            try:
                result = work(transaction)
                commits = True
                transaction.commit()
                return result
            except Error as error:
                if not _is_retried(error, commits) or attempt >= attempts:
                    raise
            finally:
                transaction.rollback()
            time.sleep(_pause(attempt))

    async def transact_async(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
        durability: Durability | None = None,
        attempts: int = _ATTEMPTS,
    ) -> T:
        """As `transact`, for a coroutine function. No thread waits for the commit."""
        attempt = 0
        while True:
            attempt += 1
            transaction = self.transaction(isolation=isolation, durability=durability)
            commits = False
            try:
                result = await work(transaction)
                commits = True
                await transaction.commit_async()
                return result
            except Error as error:
                if not _is_retried(error, commits) or attempt >= attempts:
                    raise
            finally:
                transaction.rollback()
            await asyncio.sleep(_pause(attempt))

    def snapshot(self) -> Snapshot:
        """The store as it is now, for reading beside any number of writers."""
        snapshot = Snapshot(self, "snapshot", None, True)
        snapshot.store = self
        return snapshot

    # The whole store.

    def stats(self) -> Stats:
        """Counters and gauges of the store."""
        return Stats(**self.numbers())

    def check(self, progress: Progress | None = None) -> CheckReport:
        """Reads and verifies everything. No call may change the store during that.

        After ^C the check goes on in the background.
        """
        return CheckReport(**self.checked(progress))

    def compact(self) -> Compaction:
        """Gives space that removed records took back to the file system.

        After ^C it goes on in the background.
        """
        return Compaction(*self.compacted())

    def backup(
        self,
        to: PathLike,
        *,
        since: PathLike | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Writes a backup of the store in use to a file; the file's bytes.

        `since` names an earlier backup, of which this one has only the changes. After an exception,
        such as that of ^C, there is no file.
        """
        return self.backed_up(to, since, overwrite, progress)

    def log_position(self) -> str:
        """The position in the log behind all that is durable, as text.

        Changes from a position before a backup began can be applied to what is restored from it.
        """
        return super().log_position()

    def changes(self, position: str | None = None) -> Changes:
        """The changes that are committed from `position` on, as an iterator that waits.

        Without a position it begins with all trees as they are now. Raises `ChangesOverrun` where
        the log no longer has them.
        """
        return Changes(_native.Changes(self, [], position, {}))

    @staticmethod
    def changes_beside(
        path: PathLike | Sequence[PathLike],
        position: str | None = None,
        **options: Unpack[Options],
    ) -> Changes:
        """As `changes`, of a store that another process may write, until that closes it."""
        paths = paths_of(path)
        return Changes(_native.Changes(None, paths, position, dict(options)), ends=True)

    @classmethod
    def restore(
        cls,
        backups: PathLike | Sequence[PathLike],
        path: PathLike | Sequence[PathLike],
        *,
        progress: Progress | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Makes a store from a full backup, and from those that follow it."""
        _native.restore(paths_of(backups), paths_of(path), dict(options), progress)


class Transaction(_native.Transaction):
    """A transaction over all trees of a store.

    It reads the store as it was when it began, with its own changes on top. Nothing is locked. Its
    changes become visible together when it commits, or not at all.
    """

    __slots__ = ("store",)

    #: The store that it belongs to.
    store: Store

    def tree(self, tree: Tree | str) -> Tree:
        """A tree as the transaction sees it, to be read and changed as part of it."""
        return Tree(self, self.store.tree(tree) if isinstance(tree, str) else tree, "open")

    __getitem__ = tree

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.rollback()
        elif not self.ended:
            self.commit()

    async def commit_async(self) -> None:
        """As `commit`; no thread waits for it."""
        await end(self.start_commit())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and not self.ended:
            await self.commit_async()
        else:
            self.rollback()

    def __reduce__(self) -> Any:
        raise TypeError("a transaction cannot be pickled; its store can")


class Snapshot(Transaction):
    """The store as it was at one moment, for reading. It ends with its `with` block."""

    __slots__ = ()

    def close(self) -> None:
        """Ends it: the store need not keep what it may still read."""
        self.rollback()


def _reopened(kind: type[Store], paths: list[str], options: Options) -> Store:
    reads = options.get("read_only", False)
    with _REOPENING:
        for store in opened():
            same = [os.fspath(path) for path in store.paths] == paths
            if same and not store.closed and store.read_only == reads:
                # What else uses it must not close it now.
                from isobath._shared import keep_open

                keep_open(store)
                return store
        return kind.open(paths, **options)


#: The stores that this process has opened.
_OPEN: weakref.WeakSet[Store] = weakref.WeakSet()
_LISTING = threading.Lock()
_REOPENING = threading.Lock()


def opened() -> list[Store]:
    """The stores that this process has opened, closed ones among them."""
    with _LISTING:
        return list(_OPEN)


def _forget() -> None:
    """Those of the parent belong to it."""
    global _LISTING, _REOPENING
    _OPEN.clear()
    _LISTING, _REOPENING = threading.Lock(), threading.Lock()


def _close_all() -> None:
    failed: BaseException | None = None
    for store in opened():
        try:
            store.close()
        except BaseException as error:
            failed = failed or error
    if failed is not None:
        raise failed


os.register_at_fork(after_in_child=_forget)
atexit.register(_close_all)
