"""Regular expressions that members subscribe to (KIP-848), and the topics that they match.

The syntax is RE2, as in Kafka, and so is the promise that comes with it: matching takes time in
proportion to pattern and name, whatever the pattern. A pattern must match the whole name. What a
client may send is bounded twice: the pattern's length, and the size of the program it compiles to.

Even so a pattern against all topics of a large cluster may take long. The port `Topics` keeps what
it found, and the shell has it look in slices before it hands a heartbeat with a new pattern to the
machine.
"""

from __future__ import annotations

from typing import Protocol

from kraftpy.protocol.errors import ErrorCode, KafkaError

PATTERN_MAX_BYTES = 4096

# For 249 characters (the longest topic name), the worst pattern of this size takes a few ms.
_PROGRAM_MAX_BYTES = 256 * 1024
# For 32,767 (the longest transactional id), the worst pattern of this size takes 50 ms.
SMALL_PROGRAM_BYTES = 16 * 1024


class Pattern(Protocol):
    """A compiled pattern."""

    def fullmatch(self, text: str) -> object | None:
        """Something if the whole text matches."""


def compile_pattern(pattern: str, program_max_bytes: int = _PROGRAM_MAX_BYTES) -> Pattern:
    """Compiles a pattern; raises KafkaError(INVALID_REGULAR_EXPRESSION) with the reason."""
    if len(pattern.encode()) > PATTERN_MAX_BYTES:
        raise _invalid(pattern[:40] + "...", f"it is longer than {PATTERN_MAX_BYTES} bytes")
    import re2  # most groups have no pattern

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = program_max_bytes
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
