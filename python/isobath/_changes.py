"""The stream of a store's committed changes."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Literal, NamedTuple, cast

from isobath import _native
from isobath._errors import Closed

Kind = Literal["put", "remove", "create", "drop", "replace"]


class Change(NamedTuple):
    """One change of a transaction."""

    #: `"put"` gives a key a value, `"remove"` takes it away, `"create"` and `"drop"` are about a
    #: tree without records. After `"replace"` the tree has, from `key` on, the records that
    #: `Committed.records` gives and no others.
    kind: Kind
    #: The tree's name.
    tree: str
    #: The key; of `"replace"` the least that is concerned; else `None`.
    key: bytes | None
    #: The value of a `"put"`; else `None`.
    value: bytes | None


class Committed:
    """The changes of one transaction, or of several in a row, to be applied as one."""

    __slots__ = ("_native", "changes", "is_whole", "position")

    def __init__(self, native: _native.Committed) -> None:
        self._native = native
        #: The position behind it, as text, from which a stream goes on.
        self.position: str = native.position
        #: Whether the store has no trees but those in `changes`, all of which are replaced.
        self.is_whole: bool = native.is_whole
        listed = native.listed()
        #: The changes, in order.
        self.changes: list[Change] = [
            Change(cast(Kind, kind), tree, key, value) for kind, tree, key, value in listed
        ]

    def records(self, tree: str) -> Iterator[tuple[bytes, bytes]]:
        """The records of a tree that was replaced, in order.

        Raises `SnapshotTooOld`, `TreeDropped` or `ReaderOverrun` where the store has gone on too
        far meanwhile: open the stream again, at the position before this transaction.
        """
        last: bytes | None = None
        while records := self._native.fetch(tree, last):
            yield from records
            last = records[-1][0]


class Changes:
    """The committed changes of a store, in order: from `Store.changes`.

    An iterator that waits for the next transaction. It ends after `stop`. When the store is closed
    in this process it raises `Closed`, as large values and loaded trees cannot be read any more;
    one from `Store.changes_beside` ends then, once all was read. ^C raises `KeyboardInterrupt`
    while it waits.

    A stream of a closed store keeps the store's files in use until it has raised `Closed`, is
    closed itself, by `close` or at the end of a `with` block, or is forgotten.
    """

    __slots__ = ("_ends", "_native", "_position")

    def __init__(self, native: _native.Changes, ends: bool = False) -> None:
        self._native: _native.Changes | None = native
        self._ends = ends
        self._position = ""

    def __enter__(self) -> Changes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Changes:
        return self

    def __next__(self) -> Committed:
        try:
            committed = self.take()
        except Closed:
            if not self._ends:
                raise
            raise StopIteration from None
        if committed is None:
            raise StopIteration
        return committed

    def take(self, timeout: float | None = None) -> Committed | None:
        """The next transaction; `None` after `timeout` seconds, or after `stop`.

        Raises `ChangesOverrun` where the log no longer has it, and `Closed`.
        """
        native = self._native
        if native is None:
            raise Closed("the stream of changes is closed")
        try:
            committed = native.take(timeout)
        except Closed:
            self.close()
            raise
        return None if committed is None else Committed(committed)

    @property
    def position(self) -> str:
        """The position behind all that was given out, or that concerns no tree."""
        native = self._native
        return self._position if native is None else native.position

    def stop(self) -> None:
        """Ends the waiting, in any thread."""
        native = self._native
        if native is not None:
            native.stop()

    def close(self) -> None:
        """Ends the waiting, and lets go of the store's files."""
        native = self._native
        if native is not None:
            native.stop()
            self._position = native.position
            self._native = None
