"""Large values as files."""

from __future__ import annotations

import io
from types import TracebackType
from typing import TYPE_CHECKING

from isobath import _native

if TYPE_CHECKING:
    from isobath._tree import Tree
    from isobath._types import Buffer


class ValueReader(io.RawIOBase):
    """Reads a value from its beginning to its end."""

    def __init__(self, reader: _native.Reader) -> None:
        self._reader: _native.Reader | None = reader
        #: Bytes of the whole value.
        self.length = reader.length
        self._offset = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        if self._reader is None:
            raise ValueError("the stream is closed")
        count = self._reader.read_into(buffer)
        self._offset += count
        return count

    def tell(self) -> int:
        return self._offset

    def close(self) -> None:
        self._reader = None
        super().close()


class ValueWriter(io.RawIOBase):
    """Writes a value, which appears under its key when the stream is closed.

    The tree stays as it was if the block of a `with` statement raises an exception, after
    `discard`, and if the stream is forgotten.
    """

    def __init__(self, writer: _native.Writer) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        if self.closed:
            raise ValueError("the stream is closed")
        return self._writer.append(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._writer.finish()

    def discard(self) -> None:
        """Closes the stream and leaves the tree as it was."""
        if not self.closed:
            super().close()
            self._writer.discard()

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


class TransactionWriter(io.BytesIO):
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
