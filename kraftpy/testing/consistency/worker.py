"""What plays one client of a workload, in a process of its own (`worker_process`).

Rules:

* It writes to the run's history by itself.
* A session is a process of the history. A client that is of no use any more is closed, and the
  next one is a new session: `sessions` numbers them, apart from those of all other workers. Each
  is announced on stdout, so that whoever kills this process can say in the history what that took
  from whom.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from kraftpy.testing.consistency import clients
from kraftpy.testing.consistency.clients import GoneError, NotDoneError, UnknownError
from kraftpy.testing.consistency.history import HistoryWriter

PROCESS = "kraftpy.testing.consistency.worker_process"
SESSIONS_MAX = 100_000
WHERE_SIGNAL = signal.SIGUSR1
"""Has a worker print to stderr what its threads are at."""
CRASHED = 70
"""The exit code of a worker that crashed because its workload wanted it to."""
_REOPEN_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Task:
    """What one worker is to do.

    `number` tells it from all other workers of the run, replaced ones too. `role` is the
    workload's; `rate` is operations per second; `started_ns` when the load began.
    """

    workload: str
    role: str
    number: int
    history: str
    bootstrap: str
    client: str
    seed: int
    rate: float
    started_ns: int
    options: dict[str, Any]

    def command(self) -> list[str]:
        return [sys.executable, "-m", PROCESS, json.dumps(asdict(self))]


class Worker:
    """What a role works with."""

    def __init__(
        self, task: Task, stopping: threading.Event, staying: threading.Event | None = None
    ) -> None:
        self.task = task
        self.options = task.options
        self.history = HistoryWriter(task.history)
        self.adapter = clients.adapter(task.client)
        self.rng = random.Random(f"{task.seed} {task.number}")  # noqa: S311 - has to be repeatable
        self.identity = task.number
        """As whom it writes in transactions: two workers with one identity fence each other."""
        self.process = -1
        self._sessions = 0
        self._stopping = stopping
        self._staying = staying or threading.Event()
        self._unique = 0

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def staying(self) -> bool:
        """Whether it is to end no session by itself."""
        return self._staying.is_set()

    def unique(self) -> int:
        """A number that no other call of the first 1000 workers brings; they grow."""
        self._unique += 1
        return self._unique * 1000 + self.task.number % 1000

    def elapsed_s(self) -> float:
        """Since the load began."""
        return (time.monotonic_ns() - self.task.started_ns) / 1e9

    def paced(self) -> Iterator[None]:
        """Once for every operation to come, at the task's rate, until it is time to stop."""
        due_at = time.monotonic() + self.rng.random() / self.task.rate
        while not self._stopping.wait(max(0.0, due_at - time.monotonic())):
            yield
            # After a long operation it goes on at its rate: nothing is made up for.
            due_at = max(due_at, time.monotonic()) + self.rng.expovariate(self.task.rate)

    def operate(
        self,
        f: str,
        value: Any,
        act: Callable[[], Any],
        said: Callable[[Any], Any] = lambda result: result,
    ) -> Any:
        """Carries an operation out and records it; None if it isn't known to have been done.

        `said` makes what the history says out of what was returned, or of what is known of an
        operation whose end isn't. GoneError goes on to whoever opened the client.
        """
        op = self.history.invoke(self.process, f, value, client=self.task.client)
        try:
            result = act()
        except NotDoneError as error:
            self.history.fail(self.process, op, f, str(error), error.value)
        except UnknownError as error:
            known = None if error.value is None else said(error.value)
            self.history.info(self.process, op, f, str(error), known)
            if isinstance(error, GoneError):
                raise
        except Exception as error:
            self.history.info(self.process, op, f, repr(error))
            raise
        else:
            self.history.ok(self.process, op, f, said(result))
            return result
        return None

    def sessions(self, session: Callable[[], None]) -> None:
        """Runs sessions one after the other until it is time to stop."""
        while not self.stopping:
            self.new_session()
            try:
                session()
            except Exception as error:  # a client's own troubles: the next one may fare better
                print(f"{self.task.role} {self.process}: {error!r}", file=sys.stderr)  # noqa: T201
                self._stopping.wait(_REOPEN_PAUSE_S)

    def crash(self) -> NoReturn:
        """Ends at once, as after SIGKILL: nobody is told. The run replaces this worker."""
        os._exit(CRASHED)

    def new_session(self) -> None:
        self.process = self.task.number * SESSIONS_MAX + self._sessions
        self._sessions += 1
        _say({"process": self.process})


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
