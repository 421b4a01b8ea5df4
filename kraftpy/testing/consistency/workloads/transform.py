"""`transform`: what is sent to one topic is written to another one, each record exactly once.

Two groups do so, each for itself. In the one, whoever takes a partition over takes the
transactional id over that belongs to it, and so fences whoever had it (KIP-98); there are more
takers than partitions. In the other one, partitions are given to members of a consumer group, and
who has lost one is fenced by the group (KIP-447). Both commit the offsets of what they read with
what they write. In the end somebody transforms what is left, and reads the output.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.testing.consistency.checkers.transformed import Source, output
from kraftpy.testing.consistency.clients import Place, Transactor, UnknownError, key_of
from kraftpy.testing.consistency.workloads import queue, transactions
from kraftpy.testing.consistency.workloads.play import Part, Play
from kraftpy.testing.consistency.workloads.transactions import End, Transactions

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

PARTITIONS = 4
ASSIGNED, GROUPED = "assigned", "grouped"
_RECORDS_MAX = 50
_SESSION_S = (3.0, 10.0)
_POLL_S = 0.2
_FINISH_S = 25.0
_RETRY_S = (0.05, 0.6)

_Record = tuple[int, str]


def _options(name: str, _: float) -> dict[str, Any]:
    return {
        "topic": f"{name}-in",
        "output": f"{name}-out",
        "partitions": PARTITIONS,
        "groups": {ASSIGNED: f"{name}-{ASSIGNED}", GROUPED: f"{name}-{GROUPED}"},
    }


def _outputs(worker: Worker) -> list[Place]:
    return [(worker.options["output"], index) for index in range(worker.options["partitions"])]


def _transform(
    worker: Worker, producer: Transactions, group: str, place: Place, read: Sequence[_Record],
    commit: Any, end: End,
) -> bool:  # fmt: skip
    """Writes what a part of the input becomes, and commits that it was read; whether it did."""
    key = key_of(place)
    values = [output(worker.unique(), Source(group, key, offset, value)) for offset, value in read]
    some = worker.rng.sample(_outputs(worker), 2)
    places = [some[number % 2] for number in range(len(values))]
    asked, append = transactions.appended(places, values)

    def steps(transactor: Transactor) -> list[list[Any]]:
        done = append(transactor)
        commit(transactor, {place: read[-1][0] + 1}, worker.options["groups"][group])
        return done

    return producer.run(asked, steps, end)


class _Taker:
    """Has one partition of the input, by its transactional id."""

    def __init__(self, worker: Worker, group: str, index: int) -> None:
        task, options = worker.task, worker.options
        self._worker = worker
        self._group = group
        self.place: Place = (options["topic"], index)
        self._producer = Transactions(worker, f"{options['groups'][group]}-{index}")
        self._registers = worker.adapter.registers(task.bootstrap, options["groups"][group])
        self._reader = worker.adapter.reader(task.bootstrap, f"{options['topic']}-nobody")
        self.position = 0

    def take_over(self) -> None:
        """The id first: what is committed then stays, whatever the former taker does."""
        self._producer.take_over()
        self.position = max(self._registers.fetch(self.place), 0)
        self._reader.assign({self.place: self.position})

    def end(self) -> int:
        return self._reader.bounds([self.place])[self.place][1]

    def transform(self, end: End = End.COMMIT) -> bool:
        """Whether it can go on."""
        read = self._reader.poll(_POLL_S).get(key_of(self.place), [])
        for part in transactions.slices(read, _RECORDS_MAX):
            if not _transform(
                self._worker, self._producer, self._group, self.place, part,
                lambda transactor, offsets, group: transactor.send_offsets(offsets, group), end,
            ):  # fmt: skip
                return False
            self.position = part[-1][0] + 1
        return True

    def close(self) -> None:
        for each in (self._producer, self._registers, self._reader):
            each.close()


def transform_assigned(worker: Worker) -> None:
    def session() -> None:
        taker = _Taker(worker, ASSIGNED, worker.rng.randrange(worker.options["partitions"]))
        until = worker.elapsed_s() + worker.rng.uniform(*_SESSION_S)
        try:
            taker.take_over()
            for _ in worker.paced():
                if not taker.transform(transactions.some_end(worker)):
                    return
                if worker.elapsed_s() > until:
                    return
        finally:
            taker.close()

    worker.sessions(session)


class _Nobody:
    """Isn't interested in what a member owns: what it lost, it can't commit."""

    def assigned(self, keys: list[str], epoch: int, member_id: str) -> None: ...

    def revoked(self, keys: list[str]) -> None: ...

    def lost(self, keys: list[str]) -> None: ...


def transform_grouped(worker: Worker) -> None:
    options, task = worker.options, worker.task
    places = {key_of(place): place for place in queue.places_of(options)}

    def session() -> None:
        producer = Transactions(worker, f"{options['groups'][GROUPED]}-member-{worker.identity}")
        member = worker.adapter.member(
            task.bootstrap, options["groups"][GROUPED], options["topic"], "range", _Nobody()
        )
        until = worker.elapsed_s() + worker.rng.uniform(*transactions.SESSION_S)
        try:
            producer.take_over()
            for _ in worker.paced():
                for key, records in member.poll(_POLL_S).items():
                    for part in transactions.slices(records, _RECORDS_MAX):
                        if not _transform(
                            worker, producer, GROUPED, places[key], part,
                            lambda transactor, offsets, group: transactor.send_offsets_of(
                                member, offsets, group
                            ),
                            transactions.some_end(worker),
                        ):  # fmt: skip
                            return
                if worker.elapsed_s() > until or not producer.usable:
                    return
        finally:
            producer.close()
            member.close()

    worker.sessions(session)


def finish(worker: Worker) -> None:
    """Transforms what is left of the input, and reads all of the output.

    Where time is up before nothing is left, an output says nothing: it isn't read.
    """
    deadline = time.monotonic() + _FINISH_S
    left = []
    for group in worker.options["groups"]:
        for index in range(worker.options["partitions"]):
            while not (finished := _finish_one(worker, group, index)):
                if time.monotonic() > deadline:
                    break
                time.sleep(worker.rng.uniform(*_RETRY_S))
            if not finished:
                left.append(f"partition {index} for {group}")
    if left:
        worker.new_session()
        worker.operate("drain", None, partial(_not_finished, left))
    else:
        transactions.drain(worker, _outputs(worker))


def _not_finished(left: list[str]) -> None:
    raise UnknownError(f"not all is transformed in time: {', '.join(left)}")


def _finish_one(worker: Worker, group: str, index: int) -> bool:
    """Whether nothing is left; another client may do the same at the same time, and fence this."""
    worker.new_session()
    taker = _Taker(worker, group, index)
    try:
        taker.take_over()
        end = taker.end()
        while taker.position < end:
            if not taker.transform():
                return False
    except UnknownError:
        return False
    finally:
        taker.close()
    return True


PLAY = Play(
    about="records read, transformed and written by those who take them over from one another: each"
    " exactly once?",
    roles={
        "send": queue.send,
        "transform": transform_assigned,
        "transform-grouped": transform_grouped,
        "finish": finish,
    },
    cast=[
        Part("send"),
        Part("transform", transactions.CLIENTS),
        Part("transform-grouped", transactions.CLIENTS),
        Part("transform", transactions.CLIENTS),
        Part("transform-grouped", transactions.CLIENTS),
        Part("transform", transactions.CLIENTS),
        Part("transform-grouped", transactions.CLIENTS),
        Part("transform", transactions.CLIENTS),
    ],
    final=Part("finish", transactions.CLIENTS),
    producers=["transform-grouped"],
    options=_options,
    topics=lambda options: {
        options["topic"]: options["partitions"],
        options["output"]: options["partitions"],
    },
)
