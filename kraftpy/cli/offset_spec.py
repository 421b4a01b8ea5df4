"""How the command line writes offsets: `start`, `end`, `-10`, `+5`, `42`, `@timestamp`, `:end`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from kraftpy.client.cluster import Cluster, is_retriable
from kraftpy.client.offsets import (
    EARLIEST,
    LATEST,
    READ_UNCOMMITTED,
    Partition,
    list_offsets,
)
from kraftpy.protocol.errors import KafkaError

_KNOWN_TIMEOUT_MS = 1_000
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

OFFSET_HELP = """\b
Offsets (-o), for each partition:
  start         the oldest record (the default)
  end           records from now on
  -10           the last 10 that are shown
  +5            5 behind the oldest
  42            offset 42
  @1700000000000, @2023-11-14T22:13:20Z
                the first record at or after a time: milliseconds since 1970, or
                ISO 8601 (local time unless it names a zone)
  @-90m         the first record of the last 90 minutes; or s, h, d
  :end          behind any of these, or alone: stop at what is the end now; with
                read_committed where the first open transaction begins
"""


class OffsetError(ValueError):
    """Not an offset as `OFFSET_HELP` lists them."""


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """`kind` is start, end, last (`value` records), after (the start), exact, or time (ms)."""

    kind: str
    value: int = 0
    until_end: bool = False


def parse_offset(text: str) -> OffsetSpec:
    """An offset as typed; `OffsetError` says what is allowed."""
    begin = text.removesuffix(":end")
    until_end = begin != text
    if begin == "start" or (not begin and until_end):
        return OffsetSpec("start", until_end=until_end)
    if begin == "end":
        return OffsetSpec("end", until_end=until_end)
    if begin.startswith("@"):
        return OffsetSpec("time", _parse_time(begin[1:]), until_end)
    match = re.fullmatch(r"([+-]?)([0-9]{1,18})", begin)
    if match is None:
        raise OffsetError(f"{text!r} is none of start, end, -10, +5, 42, @TIME, or one with :end")
    kind = {"-": "last", "+": "after", "": "exact"}[match[1]]
    return OffsetSpec(kind, int(match[2]), until_end)


class Position(click.ParamType):  # type: ignore[type-arg]
    """An `OffsetSpec` without an end."""

    name = "offset"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> OffsetSpec:
        try:
            spec = parse_offset(str(value))
        except OffsetError as error:
            self.fail(str(error).removesuffix(", or one with :end"), param, ctx)
        if spec.until_end:
            self.fail(f"{value!r} has an end, which has no meaning here", param, ctx)
        return spec


def _parse_time(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    ago = re.fullmatch(r"-([0-9]{1,9})([smhd])", text)
    if ago is not None:
        return max(0, int((time.time() - int(ago[1]) * _SECONDS[ago[2]]) * 1000))
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise OffsetError(
            f"'@{text}' is neither milliseconds since 1970 nor ISO 8601 like "
            "@2023-11-14T22:13:20Z, nor a time ago like @-90m"
        ) from None


async def resolve(
    cluster: Cluster,
    partitions: Sequence[Partition],
    spec: OffsetSpec,
    isolation: int = READ_UNCOMMITTED,
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """The offsets to begin at, and the ends of the partitions now.

    Ends are high watermarks, or with READ_COMMITTED last stable offsets. "last" counts offsets.
    """
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), isolation=isolation)
    match spec.kind:
        case "start":
            return starts, ends
        case "end":
            return ends, ends
        case "last":
            return {p: max(starts[p], ends[p] - spec.value) for p in partitions}, ends
        case "after":
            # Not less behind an open transaction: what comes before would be shown, too.
            limits = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
            return {p: min(starts[p] + spec.value, limits[p]) for p in partitions}, ends
        case "time":
            wanted = dict.fromkeys(partitions, spec.value)
            found = await list_offsets(cluster, wanted, isolation=isolation)
            return {p: offset if offset >= 0 else ends[p] for p, offset in found.items()}, ends
        case _:
            return dict.fromkeys(partitions, spec.value), ends


async def known_offsets(
    cluster: Cluster, partitions: Sequence[Partition], when: int
) -> dict[Partition, int]:
    """The offsets that can be told now: a new leader without enough replicas has none to tell."""

    async def ask(some: Sequence[Partition]) -> dict[Partition, int] | None:
        try:
            wanted = dict.fromkeys(some, when)
            return await list_offsets(cluster, wanted, timeout_ms=_KNOWN_TIMEOUT_MS)
        except (ConnectionError, KafkaError) as error:
            if not is_retriable(error):
                raise
            return None

    found = await ask(partitions)
    if found is not None:
        return found
    answers = await asyncio.gather(*(ask([each]) for each in partitions))
    return {name: offset for answer in answers for name, offset in (answer or {}).items()}
