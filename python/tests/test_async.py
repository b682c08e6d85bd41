"""Coroutines over the engine's tasks."""

import asyncio
import contextlib

import pytest
from isobath import Closed, Conflict, InvalidArgument, Store, Transaction, Tree


def test_operations(store: Store, tree: Tree) -> None:
    async def work() -> None:
        await tree.put_async(b"a", b"1")
        assert await tree.get_async(b"a") == b"1"
        assert await tree.get_async(b"no", 5) == 5
        assert await tree.discard_async(b"a") and not await tree.discard_async(b"a")
        await asyncio.gather(*(tree.put_async(b"%04d" % n, b"v%d" % n) for n in range(500)))
        keys = [b"%04d" % n for n in range(0, 600, 3)]
        many = await asyncio.gather(*(tree.get_async(key) for key in keys))
        assert many == await tree.get_many_async(keys) == tree.get_many(keys)
        records = [record async for record in tree.range_async()]
        assert records == list(tree.items())
        backwards = [record async for record in tree.range_async(prefix=b"01", reverse=True)]
        assert backwards == list(tree.prefix(b"01", reverse=True))

    for _ in range(2):
        asyncio.run(work())
        tree.clear()


def test_errors(store: Store, tree: Tree) -> None:
    async def work() -> None:
        with pytest.raises(InvalidArgument, match="1025"):
            await tree.put_async(b"k" * 1025, b"")
        with store.transaction() as transaction, pytest.raises(InvalidArgument, match="no transaction"):
            await transaction[tree].get_async(b"k")
        store.close()
        with pytest.raises(Closed):
            await tree.get_async(b"k")

    asyncio.run(work())


def test_cancelled_changes_go_on(tree: Tree) -> None:
    async def work() -> None:
        change = asyncio.create_task(tree.put_async(b"a", bytes(1 << 20)))
        await asyncio.sleep(0)
        change.cancel()
        # It may have ended before.
        with contextlib.suppress(asyncio.CancelledError):
            await change
        while await tree.get_async(b"a") is None:
            await asyncio.sleep(0.001)

    asyncio.run(work())
    assert len(tree[b"a"]) == 1 << 20


def test_transactions(store: Store, tree: Tree) -> None:
    async def add(transaction: Transaction) -> None:
        view = transaction[tree]
        old = int(view.get(b"n", b"0"))
        await asyncio.sleep(0)
        view[b"n"] = b"%d" % (old + 1)

    async def work() -> None:
        await asyncio.gather(*(store.transact_async(add) for _ in range(20)))
        async with store.transaction() as transaction:
            transaction[tree][b"m"] = b"1"
        with pytest.raises(Conflict):
            async with store.transaction() as transaction:
                transaction[tree][b"m"] = b"2"
                tree[b"m"] = b"3"

    asyncio.run(work())
    assert tree[b"n"] == b"20" and tree[b"m"] == b"3"
