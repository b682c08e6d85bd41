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
