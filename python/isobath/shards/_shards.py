"""The key space: which shard a key belongs to, which worker has that, and what to do if it dies."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import logging
import os
import time
import uuid
import warnings
from collections.abc import Coroutine, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from isobath._errors import Closed, Error, InvalidArgument, StoreInUse
from isobath._needs import module
from isobath._store import Options, PathLike
from isobath.shards._errors import ShardMissing, ShardMoved
from isobath.shards._ring import ring

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
LOGGER = logging.getLogger("isobath.shards")

#: Seconds for which calls wait for a worker that can open a shard: one that closes its store, or
#: that is started again, takes some.
_PATIENCE = 15.0
_PAUSE = 0.25
#: Seconds after which a worker that no connection is made to may be gone.
_CONNECTED_WITHIN = 0.5
#: How often a call is sent to owners that are gone.
_CALLS = 8
_FORMAT = 1


@dataclass(frozen=True)
class Place:
    """Where a shard's file is."""

    #: The file on the machine that has it.
    path: str
    #: The machine's name or address, or that of a worker; `None`: any worker can open it.
    host: str | None = None

    @classmethod
    def of(cls, given: Place | PathLike | tuple[str, PathLike]) -> Place:
        """A place from a path, or from a machine and a path."""
        if isinstance(given, Place):
            return given
        host: str | None = None
        if isinstance(given, tuple):
            host, given = given
        if not isinstance(given, (str, os.PathLike)) or not isinstance(host, (str, type(None))):
            raise TypeError(f"a shard's place is a path, or a machine and a path, not {given!r}")
        return cls(os.path.abspath(given), host)


@dataclass(frozen=True)
class Move:
    """A shard that has another owner, since the worker that had it is gone."""

    shard: int
    path: str
    lost_worker: str
    worker: str


@dataclass(eq=False)
class _Routes:
    """Who has the shards of a key space, as far as this process knows."""

    owners: dict[int, str] = field(default_factory=dict)
    #: Owners that are gone, until there are others.
    lost: dict[int, str] = field(default_factory=dict)
    looking: dict[int, asyncio.Lock] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)


#: By the key space's id. All objects of a process share them: an owner's death is met once.
_ROUTES: dict[str, _Routes] = {}
_ROUTES_MAX = 256


def _routes(id: str) -> _Routes:
    if len(_ROUTES) >= _ROUTES_MAX and id not in _ROUTES:
        _ROUTES.clear()
    return _ROUTES.setdefault(id, _Routes())


class Shards(MutableMapping[bytes, bytes]):
    """Keys and values over several stores, each of which one worker of Dask has open.

    A change is acknowledged once it is durable in its shard's store, as that store's durability
    says. If a worker dies, the next call to one of its shards has another worker open the file, and
    warns with `ShardMoved`; `moves` has all of them. Where none can, calls raise `ShardMissing`.

    It can be pickled to the workers, which reach their own shards without a detour. A call that an
    owner's death has cut off is sent again to the next one.
    """

    def __init__(
        self,
        id: str,
        places: Sequence[Place],
        points: int,
        options: Options,
        tree: str,
        client: Client | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        #: The name that all shards have in common.
        self.id = id
        #: Where the shards are, in the order of their numbers.
        self.places = list(places)
        #: The name of the tree.
        self.tree = tree
        #: The ring that assigns keys.
        self.ring = ring(len(self.places), points)
        #: Seconds for which calls wait for another owner after a worker was lost.
        self.patience = patience
        self._options = options
        self._client = client
        self._routes = _routes(id)
        self._is_closed = False

    # Making and opening.

    @classmethod
    def create(
        cls,
        places: Iterable[Place | PathLike | tuple[str, PathLike]],
        client: Client | None = None,
        *,
        tree: str = "data",
        options: Options | None = None,
        patience: float = _PATIENCE,
    ) -> Shards:
        """Makes a store for each place, a path or a machine and a path."""
        shards = cls._new(places, client, tree, options, patience)
        shards._name(uuid.uuid4().hex)
        try:
            for shard in range(len(shards.places)):
                shards._run(shards._opened(shard, creates=shards._layout(shard)))
        except BaseException:
            with contextlib.suppress(Exception):
                shards._run(shards._closed(removes=True))
            raise
        return shards

    @classmethod
    def open(
        cls,
        places: Iterable[Place | PathLike | tuple[str, PathLike]],
        client: Client | None = None,
        *,
        tree: str = "data",
        options: Options | None = None,
        patience: float = _PATIENCE,
    ) -> Shards:
        """Opens shards that exist, all of them, in any order."""
        shards = cls._new(places, client, tree, options, patience)
        shards._run(shards._recognised())
        return shards

    @classmethod
    def _new(
        cls,
        places: Iterable[Place | PathLike | tuple[str, PathLike]],
        client: Client | None,
        tree: str,
        options: Options | None,
        patience: float,
    ) -> Shards:
        distributed = module("distributed", "dask", "isobath.shards")
        if isinstance(places, (str, bytes, os.PathLike)):
            raise TypeError("the places are a list of paths")
        found = [Place.of(place) for place in places]
        if len(set(found)) != len(found):
            raise InvalidArgument("two shards have the same place")
        client = client or distributed.get_client()
        if not isinstance(client, distributed.Client):
            raise TypeError(f"the client is one of Dask, not {type(client).__name__}")
        if client.asynchronous:
            raise InvalidArgument("the client is asynchronous: give one that waits")
        points = ring(len(found)).points
        shards = cls("", found, points, options or Options(), tree, client, patience)
        from isobath.shards._host import Host
        from isobath.shards._tasks import Frees

        client.register_plugin(Host())
        client.register_plugin(Frees())
        return shards

    def _name(self, id: str) -> None:
        self.id = id
        self._routes = _routes(id)
        # Those of an event loop that may be gone.
        self._routes.looking.clear()

    @property
    def moves(self) -> list[Move]:
        """The shards that have other owners since workers died, as far as this process met it."""
        return self._routes.moves

    def _layout(self, shard: int) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "id": self.id,
            "shard": shard,
            "count": len(self.places),
            "points": self.ring.points,
        }

    async def _recognised(self) -> None:
        """Opens all places, and puts them into the order of the shards' numbers."""
        found: dict[int, tuple[Place, dict[str, Any], str]] = {}
        try:
            for place in self.places:
                layout, worker = await self._tried(-1, place, None)
                if layout["format"] != _FORMAT:
                    raise InvalidArgument(f"{place.path} has the format {layout['format']}")
                first = next(iter(found.values()), None)
                if first is not None and first[1]["id"] != layout["id"]:
                    raise InvalidArgument(
                        f"{place.path} and {first[0].path} are shards of different key spaces"
                    )
                if layout["shard"] in found:
                    other = found[layout["shard"]][0].path
                    raise InvalidArgument(f"{place.path} and {other} are the same shard")
                found[layout["shard"]] = (place, layout, worker)
            count = next(iter(found.values()))[1]["count"]
            missing = sorted(set(range(count)) - set(found))
            if missing:
                raise ShardMissing(
                    f"{count} shards make the key space, and {len(found)} are named: shard "
                    f"{missing[0]} is missing",
                    missing[0],
                )
        except BaseException:
            for shard, (_, layout, worker) in found.items():
                with contextlib.suppress(Exception):
                    await self._ask(worker, "close", id=layout["id"], shard=shard)
            raise
        layout = found[0][1]
        self._name(layout["id"])
        self.places = [found[shard][0] for shard in range(count)]
        self.ring = ring(count, layout["points"])
        for shard, (_, _, worker) in found.items():
            self._routes.owners[shard] = worker

    def close(self) -> None:
        """Has the owners close all shards. Other objects open them again when they are used."""
        if self._is_closed:
            return
        self._is_closed = True
        self._run(self._closed())

    async def _closed(self, removes: bool = False) -> None:
        for worker in await self._workers():
            _, shards = await self._which(worker) or ("", [])
            for shard in shards:
                await self._ask(worker, "close", id=self.id, shard=shard, removes=removes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "places": self.places,
            "points": self.ring.points,
            "options": self._options,
            "tree": self.tree,
            "patience": self.patience,
            "owners": dict(self._routes.owners),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        owners = state.pop("owners")
        Shards.__init__(self, **state)
        for shard, worker in owners.items():
            # What this process knows is newer.
            self._routes.owners.setdefault(shard, worker)

    def __repr__(self) -> str:
        return f"<isobath.Shards {self.id[:8]} of {len(self.places)} stores>"

    # Owners.

    def owner(self, key: bytes) -> str:
        """The address of the worker that has the shard of a key."""
        shard, _ = self._of(key)
        return self._routes.owners.get(shard) or self._run(self._owner(shard))

    def owners(self) -> dict[int, str]:
        """The workers' addresses, by the shards' numbers. Looks for those that are not known."""

        async def found() -> dict[int, str]:
            return {shard: await self._owner(shard) for shard in range(len(self.places))}

        known = dict(self._routes.owners)
        return known if len(known) == len(self.places) else self._run(found())

    async def _owner(self, shard: int) -> str:
        known = self._routes.owners.get(shard)
        if known is not None:
            return known
        async with self._routes.looking.setdefault(shard, asyncio.Lock()):
            known = self._routes.owners.get(shard)
            return known if known is not None else await self._opened(shard)

    async def _opened(self, shard: int, creates: dict[str, Any] | None = None) -> str:
        """Finds the worker that has a shard, or has one open it."""
        _, worker = await self._tried(shard, self.places[shard], creates)
        self._routes.owners[shard] = worker
        lost = self._routes.lost.pop(shard, None)
        if lost is not None and lost != worker:
            move = Move(shard, self.places[shard].path, lost, worker)
            self._routes.moves.append(move)
            sentence = f"worker {lost} is gone; {worker} has opened its shard {shard}, {move.path}"
            LOGGER.info("%s", sentence)
            warnings.warn(sentence, ShardMoved, stacklevel=2)
        return worker

    async def _tried(
        self, shard: int, place: Place, creates: dict[str, Any] | None
    ) -> tuple[dict[str, Any], str]:
        """Has a worker open a place, unless one has; the layout that it read, and the worker."""
        began = time.monotonic()
        while True:
            reasons: dict[str, str] = {}
            loads: dict[str, int] = {}
            fits: list[str] = []
            workers = await self._workers()
            for worker, names in workers.items():
                found = await self._which(worker)
                if found is None:
                    reasons[worker] = "it does not answer"
                    continue
                machine, shards = found
                if shard in shards:
                    return {"id": self.id, "shard": shard}, worker
                loads[worker] = len(shards)
                if place.host is None or place.host in names | {machine}:
                    fits.append(worker)
            # A worker that ends may have it open still; one that is started again may come.
            is_waiting = shard in self._routes.lost or not fits
            for worker in sorted(fits, key=lambda one: (loads[one], _weight(one, place.path))):
                try:
                    layout = await self._ask(
                        worker,
                        "open",
                        id=self.id,
                        shard=shard,
                        path=place.path,
                        options=self._options,
                        creates=creates,
                    )
                except Exception as error:
                    if creates is not None:
                        raise
                    reasons[worker] = str(error)
                    is_waiting |= isinstance(error, StoreInUse) or _is_lost(error)
                else:
                    return layout, worker
            if not is_waiting or time.monotonic() - began > self.patience:
                raise self._missing(shard, place, reasons)
            await asyncio.sleep(_PAUSE)

    def _missing(self, shard: int, place: Place, reasons: dict[str, str]) -> ShardMissing:
        lost = self._routes.lost.get(shard)
        where = f"{place.path} on {place.host}" if place.host else place.path
        what = f"shard {shard} ({where})" if shard >= 0 else where
        why = "; ".join(f"{worker}: {reason}" for worker, reason in reasons.items())
        had = f", and worker {lost}, which had it, is gone" if lost else ""
        return ShardMissing(
            f"no worker can open {what}{had}: {why or 'there is no worker that could have it'}",
            shard,
            place.path,
            lost,
            reasons,
        )

    async def _which(self, worker: str) -> tuple[str, list[int]] | None:
        """A worker's machine, and the shards that it has open; `None` if it does not answer."""
        try:
            machine, shards = await self._ask(worker, "which", id=self.id)
        except OSError:
            return None
        return machine, list(shards)

    # Talking to workers.

    def _peer(self) -> Any:
        """The worker of this process, or its client: what reaches the others."""
        if self._client is not None:
            return self._client
        from isobath.shards._host import HOSTS

        for host in HOSTS:
            if host.worker.status.name in ("running", "paused"):
                return host.worker
        return module("distributed", "dask", "isobath.shards").get_client()

    async def _workers(self) -> dict[str, set[str]]:
        """The workers of the cluster, and the names that each answers to."""
        found = await self._peer().scheduler.identity(n_workers=-1)
        workers = {}
        for address, about in found["workers"].items():
            host = urlsplit(address).hostname
            names = {address, str(about.get("name")), str(about.get("host")), str(host)}
            workers[address] = names
        return workers

    async def _ask(self, worker: str, action: str, **given: Any) -> Any:
        """An answer of a worker."""
        from isobath.shards._host import HANDLER, failure

        core = module("distributed.core", "dask", "isobath.shards")
        pool = self._peer().rpc
        comm = await self._connected(pool, worker)
        try:
            answer = await core.send_recv(comm, op=HANDLER, action=action, **given)
        finally:
            pool.reuse(worker, comm)
        if answer is None:
            raise _Elsewhere(f"{worker} does not serve shards yet")
        if answer[0] == "elsewhere":
            raise _Elsewhere(f"{worker} does not have the shard")
        if answer[0] == "failed":
            raise failure(answer[1], answer[2])
        return answer[1]

    async def _connected(self, pool: Any, worker: str) -> Any:
        """A connection to a worker, given up once the scheduler has lost it."""
        connecting = asyncio.ensure_future(pool.connect(worker))
        try:
            while True:
                done, _ = await asyncio.wait({connecting}, timeout=_CONNECTED_WITHIN)
                if done:
                    return connecting.result()
                if worker not in await self._workers():
                    raise ConnectionRefusedError(f"{worker} is gone")
        finally:
            if not connecting.done():
                connecting.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await connecting

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for a coroutine on the loop that has the connections."""
        loop = self._peer().loop.asyncio_loop
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is loop:
                work.close()
                raise InvalidArgument("a call that waits was made in Dask's own event loop")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _sent(self, shard: int, operation: str, *given: Any) -> Any:
        """The answer of a shard's owner, on the loop that has the connections."""
        reasons: dict[str, str] = {}
        for _ in range(_CALLS):
            worker = await self._owner(shard)
            try:
                return await self._ask(
                    worker,
                    "call",
                    id=self.id,
                    shard=shard,
                    tree=self.tree,
                    operation=operation,
                    given=given,
                )
            except OSError as error:
                if not _is_lost(error):
                    raise
                reasons[worker] = str(error)
                is_gone = not isinstance(error, _Elsewhere)
            if self._routes.owners.get(shard) == worker:
                del self._routes.owners[shard]
                if is_gone:
                    self._routes.lost.setdefault(shard, worker)
        raise self._missing(shard, self.places[shard], reasons)

    def _call(self, shard: int, operation: str, *given: Any) -> Any:
        """As `call`, for threads."""
        if self._is_closed:
            raise Closed("the shards were closed")
        from isobath.shards._host import local

        found = local(self.id, shard) if operation in _AT_ONCE else None
        if found is not None:
            # It may be closed at this moment.
            with contextlib.suppress(Closed):
                return _AT_ONCE[operation](found.tree(self.tree), *given)
        return self._run(self._sent(shard, operation, *given))

    async def call(self, shard: int, operation: str, *given: Any) -> Any:
        """The answer of a shard's owner, on any event loop."""
        if self._is_closed:
            raise Closed("the shards were closed")
        from isobath.shards._host import OPERATIONS, local

        found = local(self.id, shard)
        if found is not None:
            tree = found.trees.get(self.tree)
            with contextlib.suppress(Closed):
                if tree is None:
                    tree = await asyncio.to_thread(found.tree, self.tree)
                return await OPERATIONS[operation](tree, *given)
        work = self._sent(shard, operation, *given)
        loop = self._peer().loop.asyncio_loop
        if asyncio.get_running_loop() is loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def _calls(self, calls: Iterable[tuple[int, str, tuple[Any, ...]]]) -> list[Any]:
        """The answers of several shards, all asked at a time."""
        if self._is_closed:
            raise Closed("the shards were closed")

        async def together() -> list[Any]:
            return await asyncio.gather(
                *(self._sent(shard, operation, *given) for shard, operation, given in calls)
            )

        return self._run(together())

    # The mapping.

    def _of(self, key: object) -> tuple[int, bytes]:
        if not isinstance(key, (bytes, bytearray, memoryview)):
            raise TypeError(f"a key is bytes, not {type(key).__name__}")
        key = bytes(key)
        return self.ring.shard_of(key), key

    def __getitem__(self, key: bytes) -> bytes:
        shard, key = self._of(key)
        value: bytes | None = self._call(shard, "get", key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        shard, key = self._of(key)
        return self._call(shard, "size", key) is not None

    def __setitem__(self, key: bytes, value: bytes) -> None:
        shard, key = self._of(key)
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise TypeError(f"a value is bytes, not {type(value).__name__}")
        self._call(shard, "put", key, bytes(value))

    def __delitem__(self, key: bytes) -> None:
        shard, key = self._of(key)
        if not self._call(shard, "discard", key):
            raise KeyError(key)

    def discard(self, key: bytes) -> bool:
        """Removes a key; whether it was there, as far as the owner that answered knows."""
        shard, key = self._of(key)
        return bool(self._call(shard, "discard", key))

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The values of many keys, all shards at a time."""
        found_at = [self._of(key) for key in keys]
        groups: dict[int, list[int]] = {}
        for at, (shard, _) in enumerate(found_at):
            groups.setdefault(shard, []).append(at)
        calls = [
            (shard, "get_many", ([found_at[at][1] for at in group],))
            for shard, group in groups.items()
        ]
        values: list[bytes | None] = [None] * len(found_at)
        for group, found in zip(groups.values(), self._calls(calls)):
            for at, value in zip(group, found):
                values[at] = value
        return values

    def put_many(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Stores many records: one commit for each shard, and not one for all."""
        groups: dict[int, list[tuple[bytes, bytes]]] = {}
        for key, value in items:
            shard, key = self._of(key)
            groups.setdefault(shard, []).append((key, bytes(value)))
        self._calls((shard, "put_many", (group,)) for shard, group in groups.items())

    def __iter__(self) -> Iterator[bytes]:
        return self.scan("keys")

    def scan(self, gives: str = "items", prefix: bytes = b"") -> Iterator[Any]:
        """All keys, items or sizes with a prefix, in the order of the keys of all shards."""
        if gives not in ("keys", "items", "sizes"):
            raise InvalidArgument(f"a scan gives keys, items or sizes, not {gives!r}")
        parts = [self._scan_one(shard, gives, prefix) for shard in range(len(self.places))]
        return heapq.merge(*parts, key=None if gives == "keys" else lambda item: item[0])

    def _scan_one(self, shard: int, gives: str, prefix: bytes) -> Iterator[Any]:
        from isobath.shards._host import PAGE

        start: bytes | None = None
        # Values may be large.
        count = PAGE if gives != "items" else 64
        while True:
            found, is_last = self._call(shard, "page", gives, start, prefix, count)
            yield from found
            if is_last:
                return
            last = found[-1]
            start = (last if gives == "keys" else last[0]) + b"\0"

    def __len__(self) -> int:
        return self.count()

    def count(self, prefix: bytes = b"") -> int:
        """The number of keys with a prefix."""
        shards = range(len(self.places))
        return int(sum(self._calls((shard, "count", (prefix,)) for shard in shards)))

    def remove_prefix(self, prefix: bytes) -> int:
        """Removes all keys with a prefix; how many there were."""
        shards = range(len(self.places))
        return int(sum(self._calls((shard, "remove", (prefix,)) for shard in shards)))

    def clear(self) -> None:
        """Removes all keys."""
        self.remove_prefix(b"")


#: Operations that a thread does itself where this process has the shard.
_AT_ONCE: dict[str, Any] = {
    "get": lambda tree, key: tree.get(key),
    "put": lambda tree, key, value: tree.__setitem__(key, value),
    "discard": lambda tree, key: tree.discard(key),
}


class _Elsewhere(OSError):
    """A worker does not have the shard that it was asked for."""


def _is_lost(error: BaseException) -> bool:
    """Whether a connection failed, and not the store."""
    return isinstance(error, OSError) and not isinstance(error, Error)


def _weight(worker: str, path: str) -> bytes:
    """The order in which workers are asked, another one for each shard."""
    return hashlib.blake2b(f"{worker} {path}".encode(), digest_size=8).digest()
