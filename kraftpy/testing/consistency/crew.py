"""The workers of a run: processes that are started, watched, replaced, told to stop, and killed.

Rules:

* One that dies is replaced; one that doesn't end when it is told to is killed.
* Whoever is killed can't say any more what it doesn't own: the history does, in its name.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kraftpy.testing import process
from kraftpy.testing.consistency.clients import OWN
from kraftpy.testing.consistency.evidence import WORKERS_LOG
from kraftpy.testing.consistency.history import HistoryWriter
from kraftpy.testing.consistency.plan import Plan, Result
from kraftpy.testing.consistency.worker import CRASHED, SESSIONS_MAX, WHERE_SIGNAL, Task
from kraftpy.testing.consistency.workloads import PLAYS, Part

FINAL_TIMEOUT_S = 90.0
_REPLACE_PAUSE_S = 0.5
_POLL_S = 0.05
_WHERE_S = 0.3

Say = Callable[[str], None]


class Process:
    """One worker, and what it said of itself."""

    def __init__(self, task: Task, errors: Path) -> None:
        self.task = task
        self.sessions: list[int] = []
        self.crashed = False
        self.left = False
        """Whether a fault had it leave; it is replaced when it isn't `away` any more."""
        self.away = False
        self.stood_still_ms = 0
        self._frozen_at = 0.0
        self._unread = b""
        with errors.open("ab") as stderr:
            self._popen = process.popen(
                task.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )

    def stop(self) -> None:
        self._tell(b"stop\n")

    def stay(self) -> None:
        """Has it end no session by itself."""
        self._tell(b"stay\n")

    def go_on(self) -> None:
        self._tell(b"go\n")

    @property
    def role(self) -> str:
        return self.task.role

    @property
    def identity(self) -> int | None:
        writes = self.role in PLAYS[self.task.workload].producers
        return self.task.number if writes else None

    def take_identity(self, identity: int) -> None:
        self._tell(f"as {identity}\n".encode())

    def leave(self) -> None:
        self.left = self.away = True
        self.stop()

    def come_back(self) -> None:
        self.away = False

    def _tell(self, line: bytes) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(line)
            self._popen.stdin.flush()

    def listen(self) -> None:
        """Takes in what it has said."""
        assert self._popen.stdout is not None
        fd = self._popen.stdout.fileno()
        while select.select([fd], [], [], 0)[0]:
            part = os.read(fd, 65536)
            if not part:
                break
            *lines, self._unread = (self._unread + part).split(b"\n")
            self.sessions += [json.loads(line)["process"] for line in lines]

    def say_where(self) -> None:
        """Has it write to its log where it hangs."""
        self._popen.send_signal(WHERE_SIGNAL)
        time.sleep(_WHERE_S)

    @property
    def name(self) -> str:
        return f"worker {self.task.number} ({self.task.role}, {self.task.client})"

    def crash(self) -> None:
        self.crashed = True
        os.killpg(self._popen.pid, signal.SIGKILL)

    def freeze(self) -> None:
        self._frozen_at = time.monotonic()
        os.killpg(self._popen.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGCONT)
        self.stood_still_ms = int(1000 * (time.monotonic() - self._frozen_at))

    @property
    def ended(self) -> int | None:
        """Its exit code."""
        return self._popen.poll()

    def kill(self) -> None:
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self.listen()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Crew:
    """All workers of one run; `result` counts what becomes of them.

    `options` are what the workload made of the plan, and `topics` those that it has.
    """

    def __init__(
        self,
        plan: Plan,
        clients: Sequence[str],
        bootstrap: str,
        options: dict[str, Any],
        topics: Mapping[str, int],
        history: HistoryWriter,
        result: Result,
        say: Say,
    ) -> None:
        self._plan = plan
        self._play = PLAYS[plan.workload]
        self._clients = clients
        self._bootstrap = bootstrap
        self._options = options
        self._topics = topics
        self._history = history
        self._result = result
        self._say = say
        self._workers: list[Process] = []
        self._numbers = 0
        self._started_ns = 0
        self._staying = False

    def start(self) -> None:
        """Begins the load."""
        self._started_ns = time.monotonic_ns()
        for part, client in self._parts():
            self._hire(part, client)

    def start_final(self) -> None:
        for client in self._clients_of(self._play.final):
            self._hire(self._play.final, client)

    @property
    def alive(self) -> list[Process]:
        return [worker for worker in self._workers if worker.ended is None and not worker.away]

    def members(self) -> dict[str, int]:
        """How many workers are in each group."""
        count = Counter(
            self._options["groups"][self._play.members[worker.task.role]]
            for worker in self._workers
            if worker.task.role in self._play.members and not worker.away
        )
        return dict(count)

    def stay(self) -> None:
        """Until `go_on` no worker ends a session by itself, those that are yet to come neither."""
        self._staying = True
        for worker in self._workers:
            worker.stay()

    def go_on(self) -> None:
        self._staying = False
        for worker in self._workers:
            worker.go_on()

    def new_processes(self, count: int) -> int:
        """The first of so many numbers for what isn't a client."""
        first = self._numbers * SESSIONS_MAX
        self._numbers += count
        return first

    def _parts(self) -> Iterator[tuple[Part, str]]:
        """Parts in turn; each role goes through the clients that can play it."""
        turns: dict[str, int] = {}
        cast = self._cast()
        again = [part for part in cast if part.role in self._play.members] or cast
        for number in range(self._plan.concurrency):
            late = number - len(cast)
            part = cast[number] if late < 0 else again[late % len(again)]
            able = self._clients_of(part)
            turn = turns.get(part.role, 0)
            turns[part.role] = turn + 1
            yield part, able[turn % len(able)]

    def _cast(self) -> list[Part]:
        cast = list(self._play.cast)
        if self._plan.roles:
            first = {part.role: part for part in reversed(cast)}
            cast = [first[role] for role in self._plan.roles]
        return [part for part in cast if self._clients_of(part)]

    def _clients_of(self, part: Part) -> list[str]:
        """Those of the run; where it is about members of groups, ours can do all the rest."""
        able = [client for client in self._clients if client in part.clients]
        if not able and self._play.members and part.role not in self._play.members:
            return [OWN]
        return able

    def _hire(self, part: Part, client: str) -> None:
        plan = self._plan
        task = Task(
            workload=plan.workload,
            role=part.role,
            number=self._numbers,
            history=str(plan.history.absolute()),
            bootstrap=self._bootstrap,
            client=client,
            seed=plan.seed,
            rate=plan.rate / plan.concurrency,
            started_ns=self._started_ns,
            options=self._options,
        )
        self._numbers += 1
        worker = Process(task, plan.folder / WORKERS_LOG)
        self._workers.append(worker)
        if self._staying:
            worker.stay()

    def watch_until(self, deadline: float) -> None:
        """Replaces workers that die, until then."""
        while time.monotonic() < deadline:
            for worker in list(self._workers):
                worker.listen()
                if worker.ended is not None and not worker.away:
                    self._bury(worker)
                    if worker.ended == CRASHED or worker.crashed:
                        self._result.crashed += 1
                    elif worker.ended or not worker.left:
                        self._result.dead += 1
                        self._note_ended(worker, f"ended by itself with {worker.ended}")
                        self._say(
                            f"{worker.name} ended with {worker.ended}, see workers.log;"
                            " there is another one now"
                        )
                        time.sleep(_REPLACE_PAUSE_S)
                    self._hire(Part(worker.task.role), worker.task.client)
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))

    def _bury(self, worker: Process) -> None:
        """Makes sure that it is gone, and says in its name what it can't own any more."""
        worker.kill()
        self._workers.remove(worker)
        if worker.crashed and worker.sessions:
            self._history.note(worker.sessions[-1], "crashed", {"by": "SIGKILL"})
        group = self._play.members.get(worker.task.role)
        if group is not None and worker.sessions:
            keys = [f"{topic}-{i}" for topic, count in self._topics.items() for i in range(count)]
            value = {"group": self._options["groups"][group], "keys": keys}
            self._history.note(worker.sessions[-1], "gone", value)

    def _note_ended(self, worker: Process, detail: str) -> None:
        if worker.task.role in self._play.members and worker.sessions:
            self._history.note(worker.sessions[-1], "ended", {"detail": detail})

    def note_frozen(self) -> None:
        """Says of those that stood still, and go on now, for how long they did."""
        for worker in self._workers:
            if worker.stood_still_ms and worker.sessions:
                value = {"ms": worker.stood_still_ms}
                self._history.note(worker.sessions[-1], "frozen", value)
            worker.stood_still_ms = 0

    def dismiss_first(self, timeout_s: float) -> None:
        """Has those finish that stop before all others."""
        roles = self._play.first_out
        self._dismiss([each for each in self._workers if each.task.role in roles], timeout_s)

    def dismiss(self, timeout_s: float) -> None:
        """Has all workers finish; kills those that take longer."""
        self._dismiss(list(self._workers), timeout_s)

    def _dismiss(self, workers: Sequence[Process], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        if timeout_s:
            for worker in workers:
                worker.stop()
        for worker in workers:
            while worker.ended is None and time.monotonic() < deadline:
                worker.listen()
                time.sleep(_POLL_S)
            if worker.ended is None and timeout_s:
                self._result.killed += 1
                self._note_ended(worker, f"had not left after {timeout_s:g} s")
                task = worker.task
                worker.say_where()
                self._say(
                    f"worker {task.number} ({task.role}, {task.client}) hung: killed,"
                    " workers.log says where it was"
                )
            if worker.ended == 0:
                worker.kill()
                self._workers.remove(worker)
            else:
                self._bury(worker)

    def wait_for_final(self) -> None:
        deadline = time.monotonic() + FINAL_TIMEOUT_S
        for worker in self._workers:
            while worker.ended is None and time.monotonic() < deadline:
                worker.listen()
                time.sleep(_POLL_S)
        for worker in list(self._workers):
            task = worker.task
            if worker.ended is None:
                self._result.killed += 1
                worker.say_where()
                self._say(f"the final {task.role} of {task.client} did not end: killed")
            elif worker.ended:
                self._result.dead += 1
                self._say(f"the final {task.role} of {task.client} ended with {worker.ended}")
