"""`queue`: unique values are sent to partitions, and read by assign and by subscribe.

Senders send a few values at a time to random partitions, idempotently and with acks=all; now and
then one that is larger than the topic allows, which has to be refused and never be seen. Readers
with `assign` follow all partitions, and now and then go back to a place of before; those with
`subscribe` share the partitions in a group, which they leave and join. In the end every partition
is read from its start to its end (`drain`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kraftpy.testing.consistency.clients import (
    NO_OFFSET,
    Place,
    Reader,
    Records,
    Sender,
    UnknownError,
    bounds_by,
    key_of,
)
from kraftpy.testing.consistency.workloads.play import Part, Play

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

PARTITIONS = 4
RECORDS_MAX = 4
POLL_S = 0.2
SESSION_S = (4.0, 15.0)
_REFUSED = 0.03
_LARGEST_BYTES = 1024
CONFIGS = {"max.message.bytes": str(_LARGEST_BYTES)}
_REWIND = 0.1
_DRAIN_S = 40.0
_DRAIN_POLL_S = 0.5


def _options(name: str, _: float) -> dict[str, Any]:
    return {"topic": name, "partitions": PARTITIONS, "group": f"{name}-readers"} | {
        "idempotence": True
    }


def places_of(options: Mapping[str, Any]) -> list[Place]:
    return [(options["topic"], index) for index in range(options["partitions"])]


def send(worker: Worker) -> None:
    places = places_of(worker.options)

    def session() -> None:
        sender = worker.adapter.sender(worker.task.bootstrap)
        try:
            for _ in worker.paced():
                if worker.rng.random() < _REFUSED:
                    send_records(worker, sender, [(worker.rng.choice(places), _too_large(worker))])
                    continue
                records = [
                    (worker.rng.choice(places), _value(worker))
                    for _ in range(worker.rng.randint(1, RECORDS_MAX))
                ]
                send_records(worker, sender, records)
        finally:
            sender.close()

    worker.sessions(session)


def _value(worker: Worker) -> str:
    return f"{worker.process}.{worker.unique()}"


def _too_large(worker: Worker) -> str:
    """A value that the topic's configuration has no room for."""
    return _value(worker).ljust(_LARGEST_BYTES, ".")


def read_assigned(worker: Worker) -> None:
    positions = dict.fromkeys(places_of(worker.options), 0)
    places = {key_of(place): place for place in positions}

    def session() -> None:
        reader = worker.adapter.reader(worker.task.bootstrap, f"{worker.options['topic']}-nobody")
        try:
            _assign(worker, reader, positions)
            until = worker.elapsed_s() + worker.rng.uniform(*SESSION_S)
            for _ in worker.paced():
                if worker.elapsed_s() > until:
                    if worker.rng.random() < _REWIND:
                        place = worker.rng.choice(list(positions))
                        positions[place] = worker.rng.randrange(positions[place] + 1)
                    _assign(worker, reader, positions)
                    until = worker.elapsed_s() + worker.rng.uniform(*SESSION_S)
                for key, read in (poll(worker, reader, POLL_S) or {}).items():
                    positions[places[key]] = read[-1][0] + 1
        finally:
            reader.close()

    worker.sessions(session)


def read_subscribed(worker: Worker) -> None:
    topic = worker.options["topic"]

    def session() -> None:
        reader = worker.adapter.reader(worker.task.bootstrap, worker.options["group"])
        try:
            worker.operate("subscribe", [topic], lambda: reader.subscribe([topic]))
            until = worker.elapsed_s() + worker.rng.uniform(*SESSION_S)
            for _ in worker.paced():
                poll(worker, reader, POLL_S)
                if worker.elapsed_s() > until:
                    break
        finally:
            reader.close()

    worker.sessions(session)


def drain(worker: Worker) -> None:
    """Reads every partition from its start to where its end was when this began."""
    deadline = time.monotonic() + _DRAIN_S
    places = places_of(worker.options)

    def to_the_end() -> dict[Place, tuple[int, int]]:
        bounds = bounds_by(reader, places, deadline)
        missing = {key_of(place): end for place, (start, end) in bounds.items() if end > start}
        _assign(worker, reader, {place: start for place, (start, _) in bounds.items()})
        while missing:
            for key, read in (poll(worker, reader, _DRAIN_POLL_S) or {}).items():
                if key in missing and read[-1][0] + 1 >= missing[key]:
                    del missing[key]
            if missing and time.monotonic() > deadline:
                raise UnknownError(f"not at the end of {', '.join(sorted(missing))} in time")
        return bounds

    worker.new_session()
    reader = worker.adapter.reader(worker.task.bootstrap, f"{worker.options['topic']}-nobody")
    worker.operate(
        "drain",
        None,
        to_the_end,
        lambda bounds: {key_of(place): list(ends) for place, ends in bounds.items()},
    )
    reader.close()


def send_records(worker: Worker, sender: Sender, records: list[tuple[Place, str]]) -> None:
    asked = [[key_of(place), value] for place, value in records]

    def said(offsets: list[int | None]) -> list[list[str | int | None]]:
        known = (None if offset == NO_OFFSET else offset for offset in offsets)
        return [[*each, offset] for each, offset in zip(asked, known, strict=True)]

    worker.operate("send", asked, lambda: sender.send(records), said)


def _assign(worker: Worker, reader: Reader, positions: Mapping[Place, int]) -> None:
    asked = {key_of(place): offset for place, offset in positions.items()}
    worker.operate("assign", asked, lambda: reader.assign(dict(positions)), lambda _: None)


def poll(worker: Worker, reader: Reader, timeout_s: float) -> Records | None:
    found: Records | None = worker.operate("poll", None, lambda: reader.poll(timeout_s))
    return found


PLAY = Play(
    about="unique values sent to partitions, read by assign and by subscribe: lost, double, out of"
    " order?",
    roles={
        "send": send,
        "read-assigned": read_assigned,
        "read-subscribed": read_subscribed,
        "drain": drain,
    },
    cast=[Part("send"), Part("read-assigned"), Part("send"), Part("read-subscribed")],
    final=Part("drain"),
    options=_options,
    topics=lambda options: {options["topic"]: options["partitions"]},
    configs=CONFIGS,
)
