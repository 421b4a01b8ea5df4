"""`list-append`: transactions that append to lists and read them, in the manner of Elle.

A list is what a partition holds of one name; the names in use change as time goes on. A transaction
appends values and reads lists, in any order, and every append is written before the next step is
taken; some transactions are aborted, and some left open by producers that close. A read brings
what is committed, up to where the log could be read as it began.

Kafka's transactions promise that aborted records aren't read and that in the end each transaction
is whole. They aren't isolated from one another, so these anomalies are allowed, and counted:

* G0, and G1c with ww: appends of transactions that are open at the same time interleave
* G-single, G2: what a transaction reads isn't of one moment, and holds nobody up
* G1b: a log is readable up to the first record of a transaction that is still open. Where that lies
  between two records of one that is committed, the first is read and the second isn't, by Apache
  Kafka like by any other broker that has a last stable offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kraftpy.testing.consistency import clients
from kraftpy.testing.consistency.checkers.drained import list_of
from kraftpy.testing.consistency.clients import CommittedReader, Place, Transactor, key_of
from kraftpy.testing.consistency.workloads import transactions
from kraftpy.testing.consistency.workloads.play import Part, Play
from kraftpy.testing.consistency.workloads.queue import places_of
from kraftpy.testing.consistency.workloads.transactions import Transactions

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

PARTITIONS = 4
STEPS_MAX = 5
ALLOWED = ["G0", "G1b", "G1c", "G-single", "G2"]
_WINDOW_S = 2.0
_WINDOWS_KEPT = 3
_READS = 0.4
_FORMER = 0.15


def _options(name: str, _: float) -> dict[str, Any]:
    return {"topic": name, "partitions": PARTITIONS, "allowed": ALLOWED}


class _Lists:
    """What a worker has read of the lists of late; it goes on where its last session stopped."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._values: dict[str, list[str]] = {}
        self.positions = dict.fromkeys(places_of(worker.options), 0)
        self._places = {key_of(place): place for place in self.positions}

    def read(self, reader: CommittedReader, place: Place, window: int) -> list[str]:
        for key, records in reader.catch_up([place]).items():
            self.positions[self._places[key]] = records[-1][0] + 1
            for _, value in records:
                if _window_of(value) >= self.window() - _WINDOWS_KEPT:
                    self._values.setdefault(list_of(key, value), []).append(value)
        for name in [each for each in self._values if self._is_old(each)]:
            del self._values[name]
        return list(self._values.get(f"{key_of(place)}/{window}", ()))

    def window(self) -> int:
        return int(self._worker.elapsed_s() / _WINDOW_S)

    def _is_old(self, name: str) -> bool:
        return int(name.rpartition("/")[2]) < self.window() - _WINDOWS_KEPT


def _window_of(value: str) -> int:
    return int(value.partition("/")[0])


def transact(worker: Worker) -> None:
    lists = _Lists(worker)

    def session() -> None:
        adapter = clients.transactional(worker.task.client)
        producer = Transactions(worker, f"{worker.options['topic']}-{worker.identity}")
        reader = adapter.committed(worker.task.bootstrap, lists.positions)
        until = worker.elapsed_s() + worker.rng.uniform(*transactions.SESSION_S)
        try:
            producer.take_over()
            for _ in worker.paced():
                _transact(worker, producer, reader, lists)
                if worker.elapsed_s() > until or not producer.usable:
                    return
        finally:
            producer.close()
            reader.close()

    worker.sessions(session)


def _transact(
    worker: Worker, producer: Transactions, reader: CommittedReader, lists: _Lists
) -> None:
    window = lists.window()
    plan: list[tuple[Place, int, str | None]] = []
    for _ in range(worker.rng.randint(1, STEPS_MAX)):
        place = worker.rng.choice(list(lists.positions))
        if worker.rng.random() < _READS:
            former = window > 0 and worker.rng.random() < _FORMER
            plan.append((place, window - former, None))
        else:
            plan.append((place, window, f"{window}/{worker.unique()}"))

    def steps(transactor: Transactor) -> list[list[Any]]:
        done: list[list[Any]] = []
        for place, at, value in plan:
            key = f"{key_of(place)}/{at}"
            if value is None:
                done.append(["r", key, lists.read(reader, place, at)])
            else:
                transactor.append(place, [value])
                done.append(["append", key, value])
        return done

    asked = [
        ["r" if value is None else "append", f"{key_of(place)}/{at}", value]
        for place, at, value in plan
    ]
    thrown = worker.rng.choice(list(lists.positions)), f"{window}/{worker.unique()}"
    producer.run(asked, steps, transactions.some_end(worker), thrown)


def drain(worker: Worker) -> None:
    transactions.drain(worker, places_of(worker.options))


PLAY = Play(
    about="transactions that append to lists and read them: aborted records read, halves of"
    " transactions in the end?",
    roles={"transact": transact, "drain": drain},
    cast=[Part("transact", transactions.CLIENTS)],
    final=Part("drain", transactions.CLIENTS),
    producers=["transact"],
    options=_options,
    topics=lambda options: {options["topic"]: options["partitions"]},
)
