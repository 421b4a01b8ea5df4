"""Whether a member may say of its records what it says (KIP-932).

All that it says of a partition is judged as a whole: one offset that isn't its own, or an
acknowledgement that makes no sense, refuses all. Below the start offset all is well. It's one pass
over what is said and the runs that it's said of, as there may be thousands of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from kraftpy.core.leases.runs import ACQUIRED, Runs
from kraftpy.core.leases.terms import Acknowledgement
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from kraftpy.protocol.errors import ErrorCode, KafkaError

# Nobody holds so many runs; a request may name more of them.
ACKNOWLEDGEMENTS_MAX = 10_000

Said: TypeAlias = tuple[int, int, int, int]
"""Of part of a run, first to last: its index, and what is said of it."""

_LOWEST, _HIGHEST = int(min(AcknowledgeType)), int(max(AcknowledgeType))


def judge(
    runs: Runs, member: str, acknowledgements: Sequence[Acknowledgement], said: list[Said]
) -> ErrorCode:
    """Adds to `said`, ascending, what is to be done if there is no error."""
    if len(acknowledgements) > ACKNOWLEDGEMENTS_MAX:
        return ErrorCode.INVALID_REQUEST
    states, members = runs.states, runs.members
    try:
        for at, last, index, (first, _, types) in runs.parts(_sensible(acknowledgements, runs.end)):
            if states[index] != ACQUIRED or members[index] != member:
                return ErrorCode.INVALID_RECORD_STATE
            if len(types) == 1:
                said.append((at, last, index, types[0]))
            else:
                said.extend(_by_type(at, index, types[at - first : last + 1 - first]))
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def _sensible(acknowledgements: Sequence[Acknowledgement], end: int) -> Iterator[Acknowledgement]:
    """These, one by one: they ascend below `end`. Raises KafkaError."""
    before = -1
    for each in acknowledgements:
        first, last, types = each
        if first <= before or not first <= last < end or not _are_known(types, last - first + 1):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        before = last
        yield each


def _are_known(types: Sequence[int], count: int) -> bool:
    if len(types) == 1:
        return _LOWEST <= types[0] <= _HIGHEST
    return len(types) == count and min(types) >= _LOWEST and max(types) <= _HIGHEST


def _by_type(at: int, index: int, types: Sequence[int]) -> Iterator[Said]:
    """Offsets from `at` on of which the same is said."""
    first, kind = at, types[0]
    for each in types:
        if each != kind:
            yield first, at - 1, index, kind
            first, kind = at, each
        at += 1
    yield first, at - 1, index, kind
