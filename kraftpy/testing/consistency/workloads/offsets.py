"""`offsets`: committed offsets as registers, one for each partition of each group.

Everybody commits and fetches for everybody, without being a member: numbers that grow with each
worker, so every commit is one of its kind. Those who can compare-and-set fetch first, and commit
under the condition that nothing else was committed since.

Which partitions are in use changes as time goes on: the search for a linearization takes longer the
more of a register's commits had no answer. In the end every register is fetched.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kraftpy.testing.consistency.clients import (
    ConditionalRegisters,
    NotDoneError,
    Place,
    Registers,
    key_of,
)
from kraftpy.testing.consistency.workloads.play import Part, Play

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

GROUPS = 3
AT_A_TIME = 4
_WINDOW_S = 5.0
_WINDOWS_MAX = 25
_FETCHES = 0.5
_OLD = 0.1
_SESSION_S = (10.0, 30.0)
_FINAL_S = 30.0
_PROBE_OFFSET = 1


def _options(name: str, time_limit_s: float) -> dict[str, Any]:
    window_s = max(_WINDOW_S, time_limit_s / _WINDOWS_MAX)
    windows = math.ceil(time_limit_s / window_s) + 1
    # The last partition is for finding out whether the peer knows conditions.
    return {
        "topic": name,
        "partitions": windows * AT_A_TIME + 1,
        "window_s": window_s,
        "groups": [f"{name}-{number}" for number in range(GROUPS)],
    }


def _now(worker: Worker) -> Place:
    """One of the partitions in use now, seldom one of before."""
    window = int(worker.elapsed_s() / worker.options["window_s"])
    if worker.rng.random() < _OLD:
        window = worker.rng.randrange(window + 1)
    index = window * AT_A_TIME + worker.rng.randrange(AT_A_TIME)
    return worker.options["topic"], min(index, worker.options["partitions"] - 2)


class _Session:
    """The registers of every group, through one client."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._of: dict[str, Registers] = {}

    def of(self, group: str) -> Registers:
        if group not in self._of:
            self._of[group] = self._worker.adapter.registers(self._worker.task.bootstrap, group)
        return self._of[group]

    def fetch(self, group: str, place: Place) -> int | None:
        asked = {"group": group, "key": key_of(place)}
        found: int | None = self._worker.operate(
            "fetch",
            asked,
            lambda: self.of(group).fetch(place),
            lambda offset: {**asked, "offset": offset},
        )
        return found

    def commit(self, group: str, place: Place, offset: int) -> None:
        asked = {"group": group, "key": key_of(place), "offset": offset}
        self._worker.operate(
            "commit", asked, lambda: self.of(group).commit(place, offset), lambda _: None
        )

    def change(self, group: str, place: Place, expected: int, offset: int) -> None:
        registers = self.of(group)
        assert isinstance(registers, ConditionalRegisters), "this role is for those who can"
        asked = {"group": group, "key": key_of(place), "offset": offset, "expected": expected}
        self._worker.operate(
            "commit",
            asked,
            lambda: registers.compare_and_commit(place, expected, offset),
            lambda _: None,
        )

    def knows_conditions(self, group: str, place: Place) -> bool:
        """Whether the peer refuses a commit whose condition doesn't hold; Apache Kafka doesn't."""
        registers = self.of(group)
        assert isinstance(registers, ConditionalRegisters), "this role is for those who can"
        try:
            registers.compare_and_commit(place, _PROBE_OFFSET + 1, _PROBE_OFFSET)
        except NotDoneError:
            return True
        return False

    def close(self) -> None:
        for registers in self._of.values():
            registers.close()


def commit(worker: Worker) -> None:
    def session() -> None:
        with _closing(worker) as registers:
            for group in _groups(worker):
                place = _now(worker)
                if worker.rng.random() < _FETCHES:
                    registers.fetch(group, place)
                else:
                    registers.commit(group, place, worker.unique())

    worker.sessions(session)


def change(worker: Worker) -> None:
    knows: list[bool] = []

    def session() -> None:
        with _closing(worker) as registers:
            if not knows:
                place = worker.options["topic"], worker.options["partitions"] - 1
                knows.append(registers.knows_conditions(worker.options["groups"][0], place))
            for group in _groups(worker):
                place = _now(worker)
                expected = registers.fetch(group, place)
                if expected is None:
                    continue
                if knows[0]:
                    registers.change(group, place, expected, worker.unique())
                else:
                    registers.commit(group, place, worker.unique())

    worker.sessions(session)


def _groups(worker: Worker) -> Iterator[str]:
    """A group for every operation of a session."""
    until = worker.elapsed_s() + worker.rng.uniform(*_SESSION_S)
    for _ in worker.paced():
        yield worker.rng.choice(worker.options["groups"])
        if worker.elapsed_s() > until:
            return


def fetch_all(worker: Worker) -> None:
    worker.new_session()
    deadline = time.monotonic() + _FINAL_S
    with _closing(worker) as registers:
        for group in worker.options["groups"]:
            for index in range(worker.options["partitions"] - 1):
                place = worker.options["topic"], index
                while registers.fetch(group, place) is None and time.monotonic() < deadline:
                    time.sleep(0.1)


@contextlib.contextmanager
def _closing(worker: Worker) -> Iterator[_Session]:
    session = _Session(worker)
    try:
        yield session
    finally:
        session.close()


PLAY = Play(
    about="offsets committed and fetched for groups, and compared and set: do they behave as one"
    " register each?",
    roles={"commit": commit, "change": change, "fetch-all": fetch_all},
    cast=[Part("commit"), Part("change", ("kraftpy",)), Part("commit"), Part("commit")],
    final=Part("fetch-all"),
    options=_options,
    topics=lambda options: {options["topic"]: options["partitions"]},
)
