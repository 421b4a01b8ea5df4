"""Regular expressions that members subscribe to (KIP-848), and the topics that they match.

The syntax is RE2, as in Kafka, and so is the promise that comes with it: matching takes time in
proportion to pattern and name, whatever the pattern. A pattern must match the whole name. What a
client may send is bounded twice: the pattern's length, and the size of the program it compiles to.

Even so a pattern against all topics of a large cluster may take long, so nobody waits for it in a
heartbeat. The machine hands a `Resolution` to its shell (`Effects.resolutions`); the shell advances
it in slices, and gives it back to the machine when it is done. Until then a member that subscribes
to a new pattern gets what its topic names give it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

import re2

from kraftpy.protocol.errors import ErrorCode, KafkaError

PATTERN_MAX_BYTES = 4096

# For 249 characters (the longest topic name), the worst pattern of this size takes a few ms.
_PROGRAM_MAX_BYTES = 256 * 1024


class Pattern(Protocol):
    """A compiled pattern."""

    def fullmatch(self, text: str) -> object | None:
        """Something if the whole text matches."""


def compile_pattern(pattern: str) -> Pattern:
    """Compiles a pattern; raises KafkaError(INVALID_REGULAR_EXPRESSION) with the reason."""
    if len(pattern.encode()) > PATTERN_MAX_BYTES:
        raise _invalid(pattern[:40] + "...", f"it is longer than {PATTERN_MAX_BYTES} bytes")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _PROGRAM_MAX_BYTES
    try:
        compiled: Pattern = re2.compile(pattern, options)
    except re2.error as error:
        (reason,) = error.args
        raise _invalid(pattern, reason.decode(errors="replace")) from None
    return compiled


def _invalid(pattern: str, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {reason}.",
    )


class Resolution:
    """Finds the topics that each pattern of a group matches, a piece at a time.

    `patterns` have been accepted by `compile_pattern`; `topic_names` are all topics that there are
    as of `metadata_offset`.
    """

    def __init__(
        self,
        group_id: str,
        patterns: Iterable[str],
        topic_names: Sequence[str],
        metadata_offset: int,
    ) -> None:
        self.group_id = group_id
        self.metadata_offset = metadata_offset
        self.matches: dict[str, frozenset[str]] = {}
        self._topic_names = topic_names
        self._waiting = iter(sorted(set(patterns)))
        self._pattern = next(self._waiting, None)
        self._names = iter(topic_names)
        self._found: list[str] = []

    @property
    def done(self) -> bool:
        """Whether `matches` has every pattern."""
        return self._pattern is None

    def advance(self, names_max: int) -> None:
        """Tries the present pattern on that many more names."""
        assert self._pattern is not None
        match = compile_pattern(self._pattern).fullmatch
        tried = list(islice(self._names, names_max))
        self._found += [name for name in tried if match(name)]
        if len(tried) < names_max:
            self.matches[self._pattern] = frozenset(self._found)
            self._pattern = next(self._waiting, None)
            self._names = iter(self._topic_names)
            self._found = []
