"""`cooperative`: members of groups share partitions, and do their records out of order.

Senders send records with keys, and some without. A member of ours works on several keys at once, on
each of them in order, says of each record when it is done, and claims that now and then; or it
does all in order. Some claim in transactions. What is to go to others they mostly claim before. A
member stands still for longer than its session, crashes, leaves, and comes back as another one. In
some groups members of stock clients with the same assignor are among them: they have whole
partitions, and when one of them leads, all have. What is committed and claimed is read all the
time, and in the end that is all there is.
Where claims aren't taken, as by Apache Kafka, all have whole partitions and do them in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.client.spans import Spans, contains, join, subtract
from kraftpy.testing.consistency import clients
from kraftpy.testing.consistency.clients import (
    HEARTBEAT_INTERVAL_MS,
    NEVER_S,
    OWN,
    SESSION_TIMEOUT_MS,
    GoneError,
    Handed,
    Place,
    ProgressReader,
    Sender,
    SharingMember,
    Slices,
    UnknownError,
    key_of,
)
from kraftpy.testing.consistency.workloads import groups, queue
from kraftpy.testing.consistency.workloads.play import Part, Play

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

PARTITIONS = 2
KEYS = 40
_WITHOUT_KEY = 0.1
_RECORDS_MAX = 4
_LOOKS = 0.35
_POLL_S = 0.2
_AHEAD_MAX = 60
_AT_ONCE = 8
_SESSION_S = (6.0, 20.0)
_CROWD = 8
_EXPLICIT = 0.7
_TRANSACTS = 0.3
_CLAIMS = 0.4
_CLAIMS_LEAVING = 0.8
_STANDS_STILL = 0.25
_STILL_S = SESSION_TIMEOUT_MS / 1000 + 3.5
"""By then others have what it had, and have heard of that."""
_CRASHES = 0.3
_FINAL_S = 30.0
_GROUPS = ("sticky", "range", "roundrobin", "colocate")
_STOCK = ("confluent-kafka", "kafka-python", "java")


def _options(name: str, _: float) -> dict[str, Any]:
    return {
        "topic": name,
        "partitions": PARTITIONS,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_ms": HEARTBEAT_INTERVAL_MS,
        "groups": {group: f"{name}-{group}" for group in _GROUPS},
    }


# -- senders, and who reads what is done


def send(worker: Worker) -> None:
    adapter, options, bootstrap = clients.sharing(OWN), worker.options, worker.task.bootstrap
    places = queue.places_of(options)

    def session() -> None:
        sender = adapter.sender(bootstrap)
        readers = {each: adapter.progress(bootstrap, each) for each in options["groups"].values()}
        try:
            for _ in worker.paced():
                if worker.rng.random() < _LOOKS:
                    group, reader = worker.rng.choice(list(readers.items()))
                    _look(worker, reader, group, worker.rng.choice(places))
                else:
                    _send(worker, sender, places)
        finally:
            sender.close()
            for reader in readers.values():
                reader.close()

    worker.sessions(session)


def _send(worker: Worker, sender: Sender, places: list[Place]) -> None:
    records = []
    for _ in range(worker.rng.randint(1, _RECORDS_MAX)):
        # Few of them have most of the records, as it is with keys.
        number = min(worker.rng.randrange(KEYS), worker.rng.randrange(KEYS))
        record_key = "" if worker.rng.random() < _WITHOUT_KEY else f"k{number}"
        value = f"{record_key}.{worker.process}.{worker.unique()}"
        records.append((places[number % len(places)], value))
    queue.send_records(worker, sender, records)


def _look(worker: Worker, reader: ProgressReader, group: str, place: Place) -> bool:
    """Whether there was an answer."""
    asked = {"group": group, "key": key_of(place)}

    def said(found: tuple[int, list[list[int]]]) -> dict[str, Any]:
        return {**asked, "stable": found[0], "claims": found[1]}

    return worker.operate("progress", asked, lambda: reader.read(place), said) is not None


def look_at_all(worker: Worker) -> None:
    worker.new_session()
    deadline = time.monotonic() + _FINAL_S
    for group in worker.options["groups"].values():
        reader = clients.sharing(OWN).progress(worker.task.bootstrap, group)
        for place in queue.places_of(worker.options):
            while not _look(worker, reader, group, place) and time.monotonic() < deadline:
                time.sleep(0.1)
        reader.close()


# -- members that share


class _Work:
    """What a member was handed and hasn't done, and what it has done and not claimed.

    Its methods of a `ShareWatch` are called while the member polls, or leaves.
    """

    def __init__(self, worker: Worker, group: str) -> None:
        self._worker = worker
        self._group = group
        self._waiting: dict[tuple[str, str], deque[tuple[Handed, int]]] = {}
        """By partition and record's key; what has none waits alone."""
        self._unclaimed: dict[tuple[str, int], Handed] = {}
        self._has: dict[str, Spans] = {}
        self.member: SharingMember
        self.in_doubt = False
        """Whether a poll may have handed something out that never came."""
        self.transacts = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    # -- records

    def take(self, records: list[Handed], polled_ns: int) -> None:
        for record in records:
            alone = record.record_key or f".{record.offset}"
            waiting = self._waiting.setdefault((record.key, alone), deque())
            waiting.append((record, polled_ns))

    def process(self, count: int) -> None:
        """Does something of so many keys, on each of them in order."""
        rng = self._worker.rng
        keys = list(self._waiting)
        for key in rng.sample(keys, min(len(keys), count)):
            waiting = self._waiting[key]
            for _ in range(rng.randint(1, len(waiting))):
                self._process(*waiting.popleft())
            if not waiting:
                del self._waiting[key]

    def process_all(self) -> None:
        """In the order in which it was handed out."""
        waiting = [each for queue in self._waiting.values() for each in queue]
        self._waiting.clear()
        for record, polled_ns in sorted(waiting, key=lambda each: each[0].offset):
            self._process(record, polled_ns)

    def _process(self, record: Handed, polled_ns: int) -> None:
        place = {"key": record.key, "first": record.offset, "last": record.offset}
        what = {"of": record.record_key, "slot": record.slot, "polled": polled_ns}
        self._note("processed", {**place, **what})
        self.member.done(record)
        self._unclaimed[record.key, record.offset] = record

    # -- claims

    def claim(self) -> None:
        """Also when it has done nothing: what has no record of its slices is claimed, too."""
        answered = self._claiming(transaction=self.transacts)
        try:
            self.member.claim()
        except UnknownError as error:
            answered(str(error))
            if isinstance(error, GoneError):
                raise
        else:
            answered("")

    def _claiming(self, *, transaction: bool = False) -> Callable[[str], None]:
        """Notes that what is done is about to be claimed; what is returned hears of the error."""
        worker, process = self._worker, self._worker.process
        records: dict[str, list[list[int]]] = {}
        for record in self._unclaimed.values():
            records.setdefault(record.key, []).append([record.slot, record.offset])
        asked = {"group": self._group, "epoch": self.member.epoch, "records": records}
        if transaction:
            asked["transaction"] = True
        op = worker.history.invoke(process, "claim", asked, client=worker.task.client)

        def answered(error: str) -> None:
            if error:
                worker.history.info(process, op, "claim", error)
            else:
                worker.history.ok(process, op, "claim")
                self._unclaimed.clear()

        return answered

    # -- what it has

    def assigned(self, keys: list[str], slices: Slices, epoch: int, member_id: str) -> None:
        for key, ranges in slices.items():
            self._has[key] = join([*self._has.get(key, []), *_spans(ranges)])
        value = {"keys": keys, "slices": slices, "epoch": epoch}
        self._note("assigned", value | ({"member": member_id} if member_id else {}))

    def revoking(self) -> Callable[[str], None] | None:
        if self.in_doubt or self._worker.rng.random() >= _CLAIMS_LEAVING:
            return None
        return self._claiming()

    def revoked(self, keys: list[str], slices: Slices) -> None:
        self._gone("revoked", keys, slices)

    def lost(self, keys: list[str], slices: Slices) -> None:
        self._gone("lost", keys, slices)

    def lost_all(self) -> None:
        """It isn't a member any more: nobody has asked for what it has, and yet it is gone."""
        if self._has:
            slices = {key: [[low, end - 1] for low, end in has] for key, has in self._has.items()}
            self.lost(list(slices), slices)

    def _gone(self, f: str, keys: list[str], slices: Slices) -> None:
        for key, ranges in slices.items():
            left = subtract(self._has.pop(key, []), join(_spans(ranges)))
            if left:
                self._has[key] = left
        self._waiting = {
            name: kept
            for name, queue in self._waiting.items()
            if (kept := deque(each for each in queue if self._is_here(each[0])))
        }
        self._unclaimed = {n: each for n, each in self._unclaimed.items() if self._is_here(each)}
        self._note(f, {"keys": keys, "slices": slices})

    def _is_here(self, record: Handed) -> bool:
        return contains(self._has.get(record.key, []), record.slot)

    def _note(self, f: str, value: dict[str, Any]) -> None:
        worker = self._worker
        value = {"group": self._group, **value}
        worker.history.note(worker.process, f, value, client=worker.task.client)


def _spans(ranges: list[list[int]]) -> list[tuple[int, int]]:
    return [(first, last + 1) for first, last in ranges]


def share(worker: Worker, assignor: str, group: str) -> None:
    options, rng = worker.options, worker.rng
    group = options["groups"][group]

    def session() -> None:
        work, explicit = _Work(worker, group), rng.random() < _EXPLICIT and options["claims"]
        work.transacts = rng.random() < _TRANSACTS and options["claims"]
        member = work.member = clients.sharing(worker.task.client).member(
            worker.task.bootstrap,
            group,
            options["topic"],
            assignor,
            work,
            explicit=explicit,
            transactional_id=f"{group}-{worker.process}" if work.transacts else "",
        )
        crowds = max(1.0, options["concurrency"] / _CROWD)
        began_s = worker.elapsed_s()
        until_s = began_s + crowds * rng.uniform(*_SESSION_S)
        still_s = rng.uniform(began_s, until_s) if rng.random() < _STANDS_STILL else NEVER_S
        try:
            for _ in worker.paced():
                polled_ns = time.monotonic_ns()
                most = max(1, _AHEAD_MAX - len(work)) if explicit else _AHEAD_MAX
                work.take(member.poll(_POLL_S, most), polled_ns)
                if worker.elapsed_s() > still_s and not worker.staying:
                    still_s = NEVER_S
                    _stand_still(worker, member)
                if explicit:
                    work.process(_AT_ONCE)
                else:
                    work.process_all()
                if rng.random() < _CLAIMS:
                    work.claim()
                if worker.elapsed_s() > until_s and not worker.staying:
                    if rng.random() < _CRASHES:
                        worker.crash()
                    return
        except Exception:
            work.in_doubt = True
            raise
        finally:
            member.close()
            work.lost_all()

    worker.sessions(session)


def _stand_still(worker: Worker, member: SharingMember) -> None:
    """With what it was handed and hasn't done: others have all of that when it goes on.

    Who is told to stay goes on at once: its group is to be left in peace.
    """
    began_ns = time.monotonic_ns()
    member.stand_still(_STILL_S, lambda: worker.staying or worker.stopping)
    value = {"ms": (time.monotonic_ns() - began_ns) // 1_000_000}
    worker.history.note(worker.process, "frozen", value, client=worker.task.client)


PLAY = Play(
    about="members share partitions and do records out of order: is each key in order, all done?",
    roles={
        "send": send,
        "share-sticky": partial(share, assignor="kraftpy-cooperative-sticky", group="sticky"),
        "share-range": partial(share, assignor="range", group="range"),
        "share-roundrobin": partial(share, assignor="roundrobin", group="roundrobin"),
        "share-colocate": partial(share, assignor="kraftpy-colocate", group="colocate"),
        "join-range": partial(groups.join, protocol="range", group="range"),
        "join-roundrobin": partial(groups.join, protocol="roundrobin", group="roundrobin"),
        "look-at-all": look_at_all,
    },
    cast=[
        Part("send", (OWN,)),
        Part("share-sticky", (OWN,)),
        Part("share-range", (OWN,)),
        Part("share-range", (OWN,)),
        Part("share-range", (OWN,)),
        Part("join-range", _STOCK),
        Part("share-sticky", (OWN,)),
        Part("share-sticky", (OWN,)),
        # From here on only runs of more clients than is usual have them.
        *[Part("share-roundrobin", (OWN,))] * 3,
        Part("join-roundrobin", _STOCK),
        *[Part("share-colocate", (OWN,))] * 3,
    ],
    final=Part("look-at-all", (OWN,)),
    members={
        "share-sticky": "sticky",
        "share-range": "range",
        "share-roundrobin": "roundrobin",
        "share-colocate": "colocate",
        "join-range": "range",
        "join-roundrobin": "roundrobin",
    },
    first_out=["send"],
    options=_options,
    topics=lambda options: {options["topic"]: options["partitions"]},
    sharing_configs={"accept.range.fetch": "true"},
)
