"""Trees: ordered mappings from bytes to bytes."""

from __future__ import annotations

import io
import itertools
from collections.abc import (
    AsyncIterator,
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MappingView,
    MutableMapping,
    ValuesView,
)
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast, overload

from isobath import _native
from isobath._aio import end
from isobath._stats import TreeStats
from isobath._streams import TransactionWriter, ValueReader, ValueWriter

if TYPE_CHECKING:
    from isobath._store import Store, Transaction
    from isobath._types import Buffer, Progress

T = TypeVar("T")

#: Records of one commit of `Tree.update`.
_UPDATED_AT_ONCE = 1024
_MISSING: Any = object()


class Tree(_native.Tree, MutableMapping[bytes, bytes]):
    """A named tree of a store, or what a transaction or snapshot sees of it.

    Keys and values are `bytes`, or any object with the buffer protocol. Keys are in the order of
    byte strings. All methods work from any thread. Iteration is safe beside changes: a record that
    is there during the whole iteration is found exactly once.
    """

    __slots__ = ()

    @property
    def store(self) -> Store:
        """The store that the tree belongs to."""
        transaction = self.transaction
        store: Store = self.owner if transaction is None else transaction.store
        return store

    @property
    def transaction(self) -> Transaction | None:
        """The transaction or snapshot that this is a view of."""
        owner = self.owner
        if not isinstance(owner, _native.Transaction):
            return None
        return cast("Transaction", owner)

    # What a mapping has.

    def __iter__(self) -> Iterator[bytes]:
        return self.cursor("keys", None, None, None, False)

    def __reversed__(self) -> Iterator[bytes]:
        return self.cursor("keys", None, None, None, True)

    def __len__(self) -> int:
        """Counts the records: reads all leaves. `estimate_len` reads some."""
        return self.count()

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Mapping):
            return NotImplemented
        count = 0
        for key, value in self.range():
            if other.get(key) != value:
                return False
            count += 1
        return count == len(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        of = "" if self.transaction is None else " in a transaction"
        return f"<isobath.Tree {self.name!r}{of}>"

    def __reduce__(self) -> tuple[Callable[[Store, str], Tree], tuple[Store, str]]:
        if self.transaction is not None:
            raise TypeError("a tree in a transaction cannot be pickled; the tree of a store can")
        return _opened, (self.store, self.name)

    def pop(self, key: Buffer, default: Any = _MISSING, /) -> Any:
        """Removes a key in one step and returns its value."""
        value = self.take(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise KeyError(bytes(key))
        return default

    def popitem(self) -> tuple[bytes, bytes]:
        """Removes the last record and returns it."""
        record = self.pop_last()
        if record is None:
            raise KeyError("the tree is empty")
        return record

    def setdefault(self, key: Buffer, default: Buffer, /) -> bytes:
        """The value of a key, which is given this one if it has none, in one step."""
        while True:
            value = self.get(key)
            if value is not None:
                return value
            if self.compare_and_swap(key, None, default):
                return bytes(default)

    def clear(self) -> None:
        """Removes all records, some hundred in a commit."""
        self.remove_range()

    def update(self, other: Any = (), /, **nothing: NoReturn) -> None:
        """Gives keys their values, about a thousand in a commit; see `put_many`."""
        if nothing:
            raise TypeError("keys are bytes, so none can be a keyword")
        items = iter(_items(other))
        while chunk := list(itertools.islice(items, _UPDATED_AT_ONCE)):
            super().put_many(chunk)

    def keys(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> _Keys:
        """The keys of a range, as `range`; no value is read."""
        return _Keys(self, start, stop, prefix, reverse)

    def values(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> _Values:
        """The values of a range, as `range`."""
        return _Values(self, start, stop, prefix, reverse)

    def items(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> _Items:
        """The records of a range, as `range`."""
        return _Items(self, start, stop, prefix, reverse)

    # What an ordered one has.

    def range(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterates over the records from `start` up to `stop`, which does not belong to them.

        With a prefix only over those whose keys begin with it. It reads some records at a time, and
        holds nothing of the store between two steps.
        """
        return self.cursor("items", start, stop, prefix, reverse)

    def prefix(self, prefix: Buffer, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Iterates over the records whose keys begin with `prefix`."""
        return self.range(prefix=prefix, reverse=reverse)

    def sizes(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, int]]:
        """Iterates over the keys with the bytes of their values, which are not read."""
        return self.cursor("sizes", start, stop, prefix, reverse)

    def size(self, key: Buffer) -> int:
        """The bytes of a key's value, which is not read."""
        key = memoryview(key).tobytes()
        for _, size in self.sizes(key, key + b"\0"):
            return size
        raise KeyError(key)

    def first(self) -> tuple[bytes, bytes] | None:
        """The first record."""
        return self._first_of(self)

    def last(self) -> tuple[bytes, bytes] | None:
        """The last record."""
        return self._first_of(reversed(self))

    def _first_of(self, keys: Iterable[bytes]) -> tuple[bytes, bytes] | None:
        # No other value is read; the record may be gone by then.
        for key in keys:
            value = self.get(key)
            if value is not None:
                return key, value
        return None

    # Many records.

    def put_many(self, items: Mapping[Any, Any] | Iterable[tuple[Buffer, Buffer]]) -> None:
        """Gives many keys their values in one commit: all of them, or none.

        In a transaction, those before an error stay changed until it is rolled back. The records
        are collected in memory; `load` and `update` take any number.
        """
        super().put_many(_items(items))

    def load(
        self,
        items: Mapping[Any, Any] | Iterable[tuple[Buffer, Buffer]],
        progress: Progress | None = None,
    ) -> int:
        """Loads records in any order, and sorts them first; how many there are.

        Much faster than inserting. Into an empty tree, or above all of its keys, all appear at the
        end or none. `progress` has the protocol of a bar of tqdm.
        """
        return super().load(_items(items), progress)

    # For asyncio. Each runs as a task of the store's workers: no thread waits for it. A change goes
    # on where its coroutine is cancelled.

    async def get_async(self, key: Buffer, default: T | None = None) -> bytes | T | None:
        """The value of a key, as `get`."""
        value: bytes | None = await end(self.start_get(key))
        return default if value is None else value

    async def get_many_async(self, keys: Iterable[Buffer]) -> list[bytes | None]:
        """The values of many keys, as `get_many`."""
        values: list[bytes | None] = await end(self.start_get_many(keys))
        return values

    async def part_async(
        self, key: Buffer, start: int | None = None, stop: int | None = None
    ) -> bytes | None:
        """A part of the value of a key, as `part`."""
        value: bytes | None = await end(self.start_part(key, start, stop))
        return value

    async def put_async(self, key: Buffer, value: Buffer) -> None:
        """Gives a key a value."""
        await end(self.start_put(key, value))

    async def discard_async(self, key: Buffer) -> bool:
        """Removes a key; whether it had a value."""
        existed: bool = await end(self.start_discard(key))
        return existed

    async def range_async(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        """Iterates over the records of a range, as `range`."""
        size = 16
        while True:
            records, is_last = await end(
                self.start_range("items", start, stop, prefix, reverse, size)
            )
            for record in records:
                yield record
            if is_last:
                return
            last = records[-1][0]
            if reverse:
                stop = last
            else:
                start = last + b"\0"
            size = min(2 * size, 1024)

    # Large values.

    @overload
    def open(self, key: Buffer, mode: Literal["rb"] = "rb") -> io.BufferedReader: ...
    @overload
    def open(self, key: Buffer, mode: Literal["wb"]) -> ValueWriter | TransactionWriter: ...
    def open(
        self, key: Buffer, mode: str = "rb"
    ) -> io.BufferedReader | ValueWriter | TransactionWriter:
        """Opens a value as a file, for reading (`rb`) or for writing (`wb`).

        A written value appears when the file is closed. In a transaction it is collected in memory
        until then.
        """
        if mode == "rb":
            return io.BufferedReader(ValueReader(self, key), 1 << 16)
        if mode != "wb":
            raise ValueError("the mode is 'rb' or 'wb'")
        if self.transaction is not None:
            return TransactionWriter(self, memoryview(key).tobytes())
        return ValueWriter(self, key)

    def stats(self) -> TreeStats:
        """Counts the tree's records, pages and bytes; estimates them in a large tree."""
        return TreeStats(**self.counts())


def _opened(store: Store, name: str) -> Tree:
    return store.tree(name)


def _items(items: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(items, Mapping):
        return items.items()
    if hasattr(items, "keys"):
        return ((key, items[key]) for key in items.keys())
    found: Iterable[tuple[Any, Any]] = items
    return found


class _View(MappingView):
    """A range of a tree, seen as one of a mapping's views."""

    __slots__ = ()

    _mapping: Tree
    _range: tuple[Buffer | None, Buffer | None, Buffer | None]
    _reverse: bool

    def __init__(
        self,
        tree: Tree,
        start: Buffer | None,
        stop: Buffer | None,
        prefix: Buffer | None,
        reverse: bool,
    ) -> None:
        super().__init__(tree)
        self._range = (start, stop, prefix)
        self._reverse = reverse

    def _cursor(self, what: str, reverse: bool) -> Iterator[Any]:
        return self._mapping.cursor(what, *self._range, self._reverse != reverse)

    def _has(self, key: Any) -> bool:
        start, stop, prefix = self._range
        key = bytes(key)
        return (
            (start is None or key >= bytes(start))
            and (stop is None or key < bytes(stop))
            and (prefix is None or key.startswith(bytes(prefix)))
        )

    def __len__(self) -> int:
        return self._mapping.count(*self._range)


class _Keys(_View, KeysView[bytes]):
    __slots__ = ("_range", "_reverse")

    def __contains__(self, key: object) -> bool:
        return key in self._mapping and self._has(key)

    def __iter__(self) -> Iterator[bytes]:
        return self._cursor("keys", False)

    def __reversed__(self) -> Iterator[bytes]:
        return self._cursor("keys", True)


class _Items(_View, ItemsView[bytes, bytes]):
    __slots__ = ("_range", "_reverse")

    def __contains__(self, item: Any) -> bool:
        key, value = item
        found = self._mapping.get(key)
        return found is not None and found == value and self._has(key)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._cursor("items", False)

    def __reversed__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._cursor("items", True)


class _Values(_View, ValuesView[bytes]):
    __slots__ = ("_range", "_reverse")

    def __contains__(self, value: object) -> bool:
        return any(found == value for found in self)

    def __iter__(self) -> Iterator[bytes]:
        return self._cursor("values", False)

    def __reversed__(self) -> Iterator[bytes]:
        return self._cursor("values", True)
