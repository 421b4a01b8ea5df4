"""Putting compacted segments into the place of their sources, in Kafka's steps.

A new segment lies there as `.cleaned` while it is written, and as `.swap` once it and all others of
the same cleaning are on disk. Before that a crash leaves the log as it was; after that the next
start completes the swap. A `.swap` replaces every segment that begins at or after its base offset
and below its end: the last batch of what it replaces is always in it. Its indexes keep the name
`.cleaned` until the sources are gone; whoever misses an index makes it anew. That of aborted
transactions can't be missed: if a source has one there is one, maybe empty, to replace it.

The renames in one folder reach the disk in their order, as with every journaling file system.
"""

from __future__ import annotations

import logging
from pathlib import Path

from kraftpy.storage.cleaning.job import CLEANED_SUFFIX, SWAP_SUFFIX
from kraftpy.storage.files import Files
from kraftpy.storage.segment import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    Segment,
    file_name,
)
from kraftpy.storage.segment_cache import SegmentCache

logger = logging.getLogger(__name__)


class SwapSegment(Segment):
    """A segment whose `.log` is still called `.log.swap`."""

    __slots__ = ()

    def path(self, suffix: str) -> Path:
        path = super().path(suffix)
        return path.with_name(path.name + SWAP_SUFFIX) if suffix == LOG_SUFFIX else path


def swap_bases(folder: Path) -> list[int]:
    """Base offsets of the segments that wait for their place, rising. Raises OSError."""
    ending = LOG_SUFFIX + SWAP_SUFFIX
    return sorted(int(path.name.removesuffix(ending)) for path in folder.glob("*" + ending))


def take_place(files: Files, folder: Path, base_offset: int) -> None:
    """The sources have left: gives a `.swap` and its indexes their names. Raises OSError."""
    for suffix in INDEX_SUFFIXES:
        path = folder / file_name(base_offset, suffix)
        cleaned = path.with_name(path.name + CLEANED_SUFFIX)
        if cleaned.exists():
            files.rename(cleaned, path)
    path = folder / file_name(base_offset, LOG_SUFFIX)
    files.rename(path.with_name(path.name + SWAP_SUFFIX), path)


def discard(files: Files, folder: Path) -> None:
    """Removes what a cleaning that was given up left; durably, if it was far. Raises OSError."""
    swaps = list(folder.glob("*" + SWAP_SUFFIX))
    # The newest first: a crash in between leaves those that a restart can put into the log.
    for path in sorted(swaps, reverse=True):
        files.unlink(path)
    for path in folder.glob(f"*{CLEANED_SUFFIX}*"):
        files.unlink(path)
    if swaps:
        files.sync_folder(folder)


def complete(files: Files, folder: Path, cache: SegmentCache) -> None:
    """After a crash: finishes or discards what a cleaning began. Raises KafkaError, OSError."""
    bases = swap_bases(folder)
    for base_offset in bases:
        _complete(files, folder, base_offset, cache)
    for path in folder.glob("*" + CLEANED_SUFFIX):
        files.unlink(path)
    if bases:
        files.sync_folder(folder)
        logger.info("completed the compaction of %s that a crash had interrupted", folder)


def _complete(files: Files, folder: Path, base_offset: int, cache: SegmentCache) -> None:
    path = folder / file_name(base_offset, LOG_SUFFIX)
    size = path.with_name(path.name + SWAP_SUFFIX).stat().st_size
    made = SwapSegment(folder, base_offset, size=size, created_ms=0, files=files, cache=cache)
    end_offset = max(
        (header.last_offset + 1 for _, header in made.batches(0)), default=base_offset + 1
    )
    made.forget()
    logs = folder.glob("*" + LOG_SUFFIX)
    sources = [int(source.stem) for source in logs if source.stem.isdigit()]
    for source in sorted(sources, reverse=True):
        if base_offset <= source < end_offset:
            for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
                files.unlink(folder / file_name(source, suffix))
    take_place(files, folder, base_offset)
