"""Arrays of zarr in a store: `zarr.open(IsobathStore("arrays.iso"))`.

Needs `zarr` (`pip install isobath[zarr]`).
"""

from __future__ import annotations

import asyncio
import builtins
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from isobath._aio import end
from isobath._errors import Closed, InvalidArgument
from isobath._shared import Lease
from isobath._store import Options, PathLike
from isobath._tree import Tree

__all__ = ["IsobathStore"]

#: Keys of a listing that one task reads: at first, and at most.
_LISTED_AT_FIRST = 64
_LISTED_AT_ONCE = 4096


class IsobathStore(Store):
    """Keeps the keys of zarr in a tree of a store, as they are.

    Chunks are read and written as tasks of the store's workers: no thread waits for them, and
    writes that happen together share their flush. All objects of this process that name the same
    file use one open store; the last one to be closed closes it. Another process opens its own, to
    which pickling leads, while no other one has the store open for writing.

    `read_only` opens the store as it is now, beside a writer in another process; in a process that
    has it open for writing, it reads what that writes.
    """

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_listing: bool = True

    def __init__(
        self,
        path: PathLike,
        *,
        tree: str = "zarr",
        read_only: bool = False,
        options: Options | None = None,
    ) -> None:
        super().__init__(read_only=read_only)
        #: The file, or the block device.
        self.path = os.path.abspath(path)
        #: The name of the tree.
        self.tree_name = tree
        self._options: Options = options or Options()
        self._prepare()

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._opened: Tree | None = None
        self._is_closed = False

    def with_read_only(self, read_only: bool = False) -> IsobathStore:
        return type(self)(
            self.path, tree=self.tree_name, read_only=read_only, options=self._options
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, type(self))
            and os.path.realpath(self.path) == os.path.realpath(other.path)
            and self.tree_name == other.tree_name
            and self.read_only == other.read_only
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"isobath://{self.path}/{self.tree_name}"

    def __repr__(self) -> str:
        return f"IsobathStore('{self}')"

    def __getstate__(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "tree": self.tree_name,
            "read_only": self.read_only,
            "options": self._options,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        IsobathStore.__init__(
            self,
            state["path"],
            tree=state["tree"],
            read_only=state["read_only"],
            options=state["options"],
        )

    # Opening and closing.

    async def _open(self) -> None:
        if self._is_open:
            raise ValueError("store is already open")
        await self._tree()

    def close(self) -> None:
        """Ends the use of the store. An object that was closed is not opened again."""
        with self._lock:
            self._is_closed = True
            self._opened = None
            lease, self._lease = self._lease, None
        super().close()
        if lease is not None:
            lease.close()

    def tree(self) -> Tree:
        """The tree that has the keys; opens the store if it is not open."""
        opened = self._opened
        if opened is not None:
            return opened
        with self._lock:
            if self._is_closed:
                raise Closed("the store was closed: make another IsobathStore")
            if self._opened is None:
                # What others write in this process is seen, too; so the tree's state decides.
                options: Options = {**self._options}
                if self.read_only:
                    options["read_only"] = True
                lease = Lease(self.path, options, creates=True)
                store = lease.store
                make = store.tree if self.read_only else store.open_or_create_tree
                self._opened = make(self.tree_name)
                self._lease = lease
                self._is_open = True
            return self._opened

    async def _tree(self) -> Tree:
        opened = self._opened
        return opened if opened is not None else await asyncio.to_thread(self.tree)

    # One key.

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        tree = await self._tree()
        if byte_range is None:
            value = await end(tree.start_get(_key(key)))
        else:
            value = await end(tree.start_part(_key(key), *_slice(byte_range)))
        return _buffer(value, prototype)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> builtins.list[Buffer | None]:
        reads = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return await asyncio.gather(*reads)

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        requests = list(requests)
        tree = await self._tree()
        if any(byte_range is not None for _, _, byte_range in requests):
            values = await asyncio.gather(*(self.get(*request) for request in requests))
            for (key, _, _), value in zip(requests, values):
                yield key, value
            return
        found = await tree.get_many_async([_key(key) for key, _, _ in requests])
        for (key, prototype, _), bytes in zip(requests, found):
            yield key, _buffer(bytes, prototype)

    async def exists(self, key: str) -> bool:
        return await self._size(key) is not None

    async def getsize(self, key: str) -> int:
        size = await self._size(key)
        if size is None:
            raise FileNotFoundError(key)
        return size

    async def _size(self, key: str) -> int | None:
        """The bytes of a key's value, which is not read."""
        tree = await self._tree()
        first = _key(key)
        sizes, _ = await end(tree.start_range("sizes", first, first + b"\0", None, False, 1))
        return sizes[0][1] if sizes else None

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        tree = await self._tree()
        await end(tree.start_put(_key(key), _bytes(value)))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_writable()
        tree = await self._tree()
        await asyncio.to_thread(tree.compare_and_swap, _key(key), None, _bytes(value))

    async def _set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        """Sets all keys in one commit."""
        self._check_writable()
        tree = await self._tree()
        items = [(_key(key), _bytes(value)) for key, value in values]
        await asyncio.to_thread(tree.put_many, items)

    async def delete(self, key: str) -> None:
        self._check_writable()
        tree = await self._tree()
        await tree.discard_async(_key(key))

    # The same without an event loop.

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """As `get`."""
        tree = self.tree()
        if byte_range is None:
            return _buffer(tree.get(_key(key)), prototype)
        return _buffer(tree.part(_key(key), *_slice(byte_range)), prototype)

    def set_sync(self, key: str, value: Buffer) -> None:
        """As `set`."""
        self._check_writable()
        tree = self.tree()
        tree[_key(key)] = _bytes(value)

    def delete_sync(self, key: str) -> None:
        """As `delete`."""
        self._check_writable()
        self.tree().discard(_key(key))

    # Many keys.

    async def clear(self) -> None:
        self._check_writable()
        tree = await self._tree()
        await asyncio.to_thread(tree.clear)

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        tree = await self._tree()
        below = _below(prefix)
        await asyncio.to_thread(lambda: tree.remove_range(prefix=below))

    async def is_empty(self, prefix: str) -> bool:
        tree = await self._tree()
        keys, _ = await end(tree.start_range("keys", None, None, _below(prefix), False, 1))
        return not keys

    def list(self) -> AsyncIterator[str]:
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        async for key in self._each("keys", prefix.encode(errors="surrogateescape")):
            yield key.decode(errors="surrogateescape")

    async def getsize_prefix(self, prefix: str) -> int:
        total = 0
        async for _, size in self._each("sizes", _below(prefix)):
            total += size
        return total

    async def _each(self, gives: str, prefix: bytes) -> AsyncIterator[Any]:
        tree = await self._tree()
        start: bytes | None = None
        count = _LISTED_AT_FIRST
        while True:
            found, is_last = await end(tree.start_range(gives, start, None, prefix, False, count))
            for item in found:
                yield item
            if is_last:
                return
            last = found[-1]
            start = (last if gives == "keys" else last[0]) + b"\0"
            count = min(2 * count, _LISTED_AT_ONCE)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        tree = await self._tree()
        below = _below(prefix)
        # A key and a directory may have the same name.
        given: set[bytes] = set()
        start: bytes | None = None
        count = 1
        while True:
            keys, is_last = await end(tree.start_range("keys", start, None, below, False, count))
            directory = None
            for key in keys:
                name, slash, _ = key[len(below) :].partition(b"/")
                if name not in given:
                    given.add(name)
                    yield name.decode(errors="surrogateescape")
                directory = name if slash else None
            if is_last:
                return
            count = min(2 * count, _LISTED_AT_ONCE)
            start = keys[-1] + b"\0"
            if directory is not None:
                # Behind all keys of the directory: "0" comes after "/".
                start = below + directory + b"0"
                count = 1


def _key(key: str) -> bytes:
    if ".." in key and ".." in key.split("/"):
        raise InvalidArgument(f"the key {key!r} has the segment '..'")
    # Keys that another program has stored need not be text.
    return key.encode(errors="surrogateescape")


def _below(prefix: str) -> bytes:
    """The beginning of all keys in a directory."""
    return _key(prefix if prefix == "" or prefix.endswith("/") else prefix + "/")


def _slice(byte_range: ByteRequest) -> tuple[int | None, int | None]:
    match byte_range:
        case RangeByteRequest(start, stop):
            return start, stop
        case OffsetByteRequest(offset):
            return offset, None
        case SuffixByteRequest(0):
            return 0, 0
        case SuffixByteRequest(suffix):
            return -suffix, None
    raise ValueError(f"Unexpected byte_range, got {byte_range}.")


def _buffer(value: bytes | None, prototype: BufferPrototype | None) -> Buffer | None:
    if value is None:
        return None
    return (prototype or default_buffer_prototype()).buffer.from_bytes(value)


def _bytes(value: Buffer) -> Any:
    if not isinstance(value, Buffer):
        raise TypeError(f"the value is a zarr Buffer, not {type(value).__name__}")
    return value.as_buffer_like()
