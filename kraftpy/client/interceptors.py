"""Hooks into the way of records through a producer, and what they are told.

Rules:

* They are called where their records are dealt with, on the event loop: at `send` (enqueue), when a
  batch is closed and encoded (batch; again if it has to be numbered anew, and for each half of one
  that a broker finds too large), before each attempt to
  send it (send), and once when it's known what became of it (done). What fails before is only done.
* What one raises is logged, the first time for each hook of each interceptor, and changes nothing:
  a record goes on as it was.
* A producer without any doesn't make what they'd be told.

Source: the EventHandler and CallbackHandler of Kafka's first producer; KIP-42.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from kraftpy.client.serializing import K, V
from kraftpy.protocol.records import Header

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerRecord(Generic[K, V]):
    """A record to be sent: what `Producer.send` takes."""

    topic: str
    value: V | None
    key: K | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[Header] = ()


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """A batch of one partition; its size is as it's sent, or before that an upper bound."""

    topic: str
    partition: int
    records_count: int
    size_bytes: int


class ProducerInterceptor(Generic[K, V]):
    """What a user wants to see or change of what a producer sends; override what is needed.

    Whatever takes long holds up all that the producer's event loop does.
    """

    def on_enqueue(self, record: ProducerRecord[K, V]) -> ProducerRecord[K, V]:
        """A record was given to `send`; returns what is sent instead, or the record itself."""
        return record

    def on_batch(self, batch: BatchInfo) -> None:
        """A batch takes no more records: it's encoded and compressed."""

    def on_send(self, batch: BatchInfo, broker_id: int) -> None:
        """A batch is about to go out to a broker, for the first time or again."""

    def on_done(self, batch: BatchInfo, base_offset: int, error: Exception | None) -> None:
        """A batch was written from an offset on (-1: not told), or failed for good."""


class Interceptors:
    """Those of one producer, in their order."""

    def __init__(self, interceptors: Iterable[ProducerInterceptor[Any, Any]]) -> None:
        self._interceptors = list(interceptors)
        for each in self._interceptors:
            if not isinstance(each, ProducerInterceptor):
                raise TypeError(
                    f"interceptors={each!r} has to be made of a subclass of "
                    "kraftpy.client.ProducerInterceptor"
                )
        self._complained: set[tuple[int, str]] = set()

    def enqueue(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        """What is sent in place of a record."""
        for each in self._interceptors:
            try:
                changed = each.on_enqueue(record)
                if not isinstance(changed, ProducerRecord):
                    raise TypeError(
                        f"on_enqueue has to return a ProducerRecord, not {type(changed).__name__}"
                    )
                record = changed
            except Exception as error:
                self._complain(each, "on_enqueue", error)
        return record

    def batch(self, batch: BatchInfo) -> None:
        """A batch is encoded."""
        self._tell("on_batch", lambda each: each.on_batch(batch))

    def send(self, batch: BatchInfo, broker_id: int) -> None:
        """A batch goes out."""
        self._tell("on_send", lambda each: each.on_send(batch, broker_id))

    def done(self, batch: BatchInfo, base_offset: int, error: Exception | None) -> None:
        """It's known what became of a batch."""
        self._tell("on_done", lambda each: each.on_done(batch, base_offset, error))

    def _tell(self, hook: str, call: Callable[[ProducerInterceptor[Any, Any]], None]) -> None:
        for each in self._interceptors:
            try:
                call(each)
            except Exception as error:
                self._complain(each, hook, error)

    def _complain(
        self, interceptor: ProducerInterceptor[Any, Any], hook: str, error: Exception
    ) -> None:
        key = (id(interceptor), hook)
        if key not in self._complained:
            self._complained.add(key)
            _log.error(
                "%s of the interceptor %r failed, and isn't told of again: records go on as they "
                "are",
                hook,
                type(interceptor).__name__,
                exc_info=error,
            )
