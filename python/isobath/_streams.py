"""Large values as files."""

from __future__ import annotations

import io
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isobath._tree import Tree
    from isobath._types import Buffer


class ValueReader(io.RawIOBase):
    """Reads a value, from its beginning or from where `seek` goes."""

    def __init__(self, tree: Tree, key: Buffer) -> None:
        #: The store stays open as long as the stream.
        self._tree: Tree | None = tree
        self._reader = reader = tree.reader(key)
        #: Bytes of the whole value.
        self.length = reader.length
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if self.closed:
            raise ValueError("the stream is closed")
        if whence == io.SEEK_CUR:
            offset += self._offset
        elif whence == io.SEEK_END:
            offset += self.length
        elif whence != io.SEEK_SET:
            raise ValueError("whence is 0, 1 or 2")
        if offset < 0:
            raise ValueError("a place before the value's beginning")
        if offset != self._offset:
            self._reader.seek(offset)
            self._offset = offset
        return offset

    def readinto(self, buffer: Buffer, /) -> int:
        if self.closed:
            raise ValueError("the stream is closed")
        into = memoryview(buffer).cast("B")
        data = self._reader.read(len(into))
        into[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def tell(self) -> int:
        return self._offset

    def close(self) -> None:
        self._tree = None
        super().close()


class _Discarded(io.IOBase):
    """A stream that changes nothing if its block raises an exception, or if it is forgotten."""

    def discard(self) -> None:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        self.discard()


class ValueWriter(_Discarded, io.RawIOBase):
    """Writes a value, which appears under its key when the stream is closed.

    The tree stays as it was if the block of a `with` statement raises an exception, after
    `discard`, and if the stream is forgotten.
    """

    def __init__(self, tree: Tree, key: Buffer) -> None:
        self._writer = tree.writer(key)
        #: The store stays open as long as the stream.
        self._tree: Tree | None = tree

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        if self.closed:
            raise ValueError("the stream is closed")
        return self._writer.append(data)

    def readinto(self, buffer: Buffer, /) -> int:
        raise io.UnsupportedOperation("not readable")

    def close(self) -> None:
        if not self.closed:
            super().close()
            try:
                self._writer.finish()
            finally:
                self._tree = None

    def discard(self) -> None:
        """Closes the stream and leaves the tree as it was."""
        if not self.closed:
            super().close()
            # There is none if it could not be made.
            if hasattr(self, "_writer"):
                self._writer.discard()
            self._tree = None


class TransactionWriter(_Discarded, io.BytesIO):
    """Collects a value, which a transaction gets when the stream is closed."""

    def __init__(self, tree: Tree, key: bytes) -> None:
        super().__init__()
        self._tree: Tree | None = tree
        self._key = key

    def close(self) -> None:
        tree, self._tree = self._tree, None
        if tree is not None and not self.closed:
            tree[self._key] = self.getvalue()
        super().close()

    def discard(self) -> None:
        """Closes the stream and leaves the tree as it was."""
        self._tree = None
        super().close()
