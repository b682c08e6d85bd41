"""Operations as tasks of the engine's workers, awaited by an event loop."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from isobath import _native


class _Waiting:
    """The operations that the coroutines of one event loop await."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._completions = _native.Completions()
        self._number = 0
        self._operations: dict[int, tuple[_native.Operation, asyncio.Future[Any]]] = {}
        loop.add_reader(self._completions.fileno(), self._wake)

    async def end(self, operation: _native.Operation) -> Any:
        self._number += 1
        number = self._number
        answer = operation.poll(self._completions, number)
        if answer is not None:
            return answer[0]
        future = asyncio.get_running_loop().create_future()
        self._operations[number] = operation, future
        try:
            return await future
        finally:
            del self._operations[number]

    def _wake(self) -> None:
        for number in self._completions.take():
            operation, future = self._operations.get(number, (None, None))
            if operation is None or future is None or future.done():
                continue
            try:
                answer = operation.poll(self._completions, number)
            except BaseException as error:
                future.set_exception(error)
            else:
                if answer is not None:
                    future.set_result(answer[0])


_LOOPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting] = (
    weakref.WeakKeyDictionary()
)


async def end(operation: _native.Operation) -> Any:
    """Awaits the end of an operation: its answer."""
    loop = asyncio.get_running_loop()
    waiting = _LOOPS.get(loop)
    if waiting is None:
        waiting = _LOOPS[loop] = _Waiting(loop)
    return await waiting.end(operation)
