"""`groups`: members of one group process what senders send, and own partitions exclusively.

A member notes what it is assigned, what is taken from it, what it processed, and commits that.
After a while it leaves, or crashes, and comes back as another one, unless it is told to stay.
Members of all clients share one group with the assignor `range`, and those that know KIP-848
another one. With more workers than usual there is one with `cooperative-sticky`, and one whose
members have both protocols: it is converted from one to the other and back while they come and go.
Somebody looks at what is committed. When the senders have stopped, all is processed and all members
leave; then what is committed is fetched.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.testing.consistency.clients import (
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    Member,
    Place,
    Registers,
    key_of,
)
from kraftpy.testing.consistency.workloads import queue
from kraftpy.testing.consistency.workloads.play import ALL_CLIENTS, Part, Play

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

PARTITIONS = 30
_POLL_S = 0.3
_SESSION_S = (6.0, 20.0)
_CROWD = 8
"""With more workers sessions last for longer: groups that never rest do nothing else."""
_CRASHES = 0.3
_FINAL_S = 30.0
_GROUPS = ("classic", "consumer", "cooperative", "converted")
_WITH_RANGE = (*ALL_CLIENTS, "aiokafka", "java")
_WITH_COOPERATIVE = ("confluent-kafka", "kraftpy", "java")
_WITH_CONSUMER = ("confluent-kafka", "java")


def _options(name: str, _: float) -> dict[str, Any]:
    return {
        "topic": name,
        "partitions": PARTITIONS,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_ms": HEARTBEAT_INTERVAL_MS,
        "groups": {group: f"{name}-{group}" for group in _GROUPS},
    }


class _Watch:
    """Notes in the history what a member learns of its partitions."""

    def __init__(self, worker: Worker, group: str) -> None:
        self._worker = worker
        self._group = group
        self.owned: set[str] = set()

    def assigned(self, keys: list[str], epoch: int, member_id: str) -> None:
        self.owned.update(keys)
        value = {"group": self._group, "keys": keys, "epoch": epoch}
        self._note("assigned", value | ({"member": member_id} if member_id else {}))

    def revoked(self, keys: list[str]) -> None:
        self.owned.difference_update(keys)
        self._note("revoked", {"group": self._group, "keys": keys})

    def lost(self, keys: list[str]) -> None:
        self.owned.difference_update(keys)
        self._note("lost", {"group": self._group, "keys": keys})

    def _note(self, f: str, value: dict[str, Any]) -> None:
        worker = self._worker
        worker.history.note(worker.process, f, value, client=worker.task.client)


def join(worker: Worker, protocol: str, group: str) -> None:
    options, group = worker.options, worker.options["groups"][group]
    places = {key_of(place): place for place in queue.places_of(options)}

    def session() -> None:
        watch = _Watch(worker, group)
        member = worker.adapter.member(
            worker.task.bootstrap, group, options["topic"], protocol, watch
        )
        crowds = max(1.0, options["concurrency"] / _CROWD)
        until = worker.elapsed_s() + crowds * worker.rng.uniform(*_SESSION_S)
        try:
            for _ in worker.paced():
                for key, records in member.poll(_POLL_S).items():
                    if key in watch.owned:
                        _process(worker, group, key, [offset for offset, _ in records])
                        _commit(worker, member, group, places[key], records[-1][0] + 1)
                if worker.elapsed_s() > until and not worker.staying:
                    if worker.rng.random() < _CRASHES:
                        worker.crash()
                    return
        finally:
            member.close()
            if watch.owned:  # nobody asked for them, and yet it doesn't have them any more
                watch.lost(sorted(watch.owned))

    worker.sessions(session)


def _process(worker: Worker, group: str, key: str, offsets: Iterable[int]) -> None:
    """Notes what was processed, as ranges without a gap."""
    ranges: list[list[int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] + 1 == offset:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    for first, last in ranges:
        value = {"group": group, "key": key, "first": first, "last": last}
        worker.history.note(worker.process, "processed", value, client=worker.task.client)


def _commit(worker: Worker, member: Member, group: str, place: Place, offset: int) -> None:
    asked = {"group": group, "key": key_of(place), "offset": offset, "epoch": member.epoch}
    worker.operate("commit", asked, lambda: member.commit(place, offset), lambda _: None)


def look(worker: Worker) -> None:
    """Reads committed offsets all the time: they never go back, whoever coordinates."""
    groups, places = list(worker.options["groups"].values()), queue.places_of(worker.options)

    def session() -> None:
        opened = {group: worker.adapter.registers(worker.task.bootstrap, group) for group in groups}
        try:
            for _ in worker.paced():
                group = worker.rng.choice(groups)
                _fetch(worker, opened[group], group, worker.rng.choice(places))
        finally:
            for registers in opened.values():
                registers.close()

    worker.sessions(session)


def fetch_all(worker: Worker) -> None:
    worker.new_session()
    deadline = time.monotonic() + _FINAL_S
    for group in worker.options["groups"].values():
        registers = worker.adapter.registers(worker.task.bootstrap, group)
        for place in queue.places_of(worker.options):
            while not _fetch(worker, registers, group, place) and time.monotonic() < deadline:
                time.sleep(0.1)
        registers.close()


def _fetch(worker: Worker, registers: Registers, group: str, place: Place) -> bool:
    """Whether there was an answer."""
    asked = {"group": group, "key": key_of(place)}

    def said(offset: int) -> dict[str, str | int]:
        return {**asked, "offset": offset}

    return worker.operate("fetch", asked, lambda: registers.fetch(place), said) is not None


PLAY = Play(
    about="members of a group share partitions: does each have one owner, is all processed?",
    roles={
        "send": queue.send,
        "join": partial(join, protocol="range", group="classic"),
        "join-consumer": partial(join, protocol="consumer", group="consumer"),
        "join-cooperative": partial(join, protocol="cooperative-sticky", group="cooperative"),
        "join-converted": partial(join, protocol="range", group="converted"),
        "convert": partial(join, protocol="consumer", group="converted"),
        "look": look,
        "fetch-all": fetch_all,
    },
    cast=[
        Part("send"),
        Part("join", _WITH_RANGE),
        Part("join-consumer", _WITH_CONSUMER),
        Part("join", _WITH_RANGE),
        Part("join-consumer", _WITH_CONSUMER),
        Part("join", _WITH_RANGE),
        Part("join", _WITH_RANGE),
        Part("look"),
        # From here on only runs of more clients than is usual have them.
        Part("join-cooperative", _WITH_COOPERATIVE),
        Part("join-cooperative", _WITH_COOPERATIVE),
        Part("join-converted", _WITH_RANGE),
        Part("convert", _WITH_CONSUMER),
        Part("join-converted", _WITH_RANGE),
        Part("join-cooperative", _WITH_COOPERATIVE),
        Part("join-converted", _WITH_RANGE),
        Part("join-converted", _WITH_RANGE),
    ],
    final=Part("fetch-all"),
    members={
        "join": "classic",
        "join-consumer": "consumer",
        "join-cooperative": "cooperative",
        "join-converted": "converted",
        "convert": "converted",
    },
    first_out=["send"],
    options=_options,
    topics=lambda options: {options["topic"]: options["partitions"]},
    configs=queue.CONFIGS,
)
