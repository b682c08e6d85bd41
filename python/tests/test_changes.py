"""The stream of a store's changes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from conftest import SMALL
from isobath import ChangesOverrun, Closed, Committed, InvalidArgument, Store, StoreInUse

Copy = dict[str, dict[bytes, bytes]]


def apply(committed: Committed, copy: Copy) -> None:
    if committed.is_whole:
        copy.clear()
    for kind, tree, key, value in committed.changes:
        if kind == "drop":
            copy.pop(tree, None)
            continue
        records = copy.setdefault(tree, {})
        if kind == "put":
            assert key is not None and value is not None
            records[key] = value
        elif kind == "remove":
            assert key is not None
            records.pop(key, None)
        elif kind == "replace":
            assert key is not None
            for old in [old for old in records if old >= key]:
                del records[old]
            records.update(committed.records(tree))


def all_of(store: Store) -> Copy:
    return {name: dict(store.tree(name).items()) for name in store.trees()}


def test_a_copy_that_applies_changes_is_equal_to_its_source() -> None:
    with Store.in_memory(**SMALL) as store:
        tree = store.create_tree("t")
        tree[b"before"] = b"0"
        copy: Copy = {}
        changes = store.changes()
        while committed := changes.take(0):
            apply(committed, copy)
        assert copy == all_of(store) == {"t": {b"before": b"0"}}
        tree[b"a"] = b"1"
        tree[b"large"] = bytes(50_000)
        del tree[b"before"]
        store.create_tree("u").load((b"%04d" % n, b"x" * 30) for n in range(3000))
        store.create_tree("v")
        store.drop_tree("v")
        position = changes.position
        while committed := changes.take(0):
            assert committed.position == changes.position != position
            position = committed.position
            apply(committed, copy)
        assert copy == all_of(store)
        assert len(copy["u"]) == 3000
        tree[b"b"] = b"2"
        again = store.changes(position).take(5)
        assert again is not None
        assert [change[:3] for change in again.changes] == [("put", "t", b"b")]


def test_a_stream_waits_and_ends() -> None:
    store = Store.in_memory(**SMALL)
    tree = store.create_tree("t")
    changes = store.changes(store.log_position())
    began = time.monotonic()
    assert changes.take(0.1) is None
    assert time.monotonic() - began >= 0.1
    threading.Timer(0.1, lambda: tree.__setitem__(b"a", b"1")).start()
    assert next(changes).changes[0].value == b"1"
    threading.Timer(0.1, changes.stop).start()
    assert list(changes) == []
    other = store.changes(changes.position)
    threading.Timer(0.1, store.close).start()
    with pytest.raises(Closed):
        next(other)
    with pytest.raises(Closed):
        other.take(0)


def test_a_stream_beside_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.create(path, **SMALL) as store:
        store.create_tree("t")[b"a"] = b"1"
        changes = Store.changes_beside(path, **SMALL)
        copy: Copy = {}
        while committed := changes.take(0):
            apply(committed, copy)
        store.tree("t")[b"b"] = b"2"
        committed = changes.take(10)
        assert committed is not None
        apply(committed, copy)
        assert copy == {"t": {b"a": b"1", b"b": b"2"}}


def test_what_is_no_position(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", log_bytes=4 << 20, **SMALL) as store:
        position = store.log_position()
        tree = store.create_tree("t")
        for n in range(6000):
            tree[b"%d" % (n % 10)] = b"x" * 1000
        with pytest.raises(ChangesOverrun):
            store.changes(position)
        with pytest.raises(InvalidArgument):
            store.changes("nowhere")
        with Store.in_memory(**SMALL) as other, pytest.raises(InvalidArgument):
            other.changes(position)


def test_a_closed_stream_lets_go_of_the_store(tmp_path: Path) -> None:
    path = tmp_path / "s.iso"
    with Store.create(path, **SMALL) as store:
        tree = store.create_tree("t")
        unread, closed = store.changes(), store.changes(store.log_position())
        tree[b"a"] = b"1"
        assert next(closed).changes[0].key == b"a"
        position = closed.position
        with closed:
            pass
        for _ in range(2):
            with pytest.raises(Closed, match="the stream of changes is closed"):
                closed.take(timeout=0)
            closed.close()
            closed.stop()
        assert closed.position == position
    # It could read the rest of the log.
    with pytest.raises(StoreInUse):
        Store.open(path, **SMALL)
    with pytest.raises(Closed, match="the store is closed"):
        while True:
            unread.take(timeout=0)
    with Store.open(path, **SMALL) as store, store.changes(position) as changes:
        store.tree("t")[b"b"] = b"2"
        assert next(changes).changes[0].key == b"b"
