"""The worker's side: shards that a worker has open, and what others ask of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from dataclasses import dataclass, field
from typing import Any

from distributed import WorkerPlugin

from isobath import _errors
from isobath._aio import end
from isobath._errors import Closed, Error, InvalidArgument
from isobath._store import Options, Store
from isobath._tree import Tree

LOGGER = logging.getLogger("isobath.shards")

#: The name of the handler that workers have.
HANDLER = "isobath_shards"
#: The tree that has the layout, and its key.
_ABOUT = "isobath.shards"
_LAYOUT = b"layout"
#: Records of one answer, and keys of a listing that one task reads.
PAGE = 1024

#: The hosts of this process.
HOSTS: list[Host] = []


@dataclass(eq=False)
class Shard:
    """An open shard."""

    store: Store
    path: str
    layout: dict[str, Any]
    trees: dict[str, Tree] = field(default_factory=dict)

    def tree(self, name: str) -> Tree:
        """A tree of its, which is made if there is none."""
        tree = self.trees.get(name)
        if tree is None:
            tree = self.trees[name] = self.store.open_or_create_tree(name)
        return tree


class Host(WorkerPlugin):
    """Has every worker of a cluster serve shards."""

    name = "isobath-shards"
    idempotent = True

    def setup(self, worker: Any) -> None:
        """Begins to answer."""
        self.worker = worker
        #: By the layout's id and the shard's number.
        self.shards: dict[tuple[str, int], Shard] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        worker.handlers[HANDLER] = self.handle
        HOSTS.append(self)

    async def teardown(self, worker: Any) -> None:
        """Closes its shards in order: others open them then."""
        worker.handlers.pop(HANDLER, None)
        if self in HOSTS:
            HOSTS.remove(self)
        for shard in [self.shards.pop(key) for key in list(self.shards)]:
            await asyncio.to_thread(shard.store.close)

    async def handle(self, action: str, **given: Any) -> Any:
        """Answers another process: `("done", answer)`, or what failed."""
        try:
            match action:
                case "which":
                    shards = [shard for id, shard in self.shards if id == given["id"]]
                    return "done", (socket.gethostname(), shards)
                case "open":
                    return "done", await self._open(**given)
                case "close":
                    return "done", await self._close(**given)
                case "call":
                    return await self._call(**given)
            raise InvalidArgument(f"no action is called {action!r}")
        except Exception as error:
            return "failed", type(error).__name__, str(error)

    async def _open(
        self, id: str, shard: int, path: str, options: Options, creates: dict[str, Any] | None
    ) -> dict[str, Any]:
        """The layout that the shard's store has. Without an id, whichever shard is there."""
        async with self._opening.setdefault(os.path.realpath(path), asyncio.Lock()):
            for known in self.shards.values():
                is_it = os.path.realpath(known.path) == os.path.realpath(path)
                if is_it and creates is None and id in ("", known.layout["id"]):
                    return known.layout
            opened, layout = await asyncio.to_thread(_opened, path, options, creates)
            key = (layout["id"], layout["shard"])
            what = f"shard {layout['shard']} of {layout['id']}"
            if id and key != (id, shard):
                sentence = f"{path} is {what}, and not shard {shard} of {id}"
            elif key in self.shards:
                sentence = f"{path} is a copy of {self.shards[key].path}: both are {what}"
            else:
                self.shards[key] = Shard(opened, path, layout)
                LOGGER.info("%s has opened %s at %s", self.worker.address, what, path)
                return layout
            await asyncio.to_thread(opened.close)
            raise InvalidArgument(sentence)

    async def _close(self, id: str, shard: int, removes: bool = False) -> bool:
        found = self.shards.pop((id, shard), None)
        if found is not None:
            await asyncio.to_thread(found.store.close)
            if removes:
                os.unlink(found.path)
        return found is not None

    async def _call(self, id: str, shard: int, tree: str, operation: str, given: Any) -> Any:
        found = self.shards.get((id, shard))
        if found is None:
            return ("elsewhere",)
        try:
            known = found.trees.get(tree)
            if known is None:
                known = await asyncio.to_thread(found.tree, tree)
            return "done", await OPERATIONS[operation](known, *given)
        except Closed:
            # It was closed a moment ago: another worker opens it.
            return ("elsewhere",)


def _opened(
    path: str, options: Options, creates: dict[str, Any] | None
) -> tuple[Store, dict[str, Any]]:
    """Opens a shard's store: one that exists, unless `creates` is its layout."""
    store = Store.open(path, **options) if creates is None else Store.create(path, **options)
    try:
        if creates is not None:
            store.create_tree(_ABOUT)[_LAYOUT] = json.dumps(creates).encode()
            # Whatever the durability is.
            store.sync()
            return store, creates
        if _ABOUT not in store.trees():
            raise InvalidArgument(f"{path} is a store, and no shard")
        layout: dict[str, Any] = json.loads(store.tree(_ABOUT)[_LAYOUT])
        return store, layout
    except BaseException:
        with contextlib.suppress(Error):
            store.close()
        raise


def local(id: str, shard: int) -> Shard | None:
    """A shard that a worker of this process has open."""
    for host in HOSTS:
        found = host.shards.get((id, shard))
        if found is not None and not found.store.closed:
            return found
    return None


def failure(kind: str, sentence: str) -> Exception:
    """An exception that another process has named."""
    found = getattr(_errors, kind, None)
    if not isinstance(found, type):
        builtin = {"KeyError": KeyError, "TypeError": TypeError, "ValueError": ValueError}
        found = builtin.get(kind, RuntimeError)
    made: Exception = found(sentence)
    return made


# Operations on a tree, without waiting threads where the engine has tasks for them. All of them may
# run a second time where it is not known whether they did.


async def _get(tree: Tree, key: bytes) -> bytes | None:
    return await tree.get_async(key)


async def _part(tree: Tree, key: bytes, start: int | None, stop: int | None) -> bytes | None:
    found: bytes | None = await end(tree.start_part(key, start, stop))
    return found


async def _get_many(tree: Tree, keys: Any) -> list[bytes | None]:
    return await tree.get_many_async(list(keys))


async def _size(tree: Tree, key: bytes) -> int | None:
    sizes, _ = await end(tree.start_range("sizes", key, key + b"\0", None, False, 1))
    return sizes[0][1] if sizes else None


async def _put(tree: Tree, key: bytes, value: Any) -> None:
    await end(tree.start_put(key, value))


async def _put_many(tree: Tree, items: Any) -> None:
    await asyncio.to_thread(tree.put_many, [(key, value) for key, value in items])


async def _insert(tree: Tree, key: bytes, value: Any) -> bool:
    return await asyncio.to_thread(tree.compare_and_swap, key, None, value)


async def _discard(tree: Tree, key: bytes) -> bool:
    return await tree.discard_async(key)


async def _remove(tree: Tree, prefix: bytes) -> int:
    return await asyncio.to_thread(lambda: tree.remove_range(prefix=prefix))


async def _count(tree: Tree, prefix: bytes) -> int:
    return await asyncio.to_thread(lambda: tree.count(prefix=prefix))


async def _page(
    tree: Tree, gives: str, start: bytes | None, prefix: bytes, count: int
) -> tuple[list[Any], bool]:
    found, is_last = await end(tree.start_range(gives, start, None, prefix, False, count))
    return found, is_last


async def _level(tree: Tree, prefix: bytes) -> list[bytes]:
    """The names of keys and directories behind a prefix."""
    names: dict[bytes, None] = {}
    start: bytes | None = None
    count = 1
    while True:
        keys, is_last = await end(tree.start_range("keys", start, None, prefix, False, count))
        directory = None
        for key in keys:
            name, slash, _ = key[len(prefix) :].partition(b"/")
            names[name] = None
            directory = name if slash else None
        if is_last:
            return list(names)
        count = min(2 * count, PAGE)
        start = keys[-1] + b"\0"
        if directory is not None:
            # Behind all keys of the directory: "0" comes after "/".
            start = prefix + directory + b"0"
            count = 1


OPERATIONS: dict[str, Any] = {
    "count": _count,
    "discard": _discard,
    "get": _get,
    "get_many": _get_many,
    "insert": _insert,
    "level": _level,
    "page": _page,
    "part": _part,
    "put": _put,
    "put_many": _put_many,
    "remove": _remove,
    "size": _size,
}
