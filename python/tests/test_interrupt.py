"""^C in long calls, which are loops in C here: no step of the interpreter looks for signals."""

import itertools
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import pytest
from conftest import SMALL
from isobath import Store, Tree


@contextmanager
def interrupted() -> Iterator[None]:
    """Sends SIGINT soon, and again later unless that has ended the call."""
    ended = threading.Event()

    def send() -> None:
        for seconds in (0.05, 10.0):
            if ended.wait(seconds):
                return
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        ended.set()
        thread.join()


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
    with interrupted():
        CALLS[call](tree)
    assert len(tree) == 1000


def test_ends_waiting_for_a_store(path: Path) -> None:
    with Store.create(path, **SMALL) as store:
        with interrupted():
            Store.open(path, open_timeout=60, **SMALL)
        assert store.trees() == []
