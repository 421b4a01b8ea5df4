"""What workloads have in common that write in transactions.

A transaction fails for certain, for a history, if it was never asked to commit: because something
went wrong before, because it was to be aborted, or because it was left open by a producer that
closes; whoever takes its id over aborts it, or its timeout does. In the end everybody waits until
nothing is open, and reads every log from its start to its end as readers of committed records do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from kraftpy.testing.consistency import clients
from kraftpy.testing.consistency.checkers.drained import list_of
from kraftpy.testing.consistency.clients import (
    OWN,
    GoneError,
    NotDoneError,
    Place,
    Records,
    Transactor,
    UnknownError,
    key_of,
)

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

_T = TypeVar("_T")
CLIENTS = ("confluent-kafka", OWN)
SESSION_S = (6.0, 20.0)
_ABORTED = 0.12
_LEFT_OPEN = 0.02
_STABLE_S = 35.0
_DRAIN_S = 25.0
_POLL_S = 0.2
_RECORDS_MAX = 2_000  # so that a history has room for them in a line

Steps = Callable[[Transactor], list[list[Any]]]
"""Does what a transaction is to do, and returns that with what it read."""


_Thrown = tuple[Place, str]


class End(Enum):
    """How a transaction is to end."""

    COMMIT = "committed"
    ABORT = "aborted on purpose"
    LEAVE = "left open on purpose"


def some_end(worker: Worker) -> End:
    """Mostly COMMIT."""
    chance = worker.rng.random()
    if chance < _LEFT_OPEN:
        return End.LEAVE
    return End.ABORT if chance < _LEFT_OPEN + _ABORTED else End.COMMIT


class Transactions:
    """The transactions of one session."""

    def __init__(self, worker: Worker, transactional_id: str) -> None:
        self._over = False
        self._identity = worker.identity
        self._worker = worker
        adapter = clients.transactional(worker.task.client)
        self._transactor = adapter.transactor(worker.task.bootstrap, transactional_id)

    @property
    def usable(self) -> bool:
        """Whether there can be another one, and by the same producer."""
        return not self._over and self._identity == self._worker.identity

    def take_over(self) -> None:
        """Raises UnknownError."""
        self._transactor.take_over()

    def run(
        self, asked: list[list[Any]], steps: Steps, end: End, thrown: _Thrown | None = None
    ) -> bool:
        """Carries one out and records it; whether it is committed, for certain.

        One that isn't to be is ended while `thrown`, a value for a place, is still under way.
        """
        if end is End.COMMIT:
            thrown = None
        elif thrown is not None:
            place, value = thrown
            asked = [*asked, ["append", list_of(key_of(place), value), value]]
        done = self._worker.operate("txn", asked, lambda: self._act(steps, end, thrown))
        return done is not None

    def _act(self, steps: Steps, end: End, thrown: _Thrown | None) -> list[list[Any]]:
        transactor = self._transactor
        try:
            transactor.begin()
            value = steps(transactor)
            if thrown is not None:
                transactor.throw(*thrown)
        except UnknownError as error:
            self._abort()
            raise NotDoneError(str(error)) from error
        match end:
            case End.LEAVE:
                self._over = True
                raise NotDoneError(end.value)
            case End.ABORT:
                self._abort()
                raise NotDoneError(end.value)
        try:
            transactor.commit()
        except UnknownError as error:
            self._over = True
            raise GoneError(str(error)) from error
        return value

    def _abort(self) -> None:
        try:
            self._transactor.abort()
        except UnknownError:
            self._over = True

    def close(self) -> None:
        self._transactor.close()


def appended(places: Sequence[Place], values: Sequence[str]) -> tuple[list[list[Any]], Steps]:
    """What a transaction is asked that writes values to places, and what does that."""
    asked = [["append", key_of(place), each] for place, each in zip(places, values, strict=True)]

    def steps(transactor: Transactor) -> list[list[Any]]:
        for place in dict.fromkeys(places):
            mine = [value for at, value in zip(places, values, strict=True) if at == place]
            transactor.append(place, mine)
        return asked

    return asked, steps


def slices(records: list[_T], most: int) -> Iterator[list[_T]]:
    """The records in their order, so many at a time at most."""
    return (records[first : first + most] for first in range(0, len(records), most))


def drain(worker: Worker, places: Sequence[Place]) -> None:
    """Reads the logs from their starts to their ends, as a session of its own."""
    worker.new_session()
    worker.operate("stable", None, lambda: _when_stable(worker, places), _by_key)
    bootstrap, adapter = worker.task.bootstrap, clients.transactional(worker.task.client)
    first = dict.fromkeys(places, 0)
    reader = adapter.committed(bootstrap, first)
    deadline = time.monotonic() + _DRAIN_S

    def to_the_end() -> dict[Place, tuple[int, int]]:
        asked = {key_of(place): 0 for place in places}
        worker.operate("assign", asked, lambda: True, lambda _: None)
        while True:
            try:
                bounds = reader.bounds(places)
                found = reader.catch_up(places)
            except UnknownError:
                if time.monotonic() > deadline:
                    raise
            else:
                break
        for part in _parts(found):
            worker.operate("poll", None, lambda part=part: part)  # type: ignore[misc]
        return bounds

    worker.operate("drain", None, to_the_end, _by_key)
    reader.close()


def _by_key(found: dict[Place, tuple[int, int]]) -> dict[str, list[int]]:
    return {key_of(place): list(each) for place, each in found.items()}


def _parts(found: Records) -> Iterator[Records]:
    for key, records in found.items():
        for part in slices(records, _RECORDS_MAX):
            yield {key: part}


def _when_stable(worker: Worker, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
    """How far logs can be read, and their ends: when these are the same, or time is up."""
    from kraftpy.testing.consistency.clients.own_transactions import stable

    deadline = time.monotonic() + _STABLE_S
    while True:
        try:
            found = stable(worker.task.bootstrap, places)
        except UnknownError:
            if time.monotonic() > deadline:
                raise
        else:
            if all(end == stable for stable, end in found.values()):
                return found
            if time.monotonic() > deadline:
                return found
        time.sleep(_POLL_S)
