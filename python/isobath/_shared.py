"""Open stores that several objects of this process share, by their real paths."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

from isobath._errors import Closed, Forked
from isobath._store import Options, PathLike, Store, opened


class Gate:
    """Lets any number of changes through, or one that no other may be beside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A change beside others."""
        with self._changed:
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A change that waits for the others; those that come wait for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._inside == 0)
            yield


@dataclass(eq=False)
class _Shared:
    store: Store
    #: Objects that use it.
    users: int
    #: Whether the last user closes it: not what the program has opened itself.
    is_ours: bool
    gate: Gate = field(default_factory=Gate)


_SHARED: dict[tuple[str, bool], _Shared] = {}
#: Collecting garbage may end a use while another one begins.
_LOCK = threading.RLock()


class Lease:
    """The use of a store that may have other users. The last one to end closes it.

    A store that this process has open already is that one. Otherwise it is opened; for writing, it
    is created if `creates`.
    """

    def __init__(self, path: PathLike, options: Options | None = None, *, creates: bool) -> None:
        options = options or Options()
        #: The process whose store it is.
        self._process = os.getpid()
        self._shared = _acquired(os.path.realpath(path), options, creates)
        self._end = weakref.finalize(self, _released, self._shared, self._process)
        # At the end of the program all stores are closed together.
        self._end.atexit = False

    @property
    def store(self) -> Store:
        """The open store."""
        if self._process != os.getpid():
            raise Forked("the store was opened before this process was forked: open it again here")
        if not self._end.alive or self._shared.store.closed:
            raise Closed("the store is closed")
        return self._shared.store

    @property
    def gate(self) -> Gate:
        """Where changes pass that removing a tree must not be beside."""
        return self._shared.gate

    def close(self) -> None:
        """Ends the use. Ending it again does nothing."""
        self._end()


def _acquired(path: str, options: Options, creates: bool) -> _Shared:
    reads = options.get("read_only", False)
    with _LOCK:
        shared = _SHARED.get((path, False)) or _SHARED.get((path, reads))
        if shared is not None and not shared.store.closed:
            shared.users += 1
            return shared
        for store in opened():
            if not store.closed and not store.read_only and _is_at(store, path):
                shared = _Shared(store, 1, False)
                break
        else:
            is_made = creates and not reads
            how = Store.open_or_create if is_made else Store.open
            shared = _Shared(how(path, **options), 1, True)
        _SHARED[path, shared.store.read_only] = shared
        return shared


def _is_at(store: Store, path: str) -> bool:
    return [os.path.realpath(part) for part in store.paths] == [path]


def _released(shared: _Shared, process: int) -> None:
    if process != os.getpid():
        return
    with _LOCK:
        shared.users -= 1
        if shared.users > 0:
            return
        for place in [place for place, known in _SHARED.items() if known is shared]:
            del _SHARED[place]
        if shared.is_ours:
            shared.store.close()


def keep_open(store: Store) -> None:
    """Has a store stay open at the end of its leases: the program has the object itself."""
    with _LOCK:
        for shared in _SHARED.values():
            if shared.store is store:
                shared.is_ours = False


def _forget() -> None:
    """Those of the parent belong to it."""
    global _LOCK
    _SHARED.clear()
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_forget)
