"""What was fetched ahead for a consumer, and how it becomes the records that are handed out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from kraftpy.client.fetcher import Fetched
from kraftpy.client.ledger import Ledger
from kraftpy.client.offsets import Partition
from kraftpy.client.serializing import K, V
from kraftpy.protocol.key_hash import key_hash
from kraftpy.protocol.records import Header, Record

Deserializer = Callable[[bytes], Any]
"""Bytes of a key or value to what the user wants; null stays None without asking it."""


@dataclass(slots=True)
class ConsumerRecord(Generic[K, V]):
    """A record as the consumer hands it out; `timestamp` in milliseconds since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K | None
    value: V | None
    headers: list[Header]


class FetchedRecords:
    """Records that were fetched and not handed out yet; those of a partition in order.

    Of partitions with `ledgers` only what these let pass is handed out.
    """

    def __init__(
        self,
        key_deserializer: Deserializer | None,
        value_deserializer: Deserializer | None,
        ledgers: Mapping[Partition, Ledger],
    ) -> None:
        self._ledgers = ledgers
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._chunks: deque[_Chunk] = deque()
        self.in_hand: dict[Partition, int] = {}
        """The first offsets of what was handed out last."""

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, fetched: Fetched) -> None:
        self._chunks.append(_Chunk(fetched))

    def drop(self, name: Partition) -> None:
        """Throws away what was fetched of a partition."""
        self._chunks = deque(
            chunk
            for chunk in self._chunks
            if (chunk.fetched.topic, chunk.fetched.partition) != name
        )

    def take(self, most: int, positions: dict[Partition, int]) -> list[ConsumerRecord[Any, Any]]:
        """Hands records out, and moves the positions behind them.

        What a deserializer raises reaches the user when the record is the next one; `seek` passes
        it.
        """
        taken: list[ConsumerRecord[Any, Any]] = []
        while self._chunks and len(taken) < most:
            chunk = self._chunks[0]
            fetched = chunk.fetched
            name = (fetched.topic, fetched.partition)
            if fetched.lane is not None:
                failed = self._take_of_lane(chunk, most, positions, taken)
                if failed is not None:
                    if not taken:
                        raise failed
                    return taken
                continue
            if chunk.taken < len(fetched.records):
                self.in_hand.setdefault(name, fetched.records[chunk.taken].offset)
            for record in fetched.records[chunk.taken : chunk.taken + most - len(taken)]:
                positions[name] = record.offset
                try:
                    taken.append(self._handed_out(name, record))
                except Exception:
                    if not taken:
                        raise
                    return taken
                chunk.taken += 1
                positions[name] = record.offset + 1
            if chunk.taken == len(fetched.records):
                self._chunks.popleft()
                positions[name] = fetched.position
        return taken

    def _take_of_lane(
        self,
        chunk: _Chunk,
        most: int,
        positions: dict[Partition, int],
        taken: list[ConsumerRecord[Any, Any]],
    ) -> Exception | None:
        """The same of records of which some are others', or done; what a deserializer raised."""
        fetched = chunk.fetched
        name = (fetched.topic, fetched.partition)
        ledger = self._ledgers.get(name)
        lane = fetched.lane
        if ledger is None or lane is None:
            self._chunks.popleft()
            return None
        readers = ledger.readers(lane)
        end = fetched.position
        failed = None
        begin = len(taken)
        while chunk.taken < len(fetched.records):
            record = fetched.records[chunk.taken]
            if len(taken) >= most:
                end = record.offset
                break
            if ledger.hand_out(key_hash(record.key, record.offset), record.offset, readers):
                try:
                    taken.append(self._handed_out(name, record))
                except Exception as error:
                    ledger.take_back(record.offset, readers)
                    end, failed = record.offset, error
                    break
            chunk.taken += 1
        else:
            self._chunks.popleft()
        if len(taken) > begin:
            first = taken[begin].offset
            self.in_hand[name] = min(self.in_hand.get(name, first), first)
        ledger.advance(readers, end)
        positions[name] = ledger.position
        return failed

    def _handed_out(self, name: Partition, record: Record) -> ConsumerRecord[Any, Any]:
        key, value = record.key, record.value
        if self._key_deserializer is not None and key is not None:
            key = deserialized(self._key_deserializer, key, "key", name, record.offset)
        if self._value_deserializer is not None and value is not None:
            value = deserialized(self._value_deserializer, value, "value", name, record.offset)
        return ConsumerRecord(*name, record.offset, record.timestamp, key, value, record.headers)


class _Chunk:
    """What was fetched of a partition, and how many of its records are handed out."""

    __slots__ = ("fetched", "taken")

    def __init__(self, fetched: Fetched) -> None:
        self.fetched = fetched
        self.taken = 0


def deserialized(
    deserializer: Deserializer, data: bytes, field: str, name: Partition, offset: int
) -> Any:
    try:
        return deserializer(data)
    except Exception as error:
        error.add_note(
            f"when the {field} of {name[0]}-{name[1]} at offset {offset} was deserialized"
        )
        raise
