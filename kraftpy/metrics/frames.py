"""What a process hands to the exporter, piece by piece (`channel`).

* `["samples", [[name, [label, ...], value], ...]]`: the catalogue's metrics as they are; the value
  of a histogram is `[counts, sum]`;
* `["partitions", [topic, partition count or None, [row, ...]]]`: replicas at a broker, a row being
  `PartitionRow`; the count comes from the leader of partition 0;
* `["group", [group id, member count or None, [[topic, offsets' sum, lags' sum], ...]]]`: the first
  frame of a group has its members;
* `["group_offsets", [group id, topic, [[partition, offset, lag], ...], shown]]`: lag None if the
  broker doesn't know it, which the sum of lags lacks then. Rows that aren't shown as series have
  only such lags;
* `["share_states", [[group id, topic, partition, finished, lag], ...]]`: how far share groups are
  whose state a broker keeps; lag None as above;
* `["health", {what: value}]`;
* `["node", {...}]`: what a process is and how it is, as `page.facts` reads it;
* `["brokers", [[id, epoch, host, port, rack, fenced, in controlled shutdown], ...]]` and
  `["topics", [[name, internal, min.insync.replicas, [row, ...]], ...]]`: the metadata, a row being
  a partition's `[index, leader, leader epoch, replicas, isr, elr, adding, removing]`. A large topic
  comes in several frames.

A frame has at most `ROWS_MAX` rows, so that making one takes a fraction of a slice. Names that
clients choose are shortened (`label`) before they are sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from kraftpy.frozen import NamedTuple
from kraftpy.metrics.channel import Frame
from kraftpy.metrics.instruments import Histogram

ROWS_MAX = 64
# No name of a topic is as long, so only what clients choose freely is ever shortened.
LABEL_MAX_LENGTH = 256

SAMPLES = "samples"
PARTITIONS = "partitions"
GROUP = "group"
GROUP_OFFSETS = "group_offsets"
SHARE_STATES = "share_states"
HEALTH = "health"
NODE = "node"
BROKERS = "brokers"
TOPICS = "topics"

T = TypeVar("T")


class PartitionRow(NamedTuple):
    """A replica. All after `size_bytes` is the leader's to know, and left out by a follower.

    `min_isr` is -1, 0 or 1: fewer, as many or more replicas in sync than min.insync.replicas.
    """

    partition: int
    size_bytes: int
    high_watermark: int = -1
    log_start_offset: int = -1
    isr: int = -1
    replicas: int = -1
    is_preferred: bool = False
    min_isr: int = 1

    @property
    def is_led(self) -> bool:
        """Whether the replica leads."""
        return self.replicas >= 0


class Samples:
    """Collects samples into one frame."""

    def __init__(self) -> None:
        self._rows: list[list[Any]] = []

    def add(self, name: str, value: float, *labels: str) -> None:
        self._rows.append([name, labels, value])

    def histogram(self, name: str, histogram: Histogram, *labels: str) -> None:
        self._rows.append([name, labels, [histogram.counts, histogram.sum]])

    def frame(self) -> Frame:
        return [SAMPLES, self._rows]


def label(text: str) -> str:
    """The text as a label's value: a long one is cut, and ends in a hash that keeps it apart."""
    if len(text) <= LABEL_MAX_LENGTH:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[: LABEL_MAX_LENGTH - len(digest) - 1]}~{digest}"


def pieces(rows: Iterable[T]) -> Iterator[list[T]]:
    """The rows, as many at a time as a frame may have."""
    piece: list[T] = []
    for row in rows:
        piece.append(row)
        if len(piece) == ROWS_MAX:
            yield piece
            piece = []
    if piece:
        yield piece
