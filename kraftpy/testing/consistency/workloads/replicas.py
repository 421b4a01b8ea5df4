"""`replicas`: values streamed to partitions without waiting, and then what each node has of them.

Streams send bursts of numbered values, idempotently and with acks=all, with as much under way as
their libraries allow, and never give up on one. Readers follow from the start of all partitions,
with `assign` or alone in a group, without ever going back, and read on to the end when the load
stops. In the end every partition is read once more; then all nodes are stopped, and their disks
are looked at (`inspection`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kraftpy.testing.consistency.clients import (
    NO_OFFSET,
    GoneError,
    Place,
    Reader,
    Stream,
    UnknownError,
    bounds_by,
    key_of,
)
from kraftpy.testing.consistency.workloads import queue
from kraftpy.testing.consistency.workloads.play import Part, Play

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

PARTITIONS = 3
_SEGMENT_BYTES = 1 << 20  # small, so that some faults hit the moment of a roll
_BURST = 30
_VALUE_CHARS = (10, 400)
_FIRST_ANSWER_S = 20.0
_SETTLE_S = 20.0
_CATCH_UP_S = 20.0


def _options(name: str, _: float) -> dict[str, Any]:
    return {"topic": name, "partitions": PARTITIONS, "group": f"{name}-readers"} | {
        "idempotence": True
    }


def stream(worker: Worker) -> None:
    places = queue.places_of(worker.options)

    def session() -> None:
        stream = worker.adapter.stream(worker.task.bootstrap)
        try:
            _await_first_answer(worker, stream, places[0])
            for _ in worker.paced():
                for _ in range(worker.rng.randrange(1, _BURST)):
                    _send(worker, stream, worker.rng.choice(places))
            stream.settle(_SETTLE_S)
        finally:
            stream.close()

    worker.sessions(session)


def _await_first_answer(worker: Worker, stream: Stream, place: Place) -> None:
    """Some libraries are of no use if they get none."""
    found = _send(worker, stream, place)
    stream.settle(_FIRST_ANSWER_S)
    if not found or found[0] is None:
        raise GoneError("the first record was not acknowledged")


def _send(worker: Worker, stream: Stream, place: Place) -> list[int | None]:
    """Hands one value over; its offset, when it is there, is put into what is returned."""
    value = f"{worker.process}.{worker.unique()}.".ljust(worker.rng.randrange(*_VALUE_CHARS), ".")
    record = [key_of(place), value]
    process, found = worker.process, list[int | None]()
    history, client = worker.history, worker.task.client
    op = history.invoke(process, "send", [record], client=client)

    def answered(offset: int | None, error: str) -> None:
        found.append(offset)
        if offset is None:
            history.info(process, op, "send", error)
        else:
            # A broker may not know the offset of what was sent again (KIP-98).
            history.ok(process, op, "send", [[*record, None if offset == NO_OFFSET else offset]])

    while not stream.send(place, value, answered):
        if worker.stopping:
            history.fail(process, op, "send", "there was no room for it until the load stopped")
            break
    return found


def follow(worker: Worker) -> None:
    places = queue.places_of(worker.options)

    def begin(reader: Reader) -> None:
        start = dict.fromkeys(places, 0)
        asked = {key_of(place): 0 for place in places}
        worker.operate("assign", asked, lambda: reader.assign(start), lambda _: None)

    _follow(worker, f"{worker.options['topic']}-nobody", begin)


def follow_in_a_group(worker: Worker) -> None:
    topic = worker.options["topic"]

    def begin(reader: Reader) -> None:
        worker.operate("subscribe", [topic], lambda: reader.subscribe([topic]))

    _follow(worker, f"{worker.options['group']}-{worker.task.number}", begin)


def _follow(worker: Worker, group: str, begin: Callable[[Reader], None]) -> None:
    """Reads until the load stops, and then to the end."""
    places = queue.places_of(worker.options)

    def session() -> None:
        read: dict[str, list[int]] = {}
        reader = worker.adapter.reader(worker.task.bootstrap, group)

        def poll() -> None:
            for key, records in (queue.poll(worker, reader, queue.POLL_S) or {}).items():
                first, end = read.setdefault(key, [records[0][0], 0])
                read[key] = [first, max(end, records[-1][0] + 1)]

        def to_the_end() -> None:
            deadline = time.monotonic() + _CATCH_UP_S
            bounds = bounds_by(reader, places, deadline)
            ends = {key_of(place): end for place, (_, end) in bounds.items()}
            while any(end and read.get(key, [0, 0])[1] < end for key, end in ends.items()):
                if time.monotonic() > deadline:
                    raise UnknownError(f"not at {ends} in time but at {read}")
                poll()

        try:
            begin(reader)
            for _ in worker.paced():
                poll()
            worker.operate("drain", None, to_the_end, lambda _: read)
        finally:
            reader.close()

    worker.sessions(session)


PLAY = Play(
    about="values streamed without waiting, and what each node has on disk in the end: is it the"
    " same everywhere, and had every epoch one leader?",
    roles={
        "stream": stream,
        "follow": follow,
        "follow-in-a-group": follow_in_a_group,
        "drain": queue.drain,
    },
    cast=[
        Part("stream"),
        Part("follow", ("kafka-python", "kraftpy")),
        Part("stream"),
        # kafka-python may stop for good in a group: when a poll times out between SyncGroup's
        # answer and the assignment, it believes to have joined, and sends no heartbeat.
        Part("follow-in-a-group", ("confluent-kafka", "kraftpy")),
        Part("stream"),
    ],
    final=Part("drain"),
    options=_options,
    topics=lambda options: {options["topic"]: options["partitions"]},
    configs={"segment.bytes": str(_SEGMENT_BYTES)},
    inspected=True,
)
