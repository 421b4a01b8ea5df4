"""`share`: members of share groups are leased records, and say of each what became of it.

Senders send values; some are poison, which members of stock clients never accept. What is sent is
for two groups, of which one delivers a record twice at most. Members accept most, release and
reject some, keep some for longer than their lease lasts, say things twice, forget things, renew
leases, and speak of records that they don't have; they leave, crash, and come back as others. Some
are of stock clients, the others make each request by themselves: they know which leader leased what
in which epoch, and note that they still have it. How far the groups are is read all the time. In
the end a member of each group accepts all that is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.testing.consistency import clients
from kraftpy.testing.consistency.clients import (
    ACCEPT,
    LOCK_MS,
    OWN,
    REJECT,
    RELEASE,
    RENEW,
    Errors,
    Lease,
    Leased,
    LeaseMember,
    Said,
    Sender,
    ShareReader,
    ShareStarts,
)
from kraftpy.testing.consistency.workloads import queue
from kraftpy.testing.consistency.workloads.play import Part, Play

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

_Starts = dict[str, tuple[int, int]]

PARTITIONS = 3
LOCKS_MAX = 200
LIMITS = {"often": 5, "twice": 2}
"""How often a record is delivered to a group."""

_RECORDS_MAX = 6
_LOOKS = 0.35
_WAIT_MS = 200
_POLL_S = 0.3
_MOST = (1, 40)
_STRICT = 0.3
_SESSION_S = (6.0, 20.0)
_CRASHES = 0.3
_POISON = 0.02
_POISONED = "poison"
_RELEASED, _REJECTED = 0.12, 0.04
_STALLS = 0.05
_PAST_S = 1.5
_HOLDS = 0.5
_RENEWS = 0.08
_FORGETS = 0.04
_TWICE = 0.05
_STRANGE = 0.03
_BEHIND = 200
_FINAL_S = 75.0
_FINAL_MOST = 500
_SLICE_S = 0.1


def _options(name: str, _: float) -> dict[str, Any]:
    groups = {group: f"{name}-{group}" for group in LIMITS}
    return {
        "topic": name,
        "partitions": PARTITIONS,
        "groups": groups,
        "lock_ms": LOCK_MS,
        "limits": {groups[group]: limit for group, limit in LIMITS.items()},
    }


def _configs(options: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {
        group: {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(limit),
            "share.partition.max.record.locks": str(LOCKS_MAX),
        }
        for group, limit in options["limits"].items()
    }


# -- senders, and who reads how far the groups are


def send(worker: Worker) -> None:
    options, bootstrap = worker.options, worker.task.bootstrap
    places = queue.places_of(options)

    def session() -> None:
        sender = worker.adapter.sender(bootstrap)
        readers = {
            group: clients.leasing(OWN).starts(bootstrap, group)
            for group in options["groups"].values()
        }
        try:
            for _ in worker.paced():
                if worker.rng.random() < _LOOKS:
                    group = worker.rng.choice(list(readers))
                    look(worker, readers[group], group)
                else:
                    _send(worker, sender, places)
        finally:
            sender.close()
            for reader in readers.values():
                reader.close()

    worker.sessions(session)


def _send(worker: Worker, sender: Sender, places: list[clients.Place]) -> None:
    rng = worker.rng
    place = rng.choice(places)
    records = []
    for _ in range(rng.randint(1, _RECORDS_MAX)):
        value = f"{worker.process}.{worker.unique()}"
        records.append((place, f"{_POISONED}.{value}" if rng.random() < _POISON else value))
    queue.send_records(worker, sender, records)


def look(worker: Worker, reader: ShareStarts, group: str) -> _Starts | None:
    """Reads how far a group is."""
    said = lambda found: {"group": group, "starts": found}  # noqa: E731
    found: _Starts | None = worker.operate("starts", {"group": group}, reader.read, said)
    return found


# -- members by themselves


class _Member:
    """One that makes each request by itself."""

    def __init__(self, worker: Worker, group: str, member: LeaseMember) -> None:
        self._worker = worker
        self._group = group
        self._member = member
        self._newest: dict[str, int] = {}

    def lease(self, most: int, *, strict: bool) -> Lease | None:
        def said(lease: Lease) -> dict[str, Any]:
            return {"group": self._group, **lease._asdict()}

        asked = {"group": self._group}
        act = partial(self._member.lease, most, _WAIT_MS, strict=strict)
        lease: Lease | None = self._worker.operate("lease", asked, act, said)
        for key, runs in () if lease is None else lease.runs.items():
            self._newest[key] = max(self._newest.get(key, 0), runs[-1][1])
        return lease

    def hold(self, lease: Lease) -> bool:
        """Whether it still has what it was leased, as far as its connection tells."""
        asked = {"group": self._group, "link": lease.link}
        act = partial(self._member.hold, lease.link, list(lease.runs))
        said = lambda epochs: {**asked, "epochs": epochs}  # noqa: E731
        return self._worker.operate("hold", asked, act, said) is not None

    def say(self, lease: Lease, said: Said) -> Errors | None:
        act = partial(self._member.say, lease.link, said)
        asked = {"group": self._group, "link": lease.link}
        return _acknowledge(self._worker, asked, said, act)

    def work(self, lease: Lease) -> None:
        """Does something with what it was leased, and something else."""
        worker, rng = self._worker, self._worker.rng
        said = _judged(worker, lease)
        if rng.random() < _HOLDS:
            self.hold(lease)
        if rng.random() < _RENEWS:
            self._renew(lease)
        if rng.random() < _STALLS:
            self._stall(lease)
        if rng.random() < _FORGETS:
            return
        self.say(lease, said)
        if rng.random() < _TWICE:
            self.say(lease, said)
        if rng.random() < _STRANGE:
            self.say(lease, self._strange())

    def _renew(self, lease: Lease) -> None:
        self.say(lease, _same_of_all(lease, RENEW))
        _pause(self._worker, self._worker.rng.uniform(0, LOCK_MS / 1000))
        self.hold(lease)

    def _stall(self, lease: Lease) -> None:
        """Until its leases are over, and others may have had them."""
        began, until_s = time.monotonic(), LOCK_MS / 1000 + _PAST_S
        _pause(self._worker, LOCK_MS / 1000 - 0.3)
        self.hold(lease)
        _pause(self._worker, until_s - (time.monotonic() - began))

    def _strange(self) -> Said:
        """Of one record that it most likely doesn't have."""
        rng = self._worker.rng
        key, newest = rng.choice(sorted(self._newest.items()))
        return {key: [(max(0, newest - rng.randrange(_BEHIND)), ACCEPT)]}


def _acknowledge(
    worker: Worker, asked: dict[str, Any], said: Said, act: Callable[[], Errors]
) -> Errors | None:
    words = {key: [list(each) for each in those] for key, those in said.items()}
    asked = {**asked, "said": words}
    errors: Errors | None = worker.operate(
        "acknowledge", asked, act, lambda errors: {**asked, "errors": errors}
    )
    return errors


def _same_of_all(lease: Lease, kind: int) -> Said:
    return {key: [(at, kind) for at in _offsets(runs)] for key, runs in lease.runs.items()}


def _offsets(runs: Sequence[Sequence[int]]) -> list[int]:
    return [at for first, last, _ in runs for at in range(first, last + 1)]


def _judged(worker: Worker, lease: Lease) -> Said:
    """What is said of each; who makes the requests doesn't look into records."""
    return {key: [(at, _kind(worker)) for at in _offsets(runs)] for key, runs in lease.runs.items()}


def _kind(worker: Worker) -> int:
    chance = worker.rng.random()
    if chance < _RELEASED:
        return RELEASE
    return REJECT if chance < _RELEASED + _REJECTED else ACCEPT


def _pause(worker: Worker, duration_s: float) -> None:
    deadline = time.monotonic() + duration_s
    while not worker.stopping and time.monotonic() < deadline:
        time.sleep(_SLICE_S)


def lease(worker: Worker, group: str) -> None:
    group_id, rng = worker.options["groups"][group], worker.rng

    def session() -> None:
        member = clients.leasing(OWN).member(
            worker.task.bootstrap, group_id, worker.options["topic"]
        )
        acting = _Member(worker, group_id, member)
        until_s = worker.elapsed_s() + rng.uniform(*_SESSION_S)
        try:
            for _ in worker.paced():
                got = acting.lease(rng.randint(*_MOST), strict=rng.random() < _STRICT)
                if worker.elapsed_s() > until_s:
                    if rng.random() < _CRASHES:
                        worker.crash()
                    return
                if got is not None and got.runs:
                    acting.work(got)
        finally:
            member.close()

    worker.sessions(session)


# -- members of stock clients


def consume(worker: Worker, group: str) -> None:
    group_id, rng = worker.options["groups"][group], worker.rng

    def session() -> None:
        since_ns = time.monotonic_ns()
        reader = clients.leasing(worker.task.client).reader(
            worker.task.bootstrap, group_id, worker.options["topic"]
        )
        until_s = worker.elapsed_s() + rng.uniform(*_SESSION_S)
        try:
            for _ in worker.paced():
                records = _poll(worker, reader, group_id, since_ns)
                if worker.elapsed_s() > until_s and rng.random() < _CRASHES:
                    worker.crash()
                if records:
                    _speak(worker, reader, group_id, records)
                if worker.elapsed_s() > until_s:
                    return
        finally:
            reader.close()

    worker.sessions(session)


def _poll(worker: Worker, reader: ShareReader, group: str, since_ns: int) -> list[Leased] | None:
    asked = {"group": group, "since": since_ns}

    def said(found: list[Leased]) -> dict[str, Any]:
        runs: dict[str, list[list[int]]] = {}
        for each in found:
            runs.setdefault(each.key, []).append([each.offset, each.offset, each.deliveries])
        return {**asked, "runs": runs, "gave_up": reader.gave_up}

    found: list[Leased] | None = worker.operate("lease", asked, lambda: reader.poll(_POLL_S), said)
    return found


def _speak(worker: Worker, reader: ShareReader, group: str, records: list[Leased]) -> None:
    """Says of all of them what is to be said, and has it kept."""
    if worker.rng.random() < _STALLS:
        _pause(worker, LOCK_MS / 1000 + _PAST_S)
    said: dict[str, list[tuple[int, int]]] = {}
    for record in records:
        value = record.raw.value() or b""
        kind = RELEASE if value.startswith(_POISONED.encode()) else _kind(worker)
        said.setdefault(record.key, []).append((record.offset, kind))
        reader.say(record, kind)
    _acknowledge(worker, {"group": group}, said, reader.commit)


# -- the end


def finish(worker: Worker) -> None:
    """Accepts all that is left, and reads how far the groups are then."""
    worker.new_session()
    bootstrap, options = worker.task.bootstrap, worker.options
    ends = _ends(worker)
    for group in options["groups"].values():
        member = clients.leasing(OWN).member(bootstrap, group, options["topic"])
        reader = clients.leasing(OWN).starts(bootstrap, group)
        acting = _Member(worker, group, member)
        deadline = time.monotonic() + _FINAL_S / len(options["groups"])
        try:
            while not _is_at(ends, look(worker, reader, group)):
                if time.monotonic() > deadline:
                    break
                got = acting.lease(_FINAL_MOST, strict=False)
                if got is not None and got.runs:
                    acting.say(got, _same_of_all(got, ACCEPT))
        finally:
            member.close()
        value = {"group": group, "ends": ends}
        worker.history.note(worker.process, "ends", value, client=worker.task.client)
        look(worker, reader, group)
        reader.close()


def _is_at(ends: Mapping[str, int], found: _Starts | None) -> bool:
    def is_done(key: str, end: int) -> bool:
        start, left = (found or {}).get(key, (0, -1))
        return start >= end or left == 0

    return all(is_done(key, end) for key, end in ends.items() if end)


def _ends(worker: Worker) -> dict[str, int]:
    reader = worker.adapter.reader(worker.task.bootstrap, "")
    try:
        places, deadline = queue.places_of(worker.options), time.monotonic() + _FINAL_S
        bounds = clients.bounds_by(reader, places, deadline)
        return {clients.key_of(place): end for place, (_, end) in bounds.items()}
    finally:
        reader.close()


PLAY = Play(
    about="members of share groups are leased records: each to one at a time, none lost, none"
    " again that is done?",
    roles={
        "send": send,
        **{f"lease-{group}": partial(lease, group=group) for group in LIMITS},
        **{f"consume-{group}": partial(consume, group=group) for group in LIMITS},
        "finish": finish,
    },
    cast=[
        Part("send", (OWN, "confluent-kafka")),
        Part("lease-often", (OWN,)),
        Part("lease-often", (OWN,)),
        Part("consume-often", ("confluent-kafka",)),
        Part("lease-often", (OWN,)),
        Part("lease-twice", (OWN,)),
        Part("lease-twice", (OWN,)),
        Part("consume-twice", ("confluent-kafka",)),
    ],
    final=Part("finish", (OWN,)),
    options=_options,
    topics=lambda options: {options["topic"]: options["partitions"]},
    group_configs=_configs,
)
