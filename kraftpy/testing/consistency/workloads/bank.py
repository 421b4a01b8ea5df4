"""`bank`: transfers between accounts, each a partition; what one loses another one gets.

A transfer is a transaction of two records, to two partitions. Some are open for longer than others,
so that there are always some that wait for nothing but their end; some are aborted, some left open.
In the end the sum over all accounts is what it was in the beginning.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.testing.consistency.clients import Transactor
from kraftpy.testing.consistency.workloads import transactions
from kraftpy.testing.consistency.workloads.play import Part, Play
from kraftpy.testing.consistency.workloads.queue import places_of
from kraftpy.testing.consistency.workloads.transactions import Steps, Transactions

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

ACCOUNTS = 6
_AMOUNT_MAX = 100
_PAUSES = 0.3
_PAUSE_S = 1.0


def _options(name: str, _: float) -> dict[str, Any]:
    return {"topic": name, "partitions": ACCOUNTS}


def transfer(worker: Worker) -> None:
    accounts = places_of(worker.options)

    def session() -> None:
        producer = Transactions(worker, f"{worker.options['topic']}-{worker.identity}")
        until = worker.elapsed_s() + worker.rng.uniform(*transactions.SESSION_S)
        try:
            producer.take_over()
            for _ in worker.paced():
                amount = worker.rng.randint(1, _AMOUNT_MAX)
                values = [f"{each:+} {worker.unique()}" for each in (-amount, amount)]
                asked, append = transactions.appended(worker.rng.sample(accounts, 2), values)
                pause_s = worker.rng.uniform(0, _PAUSE_S) * (worker.rng.random() < _PAUSES)
                steps = partial(_append_and_wait, append, pause_s)
                thrown = worker.rng.choice(accounts), f"+1 {worker.unique()}"
                producer.run(asked, steps, transactions.some_end(worker), thrown)
                if worker.elapsed_s() > until or not producer.usable:
                    return
        finally:
            producer.close()

    worker.sessions(session)


def _append_and_wait(append: Steps, pause_s: float, transactor: Transactor) -> list[list[Any]]:
    """Leaves the transaction open for a while when all is written."""
    done = append(transactor)
    time.sleep(pause_s)
    return done


def drain(worker: Worker) -> None:
    transactions.drain(worker, places_of(worker.options))


PLAY = Play(
    about="transfers from partition to partition, each a transaction: does the sum stay the same?",
    roles={"transfer": transfer, "drain": drain},
    cast=[Part("transfer", transactions.CLIENTS)],
    final=Part("drain", transactions.CLIENTS),
    producers=["transfer"],
    options=_options,
    topics=lambda options: {options["topic"]: options["partitions"]},
)
