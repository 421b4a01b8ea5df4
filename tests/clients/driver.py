"""What a stock client is asked to do in these tests, said once for all of them.

Each client library gets one `Driver` that turns these calls into that library's own; tests speak
only to the interface. So every test runs with every client, and a difference between two clients
shows as one failing id. A broker's refusal comes out as `RefusedError` with the protocol's error
code, whatever exception class the library has for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kraftpy.protocol.errors import ErrorCode

T = TypeVar("T")

# Generous, because two cores are shared with whatever else runs; a pass never waits for it.
TIMEOUT_S = 30.0
# An hour ago: old enough to differ from any LogAppendTime, too young for any retention.
T0_MS = int(time.time() * 1000) - 3_600_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Message:
    """A record as the user sees it: timestamp in ms since the epoch, CreateTime."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = T0_MS
    partition: int = 0


@dataclass(frozen=True)
class Received(Message):
    offset: int = -1

    def as_sent(self) -> Message:
        return Message(self.value, self.key, self.headers, self.timestamp_ms, self.partition)


class RefusedError(Exception):
    """The broker answered with an error code of the protocol."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Deadline:
    """`while deadline.left(): ...` ends with an exception rather than a hang."""

    def __init__(self, waiting_for: str) -> None:
        self._waiting_for = waiting_for
        self._end = time.monotonic() + TIMEOUT_S

    def left(self) -> float:
        """Seconds left, always positive; raises TimeoutError when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no {self._waiting_for} within {TIMEOUT_S:.0f} s")
        return left


class Driver(Protocol):
    """One client library and one broker. Every method opens what it needs and closes it."""

    name: str

    def __init__(self, bootstrap: str) -> None: ...

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        acks: str = "all",
        codec: str = "none",
        idempotent: bool = False,
        max_size_bytes: int = 1_000_000,
    ) -> list[int]:
        """Send all messages, wait for all answers; returns their offsets (-1 each for acks=0)."""

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        """The first `count` records at or after `offset`, without a group."""

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Offset of the first record that is not older; None when there is none."""

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """(log start offset, high watermark)"""

    def group_read(self, topic: str, group: str, count: int) -> list[Received]:
        """Subscribe as the only member, read `count` records, commit after them, leave."""

    def committed(self, topic: str, partition: int, group: str) -> int | None:
        """The group's committed offset; None when there is none."""

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def partition_count(self, topic: str) -> int:
        """Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION when there is no such topic."""

    def grow_topic(self, topic: str, partitions: int) -> None: ...

    def topic_configs(self, topic: str) -> dict[str, str]: ...

    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """Some clients only know the call that replaces all of a topic's configs: pass them all."""


def numbered(count: int, partitions: int = 1) -> list[Message]:
    """The numbers from 0 on as values, in turn over the partitions."""
    return [Message(b"%d" % i, partition=i % partitions) for i in range(count)]


def until(waiting_for: str, condition: Callable[[], bool]) -> None:
    """Repeat until the condition holds; TimeoutError when it doesn't."""
    deadline = Deadline(waiting_for)
    while not condition():
        deadline.left()


def eventually(code: ErrorCode, call: Callable[[], T]) -> T:
    """Repeat the call until it isn't refused with this code; returns what it then returns.

    For changes that are answered before they are visible everywhere.
    """
    deadline = Deadline(f"end of {code.name}")
    while True:
        try:
            return call()
        except RefusedError as refused:
            if refused.code != code:
                raise
        deadline.left()


def wait_for_partitions(client: Driver, topic: str, count: int) -> None:
    """Wait until the topic is seen with this many partitions.

    A creation is answered before every copy of the metadata has it.
    """
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    until(
        f"{count} partitions",
        lambda: eventually(unknown, lambda: client.partition_count(topic)) == count,
    )
