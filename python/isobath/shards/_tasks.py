"""The scheduler's side: tasks that read a shard run on its owner, and elsewhere if that is gone."""

from __future__ import annotations

from typing import Any

from distributed import SchedulerPlugin

#: The annotation of tasks that read a shard.
ANNOTATION = "isobath_shard"


class Frees(SchedulerPlugin):
    """Lets tasks of shards run anywhere once the worker that they were for is gone.

    Without the strict restriction, workers with nothing to do would take such tasks from others.
    """

    name = "isobath-shards-tasks"
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        """Begins to look at tasks."""
        self._scheduler = scheduler
        self._is_due = False

    def transition(
        self, key: Any, start: str, finish: str, *args: Any, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Notices a task that no worker may run."""
        if finish == "no-worker" and not self._is_due:
            task = self._scheduler.tasks.get(key)
            if task is not None and (task.annotations or {}).get(ANNOTATION):
                self._is_due = True
                # Not within the transition of another task.
                self._scheduler.loop.add_callback(self._free, stimulus_id)

    def _free(self, stimulus_id: str) -> None:
        self._is_due = False
        scheduler = self._scheduler
        freed = {}
        for task in list(scheduler.unrunnable):
            if not (task.annotations or {}).get(ANNOTATION):
                continue
            if not any(worker in scheduler.workers for worker in task.worker_restrictions or ()):
                task.worker_restrictions = None
                freed[task.key] = "processing"
        if freed:
            scheduler.transitions(freed, stimulus_id=stimulus_id)
