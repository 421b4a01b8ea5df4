"""The last events of a process, as frames of an answer (`channel`).

A frame is `["events", [row, ...]]`, the oldest first, a row being `[number, milliseconds since
1970, level, logger, name, {field: value}]`. The number counts the events of the process: what has
the same number and time is the same event.
"""

from __future__ import annotations

from collections.abc import Iterator

from kraftpy import events
from kraftpy.metrics.channel import Frame

EVENTS = "events"
# An event has a few fields of at most 256 characters: that is far below MESSAGE_MAX_BYTES.
_ROWS_MAX = 16


def event_frames() -> Iterator[Frame]:
    """All that this process has kept."""
    kept = events.kept()
    for start in range(0, len(kept), _ROWS_MAX):
        yield [EVENTS, [list(event) for event in kept[start : start + _ROWS_MAX]]]


def last_number() -> int:
    """The number of the last event, 0 if there is none: whether it is worth asking for them."""
    kept = events.kept()
    return kept[-1].number if kept else 0
