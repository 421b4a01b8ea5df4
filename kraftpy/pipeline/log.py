"""The files of a lake's versions, and how they stay few: checkpoints and history.

    <lake>/_kraftpy/versions/<number>.json       one change each, the newest ones
    <lake>/_kraftpy/checkpoints/<number>.json    the whole lake as of a version
    <lake>/_kraftpy/history/<number>.jsonl       the EVERY changes up to a version, a line each

A stream that loads every ten seconds makes 8,640 versions a day. So that a lake with many of them
opens fast, whoever commits a version EVERY after the last checkpoint writes the next one, and packs
the changes that are older than the checkpoint before it. Rules:

* A checkpoint says nothing that the changes before it don't: without any, the lake is read from its
  history. The newest two are kept.
* A change is in the history before its own file goes, so it can be read at every moment: its own
  file first, then the history. Nothing of what was done to a lake is ever lost.
* Each file is put whole and once (`put_if_absent`), and what it holds is the same whoever puts it.
  So it doesn't matter who is killed where, or how many do this at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kraftpy.pipeline.folder import numbered, put_if_absent
from kraftpy.pipeline.manifests import (
    Checkpoint,
    Manifest,
    ManifestError,
    decode_checkpoint,
    decode_manifest,
    encode,
    encode_checkpoint,
    encode_line,
)

EVERY: Final = 100
"""How many versions apart checkpoints are, and how many changes a file of the history has."""


class VersionLog:
    """The changes of a lake in the order of their versions. Several processes may work on it."""

    def __init__(self, folder: Path) -> None:
        self._versions = folder / "versions"
        self._checkpoints = folder / "checkpoints"
        self._history = folder / "history"

    def put(self, change: Manifest) -> bool:
        """Makes the change that version, durably, unless there is one; tells whether it did."""
        return put_if_absent(self._version(change.version), encode(change))

    def get(self, number: int) -> Manifest | None:
        """What a version changed; None if there is none yet. Raises ManifestError."""
        return next(iter(self._from(number)), None)

    def changes(self, after: int = 0) -> Iterator[Manifest]:
        """The changes behind a version, in order, up to the newest. Raises ManifestError."""
        number = after + 1
        while True:
            found = self._from(number)
            if not found and max(numbered(self._versions), default=0) >= number:
                found = self._from(number)  # it has come since it was looked for
                if not found:
                    raise ManifestError(
                        f"{self._version(number)} is missing, and later ones are there; restore"
                        f" {self._versions} from a copy of the lake"
                    )
            if not found:
                return
            yield from found
            number += len(found)

    def newest_checkpoint(self) -> Checkpoint | None:
        """Raises ManifestError if it isn't what it should be."""
        while number := max(numbered(self._checkpoints), default=0):
            path = self._checkpoint(number)
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue  # two newer ones have come meanwhile
            found = decode_checkpoint(str(path), data)
            if found.version != number:
                raise ManifestError(f"{path} is that of version {found.version}; delete it")
            return found
        return None

    def needs_checkpoint(self, number: int) -> bool:
        """Whether it is time for one at this version."""
        return number - max(numbered(self._checkpoints), default=0) >= EVERY

    def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Stores it, then packs and deletes what is older than the one before. Raises OSError."""
        put_if_absent(self._checkpoint(checkpoint.version), encode_checkpoint(checkpoint))
        there = sorted(numbered(self._checkpoints))
        if len(there) > 1:
            self._pack(there[-2])
        for number in there[:-2]:
            self._checkpoint(number).unlink(missing_ok=True)

    def _pack(self, until: int) -> None:
        """Moves the changes up to a version into the history, whole files of it at a time."""
        for number in sorted(numbered(self._versions)):
            last = _segment_end(number)
            if last > until:
                return
            path = self._segment(last)
            if not path.exists():
                changes = itertools.islice(self.changes(last - EVERY), EVERY)
                put_if_absent(path, b"".join(encode_line(change) for change in changes))
            self._version(number).unlink(missing_ok=True)

    def _from(self, number: int) -> list[Manifest]:
        """The change of that version, and those that are read with it; none if it isn't there."""
        path = self._version(number)
        try:
            return [_of_version(number, path, path.read_bytes())]
        except FileNotFoundError:
            pass  # it is packed, and was so before its own file went, or it isn't there
        last = _segment_end(number)
        path = self._segment(last)
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        if len(lines) != EVERY:
            raise ManifestError(
                f"{path} has {len(lines)} lines, not {EVERY}; restore it from a copy of the lake"
            )
        return [_of_version(each, path, lines[each - last - 1]) for each in range(number, last + 1)]

    def _version(self, number: int) -> Path:
        return self._versions / f"{number:020d}.json"

    def _checkpoint(self, number: int) -> Path:
        return self._checkpoints / f"{number:020d}.json"

    def _segment(self, last: int) -> Path:
        return self._history / f"{last:020d}.jsonl"


def _segment_end(number: int) -> int:
    """The last version that is in one file of the history with this one."""
    return -(-number // EVERY) * EVERY


def _of_version(number: int, path: Path, data: bytes) -> Manifest:
    change = decode_manifest(str(path), data)
    if change.version != number:
        raise ManifestError(
            f"{path} has version {change.version} where {number} belongs; restore it from a copy"
            " of the lake"
        )
    return change
