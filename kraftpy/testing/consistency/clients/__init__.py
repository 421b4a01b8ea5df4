"""The clients that workloads work through, each behind the same few synchronous calls.

Rules:

* A client library is imported only when a worker uses it; which ones are there is `available`.
* What a call raises says what is known. `NotDoneError`: it did not take effect and never will,
  for certain. Everything else means that nobody knows; `GoneError` that this client can't be used
  any more and has to be opened anew. Where a library retries inside, its last error says nothing
  about its first attempt, so few errors are certain.
* Calls come back within twice their time limit, whatever the cluster does.
* A key is topic-partition, as histories have it; a value is text.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kraftpy.frozen import NamedTuple

TIMEOUT_S = 5.0
SEND_TIMEOUT_S = 10.0  # longer than a failover, so that sends are tried again at the new leader
NEVER_S = 3600.0
"""What does not give up gives up after that, longer than the faults of any run."""
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_INTERVAL_MS = 1_000
LOCK_MS = 3_000
"""How long a record is leased to a member of a share group, where the run can say so."""
NO_OFFSET = -1
TRANSACTION_TIMEOUT_MS = 10_000
"""How long a coordinator waits for the end of a transaction whose producer is gone."""

Place = tuple[str, int]
"""Topic and partition."""

Records = dict[str, list[tuple[int, str]]]
"""Key -> (offset, value), as a poll brought them."""


@dataclass(frozen=True, slots=True)
class Library:
    """`module` is what has to be importable, `install` what to give pip for it.

    One that isn't Python's has neither; `takes` says what it needs, and its adapter whether that
    is there.
    """

    module: str
    adapter: str
    install: str
    takes: str = ""

    @property
    def is_there(self) -> bool:
        if self.module:
            return importlib.util.find_spec(self.module) is not None
        return bool(_module(self.adapter).is_there())

    @property
    def how(self) -> str:
        """What to do where it isn't there."""
        return self.takes or f"pip install '{self.install}'"


OWN = "kraftpy"

LIBRARIES = {
    "confluent-kafka": Library("confluent_kafka", "confluent", "confluent-kafka>=2.16"),
    "kafka-python": Library("kafka", "kafka_python", "kafka-python>=3.0.12"),
    "kraftpy": Library("kraftpy.client", "own", "kraftpy"),
    "aiokafka": Library("aiokafka", "aio", "aiokafka>=0.14"),
    "java": Library("", "java", "", "a JDK, and in KRAFTPY_KAFKA_JARS a folder with kafka-clients"),
}


class NotDoneError(Exception):
    """It did not take effect and never will; `value` is what the history says of it."""

    def __init__(self, message: str, value: Any = None) -> None:
        super().__init__(message)
        self.value = value


class UnknownError(Exception):
    """It may have taken effect; `value` is what is known of it all the same."""

    def __init__(self, message: str, value: Any = None) -> None:
        super().__init__(message)
        self.value = value


class GoneError(UnknownError):
    """It may have taken effect, and this client is of no use any more."""


class Sender(Protocol):
    def send(self, records: Sequence[tuple[Place, str]]) -> list[int]:
        """Sends records with acks=all, idempotently, and waits; their offsets.

        NO_OFFSET is that of one that is written, and nobody told where. NotDoneError if all of them
        were refused for certain, as too large. UnknownError's value are the offsets that are known,
        None for the others.
        """

    def close(self) -> None: ...


Answered = Callable[[int | None, str], None]
"""Is told the offset of a record, or None and why; NO_OFFSET if it is written, who knows where."""


class Stream(Protocol):
    """Sends without waiting, idempotently and with acks=all, and doesn't give up on a record."""

    def send(self, place: Place, value: str, answered: Answered) -> bool:
        """Whether it was taken; there may be no room for it now."""

    def settle(self, timeout_s: float) -> None:
        """Waits until everything is answered, or for so long."""

    def close(self) -> None: ...


class Reader(Protocol):
    """Reads by `assign` from given offsets, or by `subscribe` as a member of a group."""

    def assign(self, positions: Mapping[Place, int]) -> None: ...

    def subscribe(self, topics: Sequence[str]) -> None: ...

    def poll(self, timeout_s: float) -> Records: ...

    def bounds(self, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
        """The first offset and the end of logs, as far as consumers may read."""

    def close(self) -> None: ...


class Registers(Protocol):
    """Committed offsets of one group, without being a member of it."""

    def commit(self, place: Place, offset: int) -> None: ...

    def fetch(self, place: Place) -> int:
        """The committed offset, NO_OFFSET for none."""

    def commit_all(self, places: Sequence[Place], offset: int) -> None:
        """Commits one offset for all of them, in one request."""

    def fetch_all(self, places: Sequence[Place]) -> list[int]:
        """Each offset that one of them has, NO_OFFSET for none, by one request."""

    def close(self) -> None: ...


@runtime_checkable
class ConditionalRegisters(Registers, Protocol):
    def compare_and_commit(self, place: Place, expected: int, offset: int) -> None:
        """Commits if that is what is committed; NotDoneError if it isn't."""


class Topics(Protocol):
    """Topics as registers: the value of one configuration, None where there is no topic.

    Each asks once. NotDoneError's value is what an answer says of the register.
    """

    def create(self, name: str, config: int) -> None: ...

    def alter(self, name: str, config: int) -> None: ...

    def delete(self, name: str) -> None: ...

    def describe(self, name: str) -> int | None: ...

    def close(self) -> None: ...


class Watch(Protocol):
    """Is told what a member of a group owns, in the moment in which it learns it."""

    def assigned(self, keys: list[str], epoch: int, member_id: str) -> None: ...

    def revoked(self, keys: list[str]) -> None: ...

    def lost(self, keys: list[str]) -> None: ...


class Member(Protocol):
    """A member of a group that reads from where the group has committed."""

    def poll(self, timeout_s: float) -> Records: ...

    @property
    def epoch(self) -> int:
        """Generation or member epoch; -1 if it isn't known."""

    def commit(self, place: Place, offset: int) -> None: ...

    def close(self) -> None: ...


class Transactor(Protocol):
    """Writes in transactions, under one transactional id.

    Whatever goes wrong before `commit` is called, and however, the transaction is never committed;
    what `commit` raises says nothing of it. A call that failed leaves only `abort`, and if that
    fails too, only `close`.
    """

    def take_over(self) -> None:
        """Takes the id over from whoever has it; what that had open is aborted then. Once."""

    def begin(self) -> None: ...

    def append(self, place: Place, values: Sequence[str]) -> None:
        """Sends values, and waits until they are written."""

    def throw(self, place: Place, value: str) -> None:
        """Sends a value, and doesn't wait until it is written: it is under way."""

    def send_offsets(self, offsets: Mapping[Place, int], group: str) -> None:
        """Commits offsets with the transaction, for a group that has no members."""

    def send_offsets_of(self, member: Member, offsets: Mapping[Place, int], group: str) -> None:
        """Commits offsets with the transaction, as a member of the group."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """Leaves what is open to whoever takes the id next, or to the transaction's timeout."""


class CommittedReader(Protocol):
    """Follows partitions, and reads what is committed."""

    def catch_up(self, places: Sequence[Place]) -> Records:
        """All that could be read of these partitions when it was called, and wasn't read before.

        It may bring more, of others as well. An UnknownError loses nothing: the next call has it.
        """

    def bounds(self, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
        """The first offset of logs, and the end of what is committed."""

    def close(self) -> None: ...


class TransactionalAdapter(Protocol):
    """What a library has for transactions."""

    def transactor(self, bootstrap: str, transactional_id: str) -> Transactor: ...

    def committed(self, bootstrap: str, positions: Mapping[Place, int]) -> CommittedReader: ...


class Handed(NamedTuple):
    """A record that a member of a group was handed; `key` is its partition's."""

    key: str
    offset: int
    record_key: str
    """Empty for none."""
    slot: int
    raw: Any
    """As the library has it."""


Slices = dict[str, list[list[int]]]
"""Of each partition, by key: first and last slots."""


class ShareWatch(Protocol):
    """Is told what a member has of partitions, in the moment in which it learns it."""

    def assigned(self, keys: list[str], slices: Slices, epoch: int, member_id: str) -> None: ...

    def revoking(self) -> Callable[[str], None] | None:
        """Some are about to go. What it returns hears how claiming ended; with None nothing is."""

    def revoked(self, keys: list[str], slices: Slices) -> None: ...

    def lost(self, keys: list[str], slices: Slices) -> None: ...


class SharingMember(Protocol):
    """A member of a group that may have parts of partitions."""

    def poll(self, timeout_s: float, most: int) -> list[Handed]: ...

    def done(self, record: Handed) -> None:
        """It is processed; for members that say so of each record."""

    @property
    def epoch(self) -> int: ...

    def claim(self) -> None:
        """Claims, or commits, all that is done."""

    def stand_still(self, duration_s: float, called: Callable[[], bool]) -> None:
        """Does nothing at all for a while, as a process does that isn't scheduled, or until it is
        `called`."""

    def close(self) -> None: ...


class ProgressReader(Protocol):
    """Reads what a group has done."""

    def read(self, place: Place) -> tuple[int, list[list[int]]]:
        """The stable offset, and what is claimed above: slot, last slot, first offset, last."""

    def close(self) -> None: ...


class SharingAdapter(Protocol):
    """What a library has for members that share partitions."""

    def sender(self, bootstrap: str) -> Sender:
        """One whose values say what their records' keys are: what stands before the first dot."""

    def member(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        assignor: str,
        watch: ShareWatch,
        *,
        explicit: bool,
        transactional_id: str = "",
    ) -> SharingMember:
        """With `explicit` a record counts as processed when `done` says so."""

    def progress(self, bootstrap: str, group: str) -> ProgressReader: ...


class Leased(NamedTuple):
    """A record that a member of a share group was handed; `key` is its partition's."""

    key: str
    offset: int
    deliveries: int
    raw: Any
    """As the library has it."""


ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
"""What a member of a share group says of a record (KIP-932)."""

Said = Mapping[str, Sequence[tuple[int, int]]]
"""Of each partition, by key: offsets, and what is said of each."""

Errors = dict[str, str]
"""Of partitions, by key: why what was said of them was not kept."""


class ShareReader(Protocol):
    """A member of a share group as a library has it, which says of each record what became of it.

    All records of a poll have to be spoken of before the next one.
    """

    @property
    def gave_up(self) -> bool:
        """Whether it waited for an answer no longer, since this was asked last."""
        ...

    def poll(self, timeout_s: float) -> list[Leased]: ...

    def say(self, record: Leased, kind: int) -> None: ...

    def commit(self) -> Errors:
        """Has what was said since the last time kept, and waits."""

    def close(self) -> None: ...


class Lease(NamedTuple):
    """What a leader gave: by key [first, last, deliveries], and the epochs in which it did.

    `link` numbers the connection, with which leases end. A partition whose epoch isn't known for
    certain is left out of `epochs`.
    """

    runs: dict[str, list[list[int]]]
    node: int
    link: int
    epochs: dict[str, int]
    lock_ms: int


class LeaseMember(Protocol):
    """A member of a share group, request by request."""

    def lease(self, most: int, wait_ms: int, *, strict: bool) -> Lease:
        """Asks one leader for some records; with `strict` for no more than `most`.

        UnknownError may have leased some all the same; the connection has ended then.
        """

    def hold(self, link: int, keys: Sequence[str]) -> dict[str, int]:
        """The epochs in which the leader at the connection's other end leads these partitions."""

    def say(self, link: int, said: Said) -> Errors:
        """NotDoneError if the leader took nothing of it for certain."""

    def close(self) -> None:
        """Leaves the group, and says nothing of what it has."""


class LeasingAdapter(Protocol):
    """What a library has for share groups."""

    def reader(self, bootstrap: str, group: str, topic: str) -> ShareReader: ...

    def member(self, bootstrap: str, group: str, topic: str) -> LeaseMember: ...

    def starts(self, bootstrap: str, group: str) -> ShareStarts: ...


class ShareStarts(Protocol):
    """Reads how far share groups are."""

    def read(self) -> dict[str, tuple[int, int]]:
        """By key: where the group begins, and how many records it hasn't finished; -1: unknown.

        It may begin with some that are finished: leaders write that they are before they write
        that all before them is.
        """

    def close(self) -> None: ...


class Adapter(Protocol):
    """What a module of this package makes for a library."""

    def sender(self, bootstrap: str) -> Sender: ...

    def stream(self, bootstrap: str) -> Stream: ...

    def reader(self, bootstrap: str, group: str) -> Reader: ...

    def registers(self, bootstrap: str, group: str) -> Registers: ...

    def forwarded(self, bootstrap: str, group: str) -> Registers:
        """Registers that ask any broker, which passes a question on to the coordinator.

        Brokers of kraftpy do; no stock client can make use of it.
        """

    def topics(self, bootstrap: str) -> Topics: ...

    def member(
        self, bootstrap: str, group: str, topic: str, protocol: str, watch: Watch
    ) -> Member: ...


def values_of(found: Mapping[Any, Iterable[Any]]) -> Records:
    """What a poll gave of a library that has Java's form of it: records by topic and partition."""
    return {
        key_of((place.topic, place.partition)): [
            (record.offset, record.value.decode()) for record in records
        ]
        for place, records in found.items()
    }


def key_of(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def bounds_by(
    reader: Reader, places: Sequence[Place], deadline: float
) -> dict[Place, tuple[int, int]]:
    """`reader.bounds`, asked for until it's known, or this time of the monotonic clock has come.

    Raises UnknownError.
    """
    while True:
        try:
            return reader.bounds(places)
        except UnknownError:
            if time.monotonic() > deadline:
                raise


def available() -> list[str]:
    """The names of the libraries that can be imported."""
    return [name for name, each in LIBRARIES.items() if each.is_there]


def adapter(name: str) -> Adapter:
    """The adapter of a library; ImportError if that isn't installed."""
    return _module(LIBRARIES[name].adapter).ADAPTER  # type: ignore[no-any-return]


def transactional(name: str) -> TransactionalAdapter:
    """The same of a library's transactions."""
    return _module(f"{LIBRARIES[name].adapter}_transactions").ADAPTER  # type: ignore[no-any-return]


def sharing(name: str) -> SharingAdapter:
    """The same of a library's members that share partitions."""
    return _module(f"{LIBRARIES[name].adapter}_shares").ADAPTER  # type: ignore[no-any-return]


def leasing(name: str) -> LeasingAdapter:
    """The same of a library's members of share groups."""
    return _module(f"{LIBRARIES[name].adapter}_leases").ADAPTER  # type: ignore[no-any-return]


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")
