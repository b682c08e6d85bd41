"""The exceptions of the package. Their sentences are the engine's."""

from __future__ import annotations


class Error(Exception):
    """The root of all exceptions of this package."""

    #: Whether the same work may succeed when it is run again from its beginning, as
    #: `Store.transact` does.
    retryable = False


class InvalidArgument(Error, ValueError):
    """A key, value, name or option that is impossible."""


class StoreNotFound(Error, FileNotFoundError):
    """A file of the store, its log, or a backup does not exist."""


class StoreExists(Error, FileExistsError):
    """A file to be made exists already."""


class StoreInUse(Error):
    """Another process, or another opening in this one, has the store open for writing."""


class NotAStore(Error):
    """The file is no store."""


class UnsupportedFormat(Error):
    """Another version of Isobath wrote the file, in a format that this one does not read."""


class Corruption(Error):
    """Bytes on the drive are not what they should be."""


class Closed(Error):
    """The store is closed."""


class Forked(Error):
    """The store was opened before this process was forked: open it again in this one."""


class ReadOnly(Error):
    """The store or the transaction is for reading only."""


class Poisoned(Error):
    """An earlier write failed; the store accepts no more changes."""


class NoSpace(Error, OSError):
    """There is no space for a change: in the file system, or within the store's limit."""


class IOFailure(Error, OSError):
    """The system or a drive failed."""


class AccessDenied(IOFailure, PermissionError):
    """This user may not open or make a file."""


class NoSuchTree(Error, KeyError):
    """The store has no tree of that name."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class TreeExists(Error):
    """The store has a tree of that name already."""


class TreeDropped(Error):
    """The tree was dropped."""


class ValueReplaced(Error):
    """The value was replaced or removed while it was read as a stream."""

    retryable = True


class ReaderOverrun(Error):
    """The writer has used space again that this older view of the store needs."""


class ChangesOverrun(Error):
    """The log no longer has what a stream of changes needs: copy the store anew."""


class BackupError(Error):
    """A backup cannot be made, or a backup file is not what it should be."""


class TransactionError(Error):
    """A transaction failed."""


class Conflict(TransactionError):
    """Another transaction changed what this one writes, or has read."""

    retryable = True

    def __init__(self, sentence: str, tree: str = "", key: bytes = b"") -> None:
        super().__init__(sentence)
        #: The tree's name.
        self.tree = tree
        #: The key that both concern.
        self.key = key


class SnapshotTooOld(TransactionError):
    """What the transaction or snapshot would read is kept no longer."""

    retryable = True


class TransactionTooLarge(TransactionError):
    """The record of the transaction in the log would be too large."""


class TransactionEnded(TransactionError):
    """The transaction was committed or rolled back."""
