"""The command `isobath` as a child process: its arguments, its documents, its failures."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from isobath._errors import Error
from isobath._store import PathLike

#: Names the command where no parameter does.
VARIABLE = "ISOBATH_COMMAND"

#: Options whose numbers are seconds.
_TIMES = {"duration", "warm_up", "slice", "search_time", "longest"}
#: Options that are repeated for each of several values. Others have commas between values.
_REPEATED = {"file", "scratch", "trace", "fio"}
#: Seconds in which a child ends after ^C; it removes what it has made, or keeps what it measured.
_ENDING_SECONDS = 20.0


class LabError(Error):
    """The root of the exceptions of `isobath.lab`."""


class CommandNotFound(LabError, FileNotFoundError):
    """There is no command `isobath`."""


class CommandFailed(LabError):
    """The command failed; the sentence is its own."""

    def __init__(self, sentence: str, exit_code: int = 3, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        #: The command's exit code; negative: the signal that ended it.
        self.exit_code = exit_code
        #: The arguments that it was given.
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.exit_code, self.arguments)


class CommandRefused(CommandFailed, ValueError):
    """The command refused its arguments: an option that it does not know, an impossible value."""


def find(command: PathLike | None = None) -> str:
    """The path of the command: the one given, that of `ISOBATH_COMMAND`, or the one on PATH."""
    named = command if command is not None else os.environ.get(VARIABLE) or None
    found = shutil.which(os.fspath(named) if named is not None else "isobath")
    if found is not None:
        return os.path.abspath(found)
    what = "no command `isobath` is on PATH" if named is None else f"{named} is no command"
    raise CommandNotFound(
        f"{what}: build it with `cargo build --release -p isobath-cli`, and name it with command=, "
        f"with {VARIABLE}, or put it on PATH"
    )


def words(options: Mapping[str, Any]) -> list[str]:
    """Options of the command line for keywords: `sort_buffer=[0, 16]` is `--sort-buffer=0,16`.

    Numbers of times are seconds. `True` is an option without a value; `None` and `False` are none.
    """
    found: list[str] = []
    for name, value in options.items():
        name = name.rstrip("_")
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            found.append(option)
            continue
        texts = [_text(name, one) for one in _each(value)]
        if not texts:
            raise ValueError(f"the option {name} has no values")
        if name in _REPEATED:
            found += [f"{option}={text}" for text in texts]
        else:
            found.append(f"{option}={','.join(texts)}")
    return found


def _each(value: Any) -> list[Any]:
    if isinstance(value, (str, bytes, os.PathLike, Mapping)):
        return [value]
    try:
        return list(value)
    except TypeError:
        return [value]


def _text(name: str, value: Any) -> str:
    # A number of numpy is one of Python.
    value = value.item() if hasattr(value, "item") and not isinstance(value, str) else value
    if isinstance(value, timedelta):
        return _microseconds(value.total_seconds())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _microseconds(value) if name in _TIMES else repr(value)
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise TypeError(f"the option {name} is a number, a text or a path, not {type(value).__name__}")


def _microseconds(seconds: float) -> str:
    return f"{round(seconds * 1e6)}us"


def documents(
    *arguments: str,
    command: PathLike | None = None,
    directory: PathLike | None = None,
) -> list[Any]:
    """Runs the command and returns the JSON documents that it prints.

    `directory` is where it runs. ^C ends the child, which then removes what it has made, or keeps
    what it has measured.
    """
    with _Child([find(command), "--json", "--quiet", *arguments], directory) as child:
        out, err, code = child.wait()
    if code != 0:
        raise _failure(err, code, arguments)
    return [json.loads(line) for line in out.splitlines() if line.strip()]


def _failure(err: str, code: int, arguments: tuple[str, ...]) -> CommandFailed:
    sentence = err.strip()
    for line in reversed(sentence.splitlines()):
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict) and "error" in said:
                sentence = str(said["error"])
                break
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        sentence = f"the command was ended by {name}" + (f": {sentence}" if sentence else "")
    kind = CommandRefused if code == 2 else CommandFailed
    return kind(sentence or f"the command failed with code {code}", code, arguments)


#: The children of this process, for `end_children`.
_CHILDREN: set[_Child] = set()
_LOCK = threading.Lock()
#: The work that the current thread does, and a descriptor that its children keep open.
_WORK = threading.local()


class _Child:
    """A child in a process group of its own: ^C of a terminal reaches it through this process."""

    def __init__(self, line: list[str], directory: PathLike | None) -> None:
        # It also ends with the thread that waits for it, which a killed process cannot tell it.
        launcher = shutil.which("setpriv")
        if launcher is not None:
            line = [launcher, "--pdeathsig=TERM", "--", *line]
        self.work: str | None = getattr(_WORK, "name", None)
        kept: int | None = getattr(_WORK, "descriptor", None)
        try:
            self._process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=directory,
                process_group=0,
                pass_fds=() if kept is None else (kept,),
                text=True,
                errors="replace",
            )
        except FileNotFoundError as error:
            if directory is not None and not os.path.isdir(directory):
                raise
            raise CommandNotFound(str(error)) from error
        except OSError as error:
            if isinstance(error, NotADirectoryError):
                raise
            raise CommandNotFound(f"{line[0]} cannot be run: {error.strerror}") from error

    def wait(self) -> tuple[str, str, int]:
        out, err = self._process.communicate()
        return out, err, self._process.returncode

    def end(self) -> None:
        """Asks it to end, as ^C does."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)

    def __enter__(self) -> _Child:
        with _LOCK:
            _CHILDREN.add(self)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if self._process.poll() is None:
                self.end()
                self._process.communicate(timeout=_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Also after a second ^C.
            if self._process.poll() is None:
                self._process.kill()
                self._process.communicate()
            with _LOCK:
                _CHILDREN.discard(self)


@contextlib.contextmanager
def work(name: str, descriptor: int | None = None) -> Iterator[None]:
    """Children that this thread starts in the block belong to a work, which `end_children` ends.

    They keep the descriptor open until they end: a lock on it is theirs, too.
    """
    _WORK.name, _WORK.descriptor = name, descriptor
    try:
        yield
    finally:
        _WORK.name = _WORK.descriptor = None


def end_children(work: str) -> int:
    """Asks the children of a work to end, from any thread; how many there were."""
    with _LOCK:
        children = [child for child in _CHILDREN if child.work == work]
    for child in children:
        child.end()
    return len(children)
