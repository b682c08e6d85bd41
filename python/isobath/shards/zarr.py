"""Arrays of zarr over shards, and computations of `dask.array` where the chunks lie.

>>> from isobath.shards.zarr import ShardedStore, array, compute
>>> store = ShardedStore(shards)
>>> made = zarr.create_array(store, name="t", shape=(10_000, 10_000), chunks=(500, 500), dtype="f4")
>>> mean = compute(array(store, "t").mean())

Needs `pip install isobath[dask,zarr]`.
"""

from __future__ import annotations

import asyncio
import builtins
import itertools
import math
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

from isobath._needs import module
from isobath.shards._host import PAGE
from isobath.shards._shards import Shards
from isobath.shards._tasks import ANNOTATION
from isobath.zarr import _below, _buffer, _bytes, _key, _slice

__all__ = ["ShardedStore", "array", "compute", "persist"]


class ShardedStore(Store):
    """Keeps the keys of zarr in shards. A chunk that a shard should have is never taken as empty:
    if the shard is missing, reading it raises `ShardMissing`.
    """

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_listing: bool = True

    def __init__(self, shards: Shards, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        #: The key space.
        self.shards = shards

    def with_read_only(self, read_only: bool = False) -> ShardedStore:
        return type(self)(self.shards, read_only=read_only)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, type(self))
            and self.shards.id == other.shards.id
            and self.shards.tree == other.shards.tree
            and self.read_only == other.read_only
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"isobath-shards://{self.shards.id}/{self.shards.tree}"

    def __repr__(self) -> str:
        return f"ShardedStore('{self}')"

    def __getstate__(self) -> dict[str, Any]:
        return {"shards": self.shards, "read_only": self.read_only}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ShardedStore.__init__(self, state["shards"], read_only=state["read_only"])

    async def _at(self, key: str, operation: str, *given: Any) -> Any:
        name = _key(key)
        return await self.shards.call(self.shards.ring.shard_of(name), operation, name, *given)

    async def _everywhere(self, operation: str, *given: Any) -> builtins.list[Any]:
        shards = range(len(self.shards.places))
        calls = (self.shards.call(shard, operation, *given) for shard in shards)
        return await asyncio.gather(*calls)

    # One key.

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        if byte_range is None:
            value = await self._at(key, "get")
        else:
            value = await self._at(key, "part", *_slice(byte_range))
        return _buffer(value, prototype)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> builtins.list[Buffer | None]:
        reads = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return await asyncio.gather(*reads)

    async def exists(self, key: str) -> bool:
        return await self._at(key, "size") is not None

    async def getsize(self, key: str) -> int:
        size: int | None = await self._at(key, "size")
        if size is None:
            raise FileNotFoundError(key)
        return size

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await self._at(key, "put", bytes(_bytes(value)))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await self._at(key, "insert", bytes(_bytes(value)))

    async def delete(self, key: str) -> None:
        self._check_writable()
        await self._at(key, "discard")

    # Many keys.

    async def clear(self) -> None:
        self._check_writable()
        await self._everywhere("remove", b"")

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        await self._everywhere("remove", _below(prefix))

    async def is_empty(self, prefix: str) -> bool:
        pages = await self._everywhere("page", "keys", None, _below(prefix), 1)
        return not any(keys for keys, _ in pages)

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
        for shard in range(len(self.shards.places)):
            start: bytes | None = None
            while True:
                found, is_last = await self.shards.call(shard, "page", gives, start, prefix, PAGE)
                for item in found:
                    yield item
                if is_last:
                    break
                last = found[-1]
                start = (last if gives == "keys" else last[0]) + b"\0"

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        levels = await self._everywhere("level", _below(prefix))
        for name in sorted({name for level in levels for name in level}):
            yield name.decode(errors="surrogateescape")


# Computing.


def array(store: ShardedStore, path: str = "") -> Any:
    """An array of zarr as one of dask, a block for each chunk (or shard of zarr).

    The worker that has a chunk reads it, as long as it lives, if `compute` or `persist` of this
    module run what is made of the array. Dask's own fuse reading with what follows, and lose its
    place; their results are the same.
    """
    dask_array = module("dask.array", "dask", "isobath.shards.zarr")
    graphs = module("dask.highlevelgraph", "dask", "isobath.shards.zarr")
    zarr = module("zarr", "zarr", "isobath.shards.zarr")
    opened = zarr.open_array(store, path=path, mode="r")
    chunks = opened.shards or opened.chunks
    owners = store.shards.owners()
    ring = store.shards.ring
    name = f"isobath-{uuid.uuid4().hex}"
    tasks: dict[tuple[Any, ...], Any] = {}
    workers: dict[tuple[Any, ...], str] = {}
    counts = [math.ceil(length / chunk) for length, chunk in zip(opened.shape, chunks)]
    for at in itertools.product(*map(range, counts)):
        where = tuple(
            slice(place * chunk, min((place + 1) * chunk, length))
            for place, chunk, length in zip(at, chunks, opened.shape)
        )
        chunk_key = opened.metadata.encode_chunk_key(at)
        key = f"{opened.path}/{chunk_key}" if opened.path else chunk_key
        tasks[(name, *at)] = (_read, opened, where)
        workers[(name, *at)] = owners[ring.shard_of(key.encode())]
    layer = graphs.MaterializedLayer(
        tasks, annotations={"workers": _Workers(workers), ANNOTATION: True}
    )
    graph = graphs.HighLevelGraph({name: layer}, {name: set()})
    sizes = tuple(
        tuple(min(chunk, length - place * chunk) for place in range(count))
        for count, chunk, length in zip(counts, chunks, opened.shape)
    )
    return dask_array.Array(graph, name, sizes, dtype=opened.dtype)


class _Workers:
    """The worker of each task. A class, so that dask asks for each key."""

    def __init__(self, workers: dict[tuple[Any, ...], str]) -> None:
        self._workers = workers

    def __call__(self, key: tuple[Any, ...]) -> list[str]:
        worker = self._workers.get(key)
        return [] if worker is None else [worker]


def _read(opened: Any, where: tuple[slice, ...]) -> Any:
    return opened[where]


def compute(*collections: Any, **options: Any) -> Any:
    """As `dask.compute`, and chunks are read by the workers that have them."""
    dask = module("dask", "dask", "isobath.shards.zarr")
    found = dask.compute(*map(_planned, collections), optimize_graph=False, **options)
    return found[0] if len(collections) == 1 else found


def persist(*collections: Any, **options: Any) -> Any:
    """As `dask.persist`, and chunks are read by the workers that have them."""
    dask = module("dask", "dask", "isobath.shards.zarr")
    found = dask.persist(*map(_planned, collections), optimize_graph=False, **options)
    return found[0] if len(collections) == 1 else found


def _planned(collection: Any) -> Any:
    """A collection whose steps are fused, but for the reads: those would lose their places."""
    blockwise = module("dask.blockwise", "dask", "isobath.shards.zarr")
    core = module("dask.core", "dask", "isobath.shards.zarr")
    keys = list(core.flatten(collection.__dask_keys__()))
    graph = blockwise.optimize_blockwise(collection.__dask_graph__(), keys=keys)
    rebuild, arguments = collection.__dask_postpersist__()
    return rebuild(graph.cull(set(keys)), *arguments)
