"""How a machine's writes become batches of a log, and how these become its state again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kraftpy.core.coordination.effects import Write
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import Buffer, Record

M_contra = TypeVar("M_contra", contravariant=True)


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
