"""`metadata`: topics as registers that hold one configuration, or nothing where there is no topic.

Workers create, alter and delete topics of a few names through any broker, each once and without
trying again: what was refused because a topic is there, or isn't, says what the register held.

Reading (`describe`) is left to the end, when everything has healed: a broker answers it from its
own copy of the metadata, in kraftpy as in Apache Kafka, and promises no more than to catch up.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.testing.consistency.clients import Topics
from kraftpy.testing.consistency.workloads.play import Part, Play

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

AT_A_TIME = 4
_WINDOW_S = 5.0
_WINDOWS_MAX = 25
_SESSION_S = (10.0, 30.0)
_FINAL_S = 30.0
_DAY_MS = 86_400_000
_CLIENTS = ("confluent-kafka", "kraftpy")  # which send once
_CHOICES = ("create", "create", "alter", "alter", "delete")


def _options(name: str, time_limit_s: float) -> dict[str, Any]:
    window_s = max(_WINDOW_S, time_limit_s / _WINDOWS_MAX)
    count = (math.ceil(time_limit_s / window_s) + 1) * AT_A_TIME
    return {"names": [f"{name}-{number}" for number in range(count)], "window_s": window_s}


def change(worker: Worker) -> None:
    def session() -> None:
        topics = worker.adapter.topics(worker.task.bootstrap)
        until = worker.elapsed_s() + worker.rng.uniform(*_SESSION_S)
        try:
            for _ in worker.paced():
                # A retention of days, so that nothing is removed because of it.
                config = 7 * _DAY_MS + worker.unique()
                name = _name(worker)
                match worker.rng.choice(_CHOICES):
                    case "create":
                        asked = {"name": name, "config": config}
                        worker.operate("create", asked, partial(topics.create, name, config))
                    case "alter":
                        asked = {"name": name, "config": config}
                        worker.operate("alter", asked, partial(topics.alter, name, config))
                    case _:
                        worker.operate("delete", {"name": name}, partial(topics.delete, name))
                if worker.elapsed_s() > until:
                    return
        finally:
            topics.close()

    worker.sessions(session)


def _name(worker: Worker) -> str:
    names: list[str] = worker.options["names"]
    window = int(worker.elapsed_s() / worker.options["window_s"])
    return names[min(window * AT_A_TIME + worker.rng.randrange(AT_A_TIME), len(names) - 1)]


def describe_all(worker: Worker) -> None:
    worker.new_session()
    topics = worker.adapter.topics(worker.task.bootstrap)
    deadline = time.monotonic() + _FINAL_S
    for name in worker.options["names"]:
        while not _describe(worker, topics, name) and time.monotonic() < deadline:
            time.sleep(0.1)
    topics.close()


def _describe(worker: Worker, topics: Topics, name: str) -> bool:
    """Whether there was an answer."""
    answers = []

    def ask() -> None:
        answers.append(topics.describe(name))

    worker.operate("describe", {"name": name}, ask, lambda _: {"name": name, "config": answers[0]})
    return bool(answers)


PLAY = Play(
    about="topics created, altered and deleted: do they behave as one register each?",
    roles={"change": change, "describe-all": describe_all},
    cast=[Part("change", _CLIENTS)],
    final=Part("describe-all", _CLIENTS),
    options=_options,
    topics=lambda _: {},
)
