"""`--from` and `--to`: what a person writes for a bound, and the offsets that it means.

A bound is `earliest`, `latest`, `lake` (where the lake ends; what isn't in it begins at earliest),
an offset for all partitions, `@TIME` (the first record of that time or later; milliseconds since
1970 or ISO 8601, UTC unless it says otherwise), or JSON with an offset for each partition:
`{"0": 120, "1": 97}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from kraftpy.pipeline.lake import LakeVersion
from kraftpy.pipeline.ranges import OffsetRange
from kraftpy.spark.brokers import Brokers, report_loss

_OFFSET = re.compile(r"[0-9]{1,19}")
_MAX_INT64 = (1 << 63) - 1


class BoundError(ValueError):
    """The text is no bound, or none for this topic; the message says which are."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound as it was written; `value` is an offset, a time in milliseconds, or None."""

    kind: Literal["earliest", "latest", "lake", "offset", "time", "offsets"]
    value: int | None = None
    offsets: tuple[tuple[int, int], ...] = ()

    @classmethod
    def read(cls, text: str) -> Bound:
        """Raises BoundError."""
        match text:
            case "earliest" | "latest" | "lake":
                return cls(text)
        if _OFFSET.fullmatch(text):
            return cls("offset", int(text))
        if text.startswith("@"):
            return cls("time", _time_ms(text[1:]))
        if text.startswith("{"):
            return cls("offsets", offsets=_offsets(text))
        raise BoundError(
            f"{text!r} is no bound: write earliest, latest, lake, an offset, @TIME"
            ' (2026-03-01T12:00 or milliseconds), or {"0": OFFSET, ...}'
        )


def _time_ms(text: str) -> int:
    try:
        if _OFFSET.fullmatch(text):
            time_ms = int(text)
        else:
            when = datetime.fromisoformat(text)
            time_ms = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise BoundError(f"@{text} is no time: write @2026-03-01T12:00 or @MILLISECONDS") from error
    # To a broker -1 and -2 aren't times, they are the ends of the log.
    if not 0 <= time_ms <= _MAX_INT64:
        raise BoundError(f"@{text} isn't a time after 1970 that a record can have")
    return time_ms


def _offsets(text: str) -> tuple[tuple[int, int], ...]:
    try:
        content = json.loads(text)
        found = {int(name): offset for name, offset in content.items()}
    except ValueError as error:
        raise BoundError(f'{text} isn\'t JSON like {{"0": 120, "1": 97}}: {error}') from error
    if not all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in found.values()
    ):
        raise BoundError(f"{text} has an offset that isn't one")
    return tuple(sorted(found.items()))


def resolve(
    bound: Bound, brokers: Brokers, topic: str, partitions: list[int], lake: LakeVersion
) -> dict[int, int]:
    """The offset that the bound means in each partition.

    One offset for all partitions means an end of those logs that don't reach it. Raises BoundError
    if the bound names a partition that isn't there, or leaves one out.
    """
    names = [(topic, partition) for partition in partitions]
    first = {name[1]: offset for name, offset in brokers.earliest(names).items()}
    last = {name[1]: offset for name, offset in brokers.latest(names).items()}
    match bound.kind:
        case "earliest":
            return first
        case "latest":
            return last
        case "lake":
            ends = {partition: lake.end(topic, partition) for partition in partitions}
            return {
                partition: first[partition] if end is None else end
                for partition, end in ends.items()
            }
        case "time":
            found = brokers.offsets(dict.fromkeys(names, bound.value or 0))
            return {name[1]: last[name[1]] if at < 0 else at for name, at in found.items()}
        case "offsets":
            return _named(bound, topic, partitions)
        case _:
            wanted = bound.value or 0
            return {each: min(max(wanted, first[each]), last[each]) for each in partitions}


def check_ends(brokers: Brokers, topic: str, starts: Mapping[int, int], *, fail: bool) -> None:
    """Raises DataLossError, or warns, if a log doesn't reach from or to where a load goes on."""
    names = [(topic, partition) for partition in starts]
    first, last = brokers.earliest(names), brokers.latest(names)
    for name in names:
        start = starts[name[1]]
        if start < first[name]:
            report_loss(
                f"{topic}-{name[1]} starts at {first[name]}, after offset {start}: "
                f"{first[name] - start} offsets are gone",
                fail,
            )
        if start > last[name]:
            report_loss(
                f"{topic}-{name[1]} ends at {last[name]}, before offset {start}: "
                f"{start - last[name]} offsets were taken back",
                fail,
            )


def find_loss(brokers: Brokers, ranges: Iterable[OffsetRange]) -> str | None:
    """Which of the ranges a log doesn't reach from or to, in words; None: all are there."""
    wanted = list(ranges)
    names = [(one.topic, one.partition) for one in wanted]
    first, last = brokers.earliest(names), brokers.latest(names)
    for one, name in zip(wanted, names, strict=True):
        if one.start < first[name]:
            return f"{one} is to be read, and the log starts at {first[name]} now"
        if one.end > last[name]:
            return f"{one} is to be read, and the log ends at {last[name]} now"
    return None


def _named(bound: Bound, topic: str, partitions: list[int]) -> dict[int, int]:
    found = dict(bound.offsets)
    if found.keys() != set(partitions):
        raise BoundError(
            f"{topic} has the partitions {partitions[0]} to {partitions[-1]}: name each of them"
            " and no other"
        )
    return found
