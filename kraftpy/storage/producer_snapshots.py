"""Producer state on disk: Kafka's `<offset>.snapshot` files, and replaying batches on top of one.

A snapshot holds the state before its offset. One is written whenever a segment is begun and at a
clean shutdown, so the state at any offset is the newest snapshot at or below it plus the batches in
between (docs/rules.md, rule 28). A damaged snapshot is passed over: an older one and more
batches give the same state. So is one that lies beyond the high watermark, if transactions have
ended: which of them aren't committed yet only the log tells.

An older snapshot may say that a transaction is open whose end was compacted away since. Compaction
touches none that is open, and its marker goes after its records. So a transaction of which the
first batch is gone begins with the first that is left; one of which none is left has ended
(docs/rules.md, rule 310). Where the log begins later than a transaction did, retention may have
taken that batch, which takes from open ones too. Then compaction is told by what it leaves behind
the snapshot, where the marker was: offsets that are missing, and batches without records.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kraftpy.core.producers import CompletedTransaction, ProducerStateManager
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.record_batch import CONTROL_BIT
from kraftpy.protocol.records import BatchHeader, read_end_txn_marker
from kraftpy.storage.files import Files
from kraftpy.storage.segment import FileSlice, Segment, file_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

logger = logging.getLogger(__name__)

SNAPSHOT_SUFFIX: Final = ".snapshot"


def snapshot_offsets(folder: Path) -> list[int]:
    """Offsets of the snapshots in a partition's folder, rising. Raises OSError."""
    return sorted(
        int(path.stem) for path in folder.glob("*" + SNAPSHOT_SUFFIX) if path.stem.isdigit()
    )


def write_snapshot(
    files: Files, folder: Path, offset: int, producers: ProducerStateManager
) -> Path:
    """Writes the state at `offset`; the returned file still has to be synced. Raises OSError."""
    path = folder / file_name(offset, SNAPSHOT_SUFFIX)
    files.replace_contents(path, producers.snapshot(), durable=False)
    return path


def remove_snapshots(files: Files, folder: Path, offsets: Iterable[int]) -> None:
    """Raises OSError."""
    for offset in offsets:
        files.unlink(folder / file_name(offset, SNAPSHOT_SUFFIX))


def learn(
    producers: ProducerStateManager,
    header: BatchHeader,
    data: bytes | bytearray | memoryview,
    position: int,
    now_ms: int,
) -> CompletedTransaction | None:
    """Tells `producers` of an appended batch that has a producer id; the transaction it ended."""
    marker = None
    if header.attributes & CONTROL_BIT:
        try:
            marker = read_end_txn_marker(data, position)
        except DecodeError as error:
            logger.error("passing over a control batch at offset %d: %s", header.base_offset, error)
    return producers.update(header, now_ms, marker)


def restore(
    producers: ProducerStateManager,
    folder: Path,
    snapshots: Sequence[int],
    segments: Sequence[Segment],
    end_offset: int,
    now_ms: int,
    anew: Sequence[Segment] = (),
) -> None:
    """Brings an empty `producers` to the state at `end_offset`; `snapshots` are `folder`'s, rising.

    `anew` are the last ones of `segments`, which learn anew which transactions were aborted. Raises
    KafkaError, OSError.
    """
    limit = min(end_offset, anew[0].base_offset) if anew else end_offset
    start = _load_newest(producers, folder, snapshots, limit, now_ms)
    lower = producers.snapshot_limit
    if lower is not None:
        producers.clear()
        start = _load_newest(producers, folder, snapshots, lower, now_ms)
    _correct_open(producers, segments, start)
    for segment in anew:
        segment.forget_aborted()
    for segment, position, header in _batches_from(segments, start):
        if header.producer_id >= 0 and start <= header.base_offset < end_offset:
            control = header.attributes & CONTROL_BIT
            size = header.size_bytes if control else 0
            data = FileSlice(segment.file, position, size).read()
            ended = learn(producers, header, data, 0, now_ms)
            if ended is not None and not ended.committed and segment in anew:
                segment.add_aborted(ended)


def _batches_from(
    segments: Sequence[Segment], offset: int
) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """Segment, position and header of each batch from the first that ends at the offset or later.

    Raises KafkaError.
    """
    for segment in segments[max(_number_of(segments, offset), 0) :]:
        found = segment.find(offset)
        if found is not None:
            for position, header in segment.batches(found[0]):
                yield segment, position, header


def _correct_open(
    producers: ProducerStateManager, segments: Sequence[Segment], end_offset: int
) -> None:
    """Holds what a snapshot from `end_offset` says of open transactions against the log.

    Raises KafkaError.
    """
    opened = producers.open_transactions()
    log_start = segments[0].base_offset
    begun_before = min(opened.values(), default=log_start) < log_start
    cleaned = begun_before and _is_cleaned(segments, end_offset)
    left: dict[int, int | None] = {
        producer_id: None
        for producer_id, first in opened.items()
        if (cleaned if first < log_start else not _has_batch_from(segments, first))
    }
    if not left:
        return
    lowest = min(opened[producer_id] for producer_id in left)
    for _, _, header in _batches_from(segments, lowest):
        if header.base_offset >= end_offset:
            break
        producer_id = header.producer_id
        if (
            producer_id in left
            and left[producer_id] is None
            and header.base_offset > opened[producer_id]
            and header.is_transactional
            and not header.is_control
        ):
            left[producer_id] = header.base_offset
    producers.correct_open(left)


def _has_batch_from(segments: Sequence[Segment], offset: int) -> bool:
    """Whether some batch begins there."""
    found = segments[_number_of(segments, offset)].find(offset)
    return found is not None and found[1].base_offset == offset


def _is_cleaned(segments: Sequence[Segment], offset: int) -> bool:
    """Whether compaction has taken something from there on, or from the log's first offset on."""
    expected = max(offset, segments[0].base_offset)
    for _, _, header in _batches_from(segments, expected):
        if header.base_offset > expected or not header.records_count:
            return True
        expected = header.last_offset + 1
    return False


def _number_of(segments: Sequence[Segment], offset: int) -> int:
    """Of the segment that has this offset; -1 where it lies before the log."""
    return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1


def _load_newest(
    producers: ProducerStateManager,
    folder: Path,
    snapshots: Sequence[int],
    end_offset: int,
    now_ms: int,
) -> int:
    """Loads the newest good snapshot at or below `end_offset`; returns its offset, or 0."""
    for offset in reversed(snapshots):
        if offset <= end_offset:
            path = folder / file_name(offset, SNAPSHOT_SUFFIX)
            try:
                producers.load(path.read_bytes(), offset, now_ms)
            except DecodeError as error:
                logger.warning("passing over %s: %s", path, error)
            else:
                return offset
    return 0
