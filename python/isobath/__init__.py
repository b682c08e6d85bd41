"""An embedded, transactional, ordered key-value store for NVMe SSDs.

>>> from isobath import Store
>>> with Store.open_or_create("people.iso") as store:
...     people = store.open_or_create_tree("people")
...     people[b"ada"] = b"Analytical Engine"
...     people[b"ada"]
b'Analytical Engine'
"""

import platform

if (platform.system(), platform.machine()) not in (("Linux", "x86_64"), ("Linux", "aarch64")):
    raise ImportError(
        "isobath runs on Linux, on x86-64 and aarch64, and not on "
        f"{platform.system()} on {platform.machine()}"
    )

from isobath._changes import Change, Changes, Committed
from isobath._errors import (
    AccessDenied,
    BackupError,
    ChangesOverrun,
    Closed,
    Conflict,
    Corruption,
    Error,
    Forked,
    InvalidArgument,
    IOFailure,
    NoSpace,
    NoSuchTree,
    NotAStore,
    Poisoned,
    ReaderOverrun,
    ReadOnly,
    SnapshotTooOld,
    StoreExists,
    StoreInUse,
    StoreNotFound,
    TransactionEnded,
    TransactionError,
    TransactionTooLarge,
    TreeDropped,
    TreeExists,
    UnsupportedFormat,
    ValueReplaced,
)
from isobath._native import MAX_KEY_BYTES, MAX_VALUE_BYTES
from isobath._stats import CheckReport, Compaction, Stats, TreeStats
from isobath._store import Options, Snapshot, Store, Transaction
from isobath._streams import ValueReader, ValueWriter
from isobath._tree import Tree
from isobath._types import Progress

__all__ = [
    "MAX_KEY_BYTES",
    "MAX_VALUE_BYTES",
    "AccessDenied",
    "BackupError",
    "Change",
    "Changes",
    "ChangesOverrun",
    "CheckReport",
    "Closed",
    "Committed",
    "Compaction",
    "Conflict",
    "Corruption",
    "Error",
    "Forked",
    "IOFailure",
    "InvalidArgument",
    "NoSpace",
    "NoSuchTree",
    "NotAStore",
    "Options",
    "Poisoned",
    "Progress",
    "ReadOnly",
    "ReaderOverrun",
    "Snapshot",
    "SnapshotTooOld",
    "Stats",
    "Store",
    "StoreExists",
    "StoreInUse",
    "StoreNotFound",
    "Transaction",
    "TransactionEnded",
    "TransactionError",
    "TransactionTooLarge",
    "Tree",
    "TreeDropped",
    "TreeExists",
    "TreeStats",
    "UnsupportedFormat",
    "ValueReader",
    "ValueReplaced",
    "ValueWriter",
]
