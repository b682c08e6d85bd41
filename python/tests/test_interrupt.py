"""^C in long calls, which are loops in C here: no step of the interpreter looks for signals."""

import itertools
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import pytest
from conftest import SMALL
from isobath import Store, Tree


@pytest.fixture(autouse=True)
def sigint() -> Iterator[None]:
    """Shells have SIGINT ignored by what runs in the background, and Python keeps that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def is_ended(call: Callable[[], object]) -> bool:
    """Whether SIGINT ends a call. A second one comes if the first has not."""
    begun, ended = threading.Event(), threading.Event()

    def send() -> None:
        begun.wait()
        for seconds in (0.05, 30.0):
            if ended.wait(seconds):
                return
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        begun.set()
        call()
    except KeyboardInterrupt:
        return True
    finally:
        ended.set()
        thread.join()
    return False


def records() -> Iterator[tuple[bytes, bytes]]:
    return zip(map(str.encode, map(str, itertools.count())), repeat(b"v"))


def scan(tree: Tree) -> None:
    cursors = map(tree.cursor, repeat("keys"), repeat(None), repeat(None), repeat(None), repeat(False))
    deque(itertools.chain.from_iterable(cursors), maxlen=0)


CALLS: dict[str, Callable[[Tree], object]] = {
    "scan": scan,
    "load": lambda tree: tree.load(records()),
    "get_many": lambda tree: tree.get_many(map(str.encode, map(str, itertools.count()))),
    "put_many": lambda tree: tree.put_many(records()),
}


@pytest.mark.parametrize("call", CALLS)
def test_ends_long_calls(tree: Tree, call: str) -> None:
    tree.put_many((b"%06d" % n, b"v") for n in range(1000))
    assert is_ended(lambda: CALLS[call](tree))
    assert len(tree) == 1000


def test_ends_counting(tree: Tree) -> None:
    tree.load(itertools.islice(records(), 70_000))
    assert is_ended(lambda: deque(map(tree.count, repeat(None)), maxlen=0))


def test_ends_waiting_for_a_store(path: Path) -> None:
    with Store.create(path, **SMALL) as store:
        assert is_ended(lambda: Store.open(path, open_timeout=60, **SMALL))
        assert store.trees() == []


def test_ends_removing_a_range(tree: Tree) -> None:
    keys = sorted(b"%d" % n for n in range(200_000))
    tree.load(zip(keys, repeat(b"v")))
    assert is_ended(lambda: tree.remove_range(stop=b"9"))
    # The first keys are gone, the others are there.
    left = list(tree)
    assert left == keys[-len(left) :] and b"8" in left


def test_ends_backups_and_restoring(path: Path, tmp_path: Path) -> None:
    backup, copy = tmp_path / "backup", tmp_path / "copy.iso"
    with Store.create(path, durability="none", **SMALL) as store:
        tree = store.create_tree("t")
        tree.load((b"%06d" % n, bytes(1000)) for n in range(150_000))
        assert is_ended(lambda: store.backup(backup))
        assert sorted(tmp_path.iterdir()) == [path]
        tree[b"later"] = b"1"
        store.backup(backup)
    assert is_ended(lambda: Store.restore(backup, copy, **SMALL))
    assert sorted(tmp_path.iterdir()) == [backup, path]
    Store.restore(backup, copy, **SMALL)
    with Store.open(copy, read_only=True, **SMALL) as store:
        assert store.tree("t")[b"later"] == b"1"


def test_ends_waiting_for_changes(store: Store, tree: Tree) -> None:
    changes = store.changes(store.log_position())
    assert is_ended(lambda: next(changes))
    assert is_ended(lambda: changes.take(timeout=60))
    tree[b"a"] = b"1"
    assert next(changes).changes[0].key == b"a"
