"""What a sweep's own workers have beside those of others."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from typing import Any

from distributed import WorkerPlugin


class IgnoresInterrupts(WorkerPlugin):
    """Has workers ignore ^C: a terminal sends it to them, too, but the client ends them."""

    name = "isobath-ignores-interrupts"

    def setup(self, worker: Any) -> None:
        """Begins to ignore it, where the worker is a process of its own."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and multiprocessing.parent_process() is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
