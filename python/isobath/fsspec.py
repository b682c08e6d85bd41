"""Stores as a file system of fsspec: `isobath://path/to/store.iso/tree/key`.

Needs `fsspec` (`pip install isobath[fsspec]`), which finds it by the protocol.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from typing import Any

from fsspec import AbstractFileSystem  # type: ignore[import-untyped, unused-ignore]
from fsspec.core import has_magic  # type: ignore[import-untyped, unused-ignore]
from fsspec.utils import other_paths  # type: ignore[import-untyped, unused-ignore]

from isobath._errors import InvalidArgument, NoSuchTree, ReadOnly, StoreNotFound
from isobath._shared import Gate, Lease
from isobath._store import Options, Store, Transaction
from isobath._streams import ValueReader
from isobath._tree import Tree

__all__ = ["IsobathFileSystem"]

#: Names of files that become stores when something is written into them.
_EXTENSIONS = (".iso", ".isobath")
#: Bytes of files that move by one transaction.
_MOVED_AT_ONCE = 16 << 20
#: Bytes of a value that is copied in memory.
_COPIED_AT_ONCE = 1 << 20


class IsobathFileSystem(AbstractFileSystem):  # type: ignore[misc, unused-ignore]
    """The trees of stores as directories, and their keys as files.

    A path is that of the store's file or block device, the name of a tree, and a key. Keys with
    slashes make directories, which are there as long as a key is; there are no empty ones. Writing
    creates the tree, and the store too if its name ends with `.iso` or `.isobath`.

    Options are those of `isobath.Store`, such as `pool_bytes` and `read_only`. A store stays open,
    and this process its only writer, until `close` or the end of the program.
    """

    protocol = "isobath"
    root_marker = "/"

    def __init__(self, **options: Any) -> None:
        known = Options.__annotations__
        self._options = Options(**{name: options[name] for name in options if name in known})  # type: ignore[typeddict-item]
        rest = {name: options[name] for name in options if name not in known}
        super().__init__(**rest)
        self._leases: dict[str, Lease] = {}
        self._opening = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(part) for part in path]
        path = os.fspath(path).removeprefix("isobath://").removeprefix("isobath::")
        if ".." in path.split("/"):
            raise InvalidArgument(f"the path {path!r} has the segment '..'")
        return os.path.normpath(os.path.join(os.getcwd(), path)) if path else "/"

    def close(self) -> None:
        """Ends the use of all stores. Later calls open them again.

        fsspec makes an object for each thread that asks for this file system; they all end.
        """
        cached = list(type(self)._cache.values())
        if not any(one is self for one in cached):
            cached = [self]
        for system in cached:
            if system.storage_options != self.storage_options:
                continue
            with system._opening:
                leases = list(system._leases.values())
                system._leases.clear()
            for lease in leases:
                lease.close()

    # Places.

    def _split(self, path: str) -> tuple[str, str, str]:
        """The store's file, the tree's name and the key of a path."""
        parts = path.split("/")
        counts = range(2, len(parts) + 1)
        for is_it in (self._leases.__contains__, _is_store):
            for count in counts:
                file = "/".join(parts[:count])
                if is_it(file):
                    tree, *keys = parts[count:] or [""]
                    return file, tree, "/".join(keys)
        raise FileNotFoundError(errno.ENOENT, "no part of the path is a store", path)

    def _check_writable(self) -> None:
        """Also where this process has the store open for writing elsewhere."""
        if self._options.get("read_only"):
            raise ReadOnly("the file system is for reading only")

    def _store(self, file: str, *, creates: bool = False) -> Store:
        lease = self._leases.get(file)
        if lease is None:
            with self._opening:
                lease = self._leases.get(file)
                if lease is None:
                    lease = self._leases[file] = Lease(file, self._options, creates=creates)
        return lease.store

    def _gate(self, path: str, *, creates: bool = False) -> Gate:
        """Where changes of a path's store pass."""
        if creates:
            self._check_writable()
        file, name, key = self._split(path)
        if creates and not (name and key):
            raise IsADirectoryError(errno.EISDIR, "a file needs a tree and a key", path)
        self._store(file, creates=creates)
        return self._leases[file].gate

    def _tree(self, path: str, *, creates: bool = False) -> tuple[Tree | None, str]:
        """The tree of a path, if it is there, and the key."""
        if creates:
            self._check_writable()
        file, name, key = self._split(path)
        if creates and not (name and key):
            raise IsADirectoryError(errno.EISDIR, "a file needs a tree and a key", path)
        if not name:
            return None, ""
        try:
            store = self._store(file, creates=creates)
        except StoreNotFound:
            return None, key
        try:
            return store.open_or_create_tree(name) if creates else store.tree(name), key
        except NoSuchTree:
            return None, key

    def _found(self, path: str) -> tuple[Tree, bytes]:
        tree, key = self._tree(path)
        if tree is None or not key:
            raise _missing(path) if tree is None else _is_directory(path)
        return tree, _bytes(key)

    # Looking around.

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        tree, key = self._tree(path)
        if tree is None:
            file, name, _ = self._split(path)
            if not name and os.path.exists(file):
                return _directory(path)
            raise _missing(path)
        if not key:
            return _directory(path)
        first = _bytes(key)
        for _, size in tree.sizes(first, first + b"\0"):
            return _file(path, size)
        for _ in tree.keys(prefix=first + b"/"):
            return _directory(path)
        raise _missing(path)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        entries = self._entries(path)
        return entries if detail else sorted(entry["name"] for entry in entries)

    def _entries(self, path: str) -> list[dict[str, Any]]:
        file, name, key = self._split(path)
        if not name:
            if not os.path.exists(file):
                raise _missing(path)
            # A path has no place for other names.
            trees = [tree for tree in self._store(file).trees() if _is_name(tree)]
            return [_directory(f"{path}/{tree}") for tree in trees]
        tree, _ = self._tree(path)
        if tree is None:
            raise _missing(path)
        entries = list(_level(tree, path, _bytes(f"{key}/") if key else b""))
        if not entries and key:
            return [self.info(path)]
        return entries

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        try:
            tree, key = self._tree(path)
        except FileNotFoundError:
            return {} if detail else []
        if maxdepth is not None or tree is None:
            return super().find(path, maxdepth, withdirs, detail, **kwargs)
        found: dict[str, dict[str, Any]] = {}
        # One pass over the keys.
        prefix = _bytes(f"{key}/") if key else b""
        for below, size in tree.sizes(prefix=prefix):
            name = f"{path}/{_text(below[len(prefix):])}"
            found[name] = _file(name, size)
            parent = self._parent(name)
            while withdirs and len(parent) > len(path) and parent not in found:
                found[parent] = _directory(parent)
                parent = self._parent(parent)
        if not found and key and self.isfile(path):
            found[path] = self.info(path)
        elif found and withdirs:
            found[path] = _directory(path)
        names = sorted(found)
        return {name: found[name] for name in names} if detail else names

    # Reading and writing.

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        tree, key = self._found(path)
        whole = start is None and end is None
        value = tree.get(key) if whole else tree.part(key, start, end)
        if value is None:
            raise _missing(path)
        return value

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        if self._intrans:
            # It appears at the end of the transaction.
            super().pipe_file(path, value, mode, **kwargs)
            return
        path = self._strip_protocol(path)
        with self._gate(path, creates=True).together():
            tree, key = self._tree(path, creates=True)
            assert tree is not None
            if mode != "create":
                tree[_bytes(key)] = value
            elif not tree.compare_and_swap(_bytes(key), None, value):
                raise _exists(path)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "rb":
            tree, key = self._found(path)
            try:
                return ReadingFile(tree, key)
            except KeyError:
                raise _missing(path) from None
        if mode not in ("wb", "ab", "xb"):
            raise ValueError(f"the mode is 'rb', 'wb', 'ab' or 'xb', not {mode!r}")
        self._check_writable()
        if mode == "xb" and self.exists(path):
            raise _exists(path)
        into, name = self._tree(path, creates=True)
        assert into is not None
        return WritingFile(into, _bytes(name), path, mode, autocommit, self._gate(path))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self._check_writable()
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            return
        source, key = self._found(path1)
        with self._gate(path2, creates=True).together():
            target, name = self._tree(path2, creates=True)
            assert target is not None
            try:
                # A snapshot: the source may change during that.
                with source.store.snapshot() as snapshot:
                    seen = snapshot[source]
                    if seen.size(key) <= _COPIED_AT_ONCE:
                        target[_bytes(name)] = seen[key]
                        return
                    with seen.open(key) as reader, target.open(_bytes(name), "wb") as writer:
                        shutil.copyfileobj(reader, writer, _COPIED_AT_ONCE)
            except KeyError:
                raise _missing(path1) from None

    # Directories, and removing.

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Makes the tree of a path; directories within it come with their first file."""
        self._check_writable()
        path = self._strip_protocol(path)
        file, name, key = self._split(path)
        if self.isfile(path) or (name and not key and self.exists(path)):
            raise _exists(path)
        store = self._store(file, creates=True)
        if name:
            store.open_or_create_tree(name)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._check_writable()
        if self.exists(path):
            if not exist_ok:
                raise _exists(path)
            return
        self.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Removes an empty tree. Directories within a tree are gone when they are empty."""
        self._check_writable()
        path = self._strip_protocol(path)
        tree, key = self._tree(path)
        if tree is None:
            raise _missing(path)
        # No file may come between looking and removing.
        with self._gate(path).alone():
            if any(True for _ in tree.keys(prefix=_bytes(f"{key}/") if key else None)):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            if not key:
                tree.store.drop_tree(tree.name)

    def _rm(self, path: str) -> None:
        self._check_writable()
        path = self._strip_protocol(path)
        tree, key = self._found(path)
        if not tree.discard(key):
            raise _missing(path)

    def rm_file(self, path: str) -> None:
        self._rm(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        self._check_writable()
        paths = self.expand_path(path) if _is_pattern(path) else self._strip_protocol(path)
        files: set[str] = set()
        directories: list[str] = []
        # What cannot be removed is found before anything is.
        for one in [paths] if isinstance(paths, str) else sorted(set(paths)):
            if self.isfile(one):
                files.add(one)
            elif not self.isdir(one):
                raise _missing(one)
            elif not recursive:
                raise _is_directory(one)
            elif maxdepth is not None:
                files.update(self.find(one, maxdepth))
            elif self._tree(one)[0] is None:
                raise InvalidArgument(f"{one} is a store: remove its file instead")
            elif not _is_below(one, directories):
                directories.append(one)
        for one in directories:
            self._remove_below(one)
        for one in sorted(files):
            if not _is_below(one, directories):
                self._rm(one)

    def _remove_below(self, path: str) -> None:
        """Removes all keys of a directory, some hundred in a commit; a whole tree at once."""
        tree, key = self._tree(path)
        if tree is None:
            raise _missing(path)
        if key:
            tree.remove_range(prefix=_bytes(f"{key}/"))
        else:
            tree.store.drop_tree(tree.name)

    # Moving.

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Copies files, and then removes exactly those that were copied.

        Files of at most 16 MiB together that stay in their store move by one transaction. A
        file whose target is itself stays. A directory cannot go below itself.
        """
        self._check_writable()
        if isinstance(path1, list) and isinstance(path2, list):
            if len(path1) != len(path2):
                raise InvalidArgument("there are not as many targets as sources")
            # Nothing is expanded: a directory has no file to move.
            pairs = list(zip(self._strip_protocol(path1), self._strip_protocol(path2)))
            pairs = [pair for pair in pairs if not self.isdir(pair[0])]
        elif isinstance(path1, (str, os.PathLike)) and self._is_same(path1, path2):
            self.info(os.fspath(path1))
            return
        else:
            pairs = self._targets(path1, path2, recursive, maxdepth)
        pairs = [(self._place(source), self._place(target)) for source, target in pairs]
        pairs = [(source, target) for source, target in pairs if source != target]
        ordered = list(_in_order(pairs))
        if not self._moved_at_once(ordered):
            for source, target in ordered:
                self.cp_file(source, target)
            targets = {target for _, target in pairs}
            for source in {source for source, _ in pairs} - targets:
                self._rm(source)
        if pairs and recursive and isinstance(path1, (str, os.PathLike)):
            self._drop_if_empty(self._strip_protocol(path1))

    def _moved_at_once(self, pairs: list[tuple[str, str]]) -> bool:
        """Moves files within a store by one transaction, if they are small; whether it did."""
        files = {self._split(path)[0] for pair in pairs for path in pair}
        if len(files) != 1:
            return False
        sources = [(path, *self._found(path)) for path, _ in pairs]
        total = 0
        for path, tree, key in sources:
            for _, size in tree.sizes(key, key + b"\0"):
                total += size
                break
            else:
                raise _missing(path)
        if total > _MOVED_AT_ONCE:
            return False
        with self._gate(pairs[0][1], creates=True).together():
            targets = [self._tree(target, creates=True) for _, target in pairs]
            kept = {(tree.name, _bytes(key)) for tree, key in targets if tree is not None}

            def move(transaction: Transaction) -> None:
                for (path, source, key), (target, name) in zip(sources, targets):
                    value = transaction[source].get(key)
                    if value is None:
                        raise _missing(path)
                    assert target is not None
                    transaction[target][_bytes(name)] = value
                for _, source, key in sources:
                    if (source.name, key) not in kept:
                        transaction[source].discard(key)

            sources[0][1].store.transact(move)
        return True

    def _place(self, path: str) -> str:
        """The one spelling of a path: that with the real path of the store's file."""
        file, name, key = self._split(path)
        return "/".join(part for part in (os.path.realpath(file), name, key) if part)

    def _is_same(self, path1: Any, path2: Any) -> bool:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if source == target:
            return True
        return not has_magic(source) and bool(self._place(source) == self._place(target))

    def _targets(
        self, path1: Any, path2: Any, recursive: bool, maxdepth: int | None
    ) -> list[tuple[str, str]]:
        """The files that move, and where each goes, as copying them has it."""
        is_one = isinstance(path1, (str, os.PathLike))
        sources = [path1] if is_one else list(path1)
        ends_with_slash = is_one and os.fspath(path1).endswith("/")
        is_pattern = is_one and has_magic(os.fspath(path1))
        roots = [] if is_pattern else self._strip_protocol(sources)
        for root in roots:
            if not recursive and self.isdir(root):
                raise _is_directory(root)
        found = self.expand_path(path1, recursive=recursive, maxdepth=maxdepth)
        directories = {one for one in found if self.isdir(one)}
        if is_one and (not recursive or maxdepth is not None):
            found = [one for one in found if one not in directories]
            if not found:
                return []
        into = os.fspath(path2)
        is_into = into.endswith("/") or self.isdir(into)
        exists = is_one and (
            (is_pattern and len(found) == 1)
            or (not is_pattern and is_into and not ends_with_slash)
        )
        into = self._strip_protocol(into)
        targets = other_paths(found, into, exists=exists, flatten=not is_one)
        pairs = list(zip(found, targets))
        places = {source: self._place(source) for source in directories}
        for source, target in pairs:
            place = self._place(target)
            above = places.get(source)
            if above is not None and _is_below(place, [above]) and place != above:
                raise InvalidArgument(f"{source} cannot move below itself, to {target}")
        return [pair for pair in pairs if pair[0] not in directories]

    def _drop_if_empty(self, path: str) -> None:
        """Removes a tree that has moved as a whole."""
        if has_magic(path):
            return
        tree, key = self._tree(path)
        if tree is not None and not key and not any(True for _ in tree.keys()):
            tree.store.drop_tree(tree.name)

    # What tells whether a file has changed.

    def ukey(self, path: str) -> str:
        """A hash of a file's contents."""
        path = self._strip_protocol(path)
        digest = None if self.isdir(path) else self._digest(path)
        return str(super().ukey(path)) if digest is None else digest

    def checksum(self, path: str) -> int:
        """A hash of a file's contents, as a number."""
        path = self._strip_protocol(path)
        digest = None if self.isdir(path) else self._digest(path)
        return int(super().checksum(path)) if digest is None else int(digest, 16)

    def _digest(self, path: str) -> str:
        tree, key = self._found(path)
        digest = hashlib.blake2b(digest_size=32)
        try:
            with tree.store.snapshot() as snapshot, snapshot[tree].open(key) as reader:
                while data := reader.read(_COPIED_AT_ONCE):
                    digest.update(data)
        except KeyError:
            raise _missing(path) from None
        return digest.hexdigest()


class ReadingFile(io.BufferedReader):
    """A file that is read."""

    def __init__(self, tree: Tree, key: bytes) -> None:
        raw = ValueReader(tree, key)
        super().__init__(raw, 1 << 16)
        #: Bytes of the file.
        self.size = raw.length


class WritingFile(io.RawIOBase):
    """A file that appears when it is closed, or at the end of the file system's transaction.

    After an exception in its `with` block the tree stays as it was.
    """

    def __init__(
        self, tree: Tree, key: bytes, path: str, mode: str, autocommit: bool, gate: Gate
    ) -> None:
        self.path = path
        self.mode = mode
        self._tree: Tree | None = tree
        self._key = key
        self._autocommit = autocommit
        self._gate = gate
        self._size = 0
        #: A new file is collected in memory: only then its key can be checked when it appears.
        self._new = bytearray() if mode == "xb" else None
        self._writer = tree.writer(key)
        if mode == "ab":
            self._take_old(tree)

    def _take_old(self, tree: Tree) -> None:
        try:
            reader = tree.reader(self._key)
        except KeyError:
            return
        while data := reader.read(_COPIED_AT_ONCE):
            self.write(data)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any, /) -> int:
        if self.closed:
            raise ValueError("the file is closed")
        if self._new is not None:
            written = memoryview(data).nbytes
            self._new += data
        else:
            written = self._writer.append(data)
        self._size += written
        return written

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._autocommit:
                self.commit()

    def commit(self) -> None:
        """Makes the file appear."""
        tree, self._tree = self._tree, None
        if tree is None:
            return
        with self._gate.together():
            if self._new is None:
                self._writer.finish()
            elif not tree.compare_and_swap(self._key, None, self._new):
                raise _exists(self.path)

    def discard(self) -> None:
        """Leaves the tree as it was."""
        self._tree = None
        self._writer.discard()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        self.discard()


def _is_store(file: str) -> bool:
    """Whether a path is a store, or becomes one."""
    try:
        mode = os.stat(file).st_mode
    except OSError:
        return file.endswith(_EXTENSIONS)
    return stat.S_ISREG(mode) or stat.S_ISBLK(mode)


def _is_below(path: str, directories: list[str]) -> bool:
    """Whether a path is one of the directories, or below one."""
    return any(path == above or path.startswith(f"{above}/") for above in directories)


def _in_order(pairs: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Sources and targets so that each source is copied before another one overwrites it."""
    targets = {target for _, target in pairs}
    if len(targets) != len(pairs):
        raise InvalidArgument("two files would move to the same place")
    while pairs:
        sources = {source for source, _ in pairs}
        ready = [pair for pair in pairs if pair[1] not in sources]
        if not ready:
            raise InvalidArgument("files cannot move to the places of each other")
        yield from ready
        pairs = [pair for pair in pairs if pair[1] in sources]


def _is_pattern(path: Any) -> bool:
    paths = [path] if isinstance(path, (str, os.PathLike)) else path
    return any(mark in os.fspath(one) for one in paths for mark in "*?[")


def _level(tree: Tree, path: str, prefix: bytes) -> Iterator[dict[str, Any]]:
    """The files and directories whose names follow a prefix."""
    start: bytes | None = None
    while True:
        for key, size in tree.sizes(start, prefix=prefix):
            name, slash, _ = key[len(prefix) :].partition(b"/")
            entry = f"{path}/{_text(name)}"
            if slash:
                yield _directory(entry)
                # Behind all keys of the directory: "0" comes after "/".
                start = prefix + name + b"0"
                break
            if name:
                yield _file(entry, size)
        else:
            return


def _is_name(tree: str) -> bool:
    """Whether a tree's name is that of a directory."""
    return "/" not in tree and tree not in (".", "..")


def _text(key: bytes) -> str:
    """A part of a key as one of a path. Keys of other programs need not be text."""
    return key.decode(errors="surrogateescape")


def _bytes(path: str) -> bytes:
    return path.encode(errors="surrogateescape")


def _file(name: str, size: int) -> dict[str, Any]:
    return {"name": name, "size": size, "type": "file"}


def _directory(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _is_directory(path: str) -> IsADirectoryError:
    return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def _exists(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
