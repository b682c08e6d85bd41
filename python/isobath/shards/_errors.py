"""What happens to shards."""

from __future__ import annotations

from typing import Any

from isobath._errors import Error


class ShardMissing(Error):
    """No worker can open a shard: its file is gone, its machine is, or another process has it."""

    def __init__(
        self,
        sentence: str,
        shard: int = -1,
        path: str = "",
        worker: str | None = None,
        reasons: dict[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        #: Its number.
        self.shard = shard
        #: Its file.
        self.path = path
        #: The worker that had it, if that is known.
        self.worker = worker
        #: Why each worker cannot open it.
        self.reasons = reasons or {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.shard, self.path, self.worker, self.reasons)


class ShardMoved(UserWarning):
    """A worker is gone, and another one has opened its shard."""
