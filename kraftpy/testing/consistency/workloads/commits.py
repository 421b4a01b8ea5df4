"""`commits`: offsets of a hundred partitions committed at once, one register for each group.

Everybody commits and fetches for everybody: a commit gives all partitions of a group one number,
and no other commit has it. Stock clients go to the coordinator; some workers ask any broker, which
has to pass the question on. The groups in use change as time goes on, since the search for a
linearization takes longer the more of a register's commits had no answer. In the end every group
is fetched.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.testing.consistency.clients import Place, Registers
from kraftpy.testing.consistency.workloads.play import Part, Play
from kraftpy.testing.consistency.workloads.queue import places_of

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

PARTITIONS = 100
AT_A_TIME = 3
_WINDOW_S = 5.0
_WINDOWS_MAX = 25
_FETCHES = 0.5
_SESSION_S = (10.0, 30.0)
_FINAL_S = 30.0

Open = Callable[[str], Registers]
"""The registers of a group, by its name."""


def _options(name: str, time_limit_s: float) -> dict[str, Any]:
    window_s = max(_WINDOW_S, time_limit_s / _WINDOWS_MAX)
    count = (math.ceil(time_limit_s / window_s) + 1) * AT_A_TIME
    return {
        "topic": name,
        "partitions": PARTITIONS,
        "window_s": window_s,
        "groups": [f"{name}-{number}" for number in range(count)],
    }


class _Session:
    """The groups that a session has asked for, through one client."""

    def __init__(self, worker: Worker, make: Open) -> None:
        self._worker = worker
        self._make = make
        self._places: list[Place] = places_of(worker.options)
        self._of: dict[str, Registers] = {}

    def _registers(self, group: str) -> Registers:
        if group not in self._of:
            self._of[group] = self._make(group)
        return self._of[group]

    def fetch(self, group: str) -> bool:
        """Whether there was an answer."""
        asked = {"group": group}
        found = self._worker.operate(
            "fetch-all",
            asked,
            lambda: self._registers(group).fetch_all(self._places),
            lambda offsets: {**asked, "offsets": offsets},
        )
        return found is not None

    def commit(self, group: str, offset: int) -> None:
        self._worker.operate(
            "commit-all",
            {"group": group, "offset": offset},
            lambda: self._registers(group).commit_all(self._places, offset),
            lambda _: None,
        )

    def close(self) -> None:
        for registers in self._of.values():
            registers.close()


@contextlib.contextmanager
def _session(worker: Worker, make: Open) -> Iterator[_Session]:
    session = _Session(worker, make)
    try:
        yield session
    finally:
        session.close()


def _change(worker: Worker, make: Open) -> None:
    def session() -> None:
        until = worker.elapsed_s() + worker.rng.uniform(*_SESSION_S)
        with _session(worker, make) as groups:
            for _ in worker.paced():
                group = _now(worker)
                if worker.rng.random() < _FETCHES:
                    groups.fetch(group)
                else:
                    groups.commit(group, worker.unique())
                if worker.elapsed_s() > until:
                    return

    worker.sessions(session)


def _now(worker: Worker) -> str:
    """One of the groups in use now."""
    names: list[str] = worker.options["groups"]
    window = int(worker.elapsed_s() / worker.options["window_s"])
    return names[min(window * AT_A_TIME + worker.rng.randrange(AT_A_TIME), len(names) - 1)]


def commit(worker: Worker) -> None:
    _change(worker, partial(worker.adapter.registers, worker.task.bootstrap))


def forward(worker: Worker) -> None:
    _change(worker, partial(worker.adapter.forwarded, worker.task.bootstrap))


def fetch_all(worker: Worker) -> None:
    worker.new_session()
    deadline = time.monotonic() + _FINAL_S
    make = partial(worker.adapter.registers, worker.task.bootstrap)
    for group in worker.options["groups"]:
        with _session(worker, make) as groups:
            while not groups.fetch(group) and time.monotonic() < deadline:
                time.sleep(0.1)


PLAY = Play(
    about="offsets of a hundred partitions committed at once: is each commit seen whole or not at"
    " all, and never lost?",
    roles={"commit": commit, "forward": forward, "fetch-all": fetch_all},
    cast=[Part("commit"), Part("forward", ("kraftpy",))],
    final=Part("fetch-all"),
    options=_options,
    topics=lambda options: {options["topic"]: options["partitions"]},
)
