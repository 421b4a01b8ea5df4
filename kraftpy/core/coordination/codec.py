"""How a machine's writes become batches of a log, and how these become its state again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kraftpy.core.coordination.effects import Write
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import (
    Buffer,
    Record,
    batch_data,
    build_batch,
    read_records,
    split_batches,
)

M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")

KeyAndValue = tuple[bytes | None, bytes | None]


@dataclass
class Loaded:
    """How many records were read and left out so far; `problem` says why the first one was."""

    records: int = 0
    skipped: int = 0
    problem: str = ""

    def take(self, record: Record, decode: Callable[[bytes | None, bytes | None], Any]) -> Any:
        """What a record says, None if that can't be read or is nothing to know; counts it."""
        try:
            decoded = decode(record.key, record.value)
        except DecodeError as error:
            self.problem = self.problem or f"the record at offset {record.offset}: {error}"
            decoded = None
        if decoded is None:
            self.skipped += 1
        else:
            self.records += 1
        return decoded


def plain_batch(write: Write[R], encode: Callable[[R], KeyAndValue], now_ms: int) -> bytes:
    """The batch of a write outside of transactions. Raises as `Codec.encode` does."""
    return build_batch([(now_ms, *encode(record), []) for record in write.records])


def plain_records(
    batches: Buffer, decode: Callable[[bytes | None, bytes | None], R | None], loaded: Loaded
) -> Iterator[tuple[int, R]]:
    """What the records of a log without transactions say, each with its offset; counts them.

    Control batches say nothing here. Raises `DecodeError` as `Codec.replay` does.
    """
    for position, header in split_batches(batches):
        if header.is_control:
            loaded.skipped += header.records_count
            continue
        for record in read_records(header, batch_data(header, batches, position)):
            decoded: R | None = loaded.take(record, decode)
            if decoded is not None:
                yield record.offset, decoded


class Codec(Protocol[M_contra]):
    """The format of one log."""

    def encode(self, write: Write[Any], now_ms: int) -> bytes:
        """The write's batch; raises ValueError or struct.error if a record can't hold what it is
        to.
        """

    def replay(self, batches: Buffer, machine: M_contra, loaded: Loaded) -> None:
        """Takes in whole batches, oldest first; adds to `loaded`.

        A record that can't be read is left out and counted. Raises `DecodeError` for a damaged
        batch, since what a client was promised might be lost behind it.
        """
