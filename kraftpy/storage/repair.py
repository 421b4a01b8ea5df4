"""`python -m kraftpy.storage.repair FOLDER`: keep only what lies before the damage in a partition.

For the operator whom recovery refused, after the choice to give the rest up. Nothing is destroyed:
the damaged file and those after it stay in the folder under names that end in `.damaged`. The
recovery point is lowered, or the next start would miss what had been flushed. Of a folder that is
gone nothing is kept: the partition begins anew.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from kraftpy.frozen import NamedTuple
from kraftpy.storage import checkpoints
from kraftpy.storage.batches import DamageError, checked_batches
from kraftpy.storage.directory import lock_directory, partition_of
from kraftpy.storage.files import Files, StorageError
from kraftpy.storage.segment import INDEX_SUFFIXES, LOG_SUFFIX

DAMAGED_SUFFIX: Final = ".damaged"

_COPY_BYTES: Final = 1 << 20


class _Cut(NamedTuple):
    """The segment `number` keeps `size` bytes, and the log ends at `end_offset` then."""

    number: int
    size: int
    end_offset: int
    reason: str


def repair(folder: Path, files: Files) -> str:
    """Cuts the log in `folder` before its first damage; says in a sentence what was done.

    Raises StorageError when a broker uses the log directory, OSError.
    """
    key = partition_of(folder.name)
    if key is None or not folder.parent.is_dir():
        raise StorageError(f"{folder} is no folder of a partition, as orders-0 would be")
    lock = lock_directory(folder.parent, files)
    paths = sorted(path for path in folder.glob("*" + LOG_SUFFIX) if path.stem.isdigit())
    cut = _find_damage(paths, files)
    if cut.number < len(paths):
        _set_aside(paths[cut.number :], cut.size, files)
    checkpoint = folder.parent / checkpoints.RECOVERY_POINT_FILE
    points = checkpoints.read_offsets(checkpoint)
    points[key] = min(points.get(key, 0), cut.end_offset)
    checkpoints.write_offsets(files, checkpoint, points)
    # What follows has to be checked like after a crash.
    files.unlink(folder.parent / checkpoints.CLEAN_SHUTDOWN_FILE)
    files.sync_folder(folder.parent)
    del lock
    return (
        f"{folder} ends at offset {cut.end_offset} now: {cut.reason}. What was cut off, if "
        f"anything, is in its files *{DAMAGED_SUFFIX}."
    )


def _find_damage(paths: list[Path], files: Files) -> _Cut:
    end_offset = 0
    gap: _Cut | None = None
    for number, path in enumerate(paths):
        base_offset, size = int(path.stem), 0
        if number and base_offset > end_offset and gap is None:
            # Damage if nothing else is wrong: compaction may leave gaps.
            gap = _Cut(number, 0, end_offset, f"{path.name} begins after a gap")
        if base_offset < end_offset:
            return _Cut(number, 0, end_offset, f"{path.name} begins too early")
        end_offset = base_offset
        try:
            file = files.open(path)
            for position, header, _ in checked_batches(file, file.size_bytes()):
                if header.base_offset < end_offset:
                    raise DamageError(position, f"offset {header.base_offset} again")
                end_offset = header.last_offset + 1
                size = position + header.size_bytes
        except DamageError as damage:
            return _Cut(number, size, end_offset, f"{path.name} at {size}: {damage.reason}")
    return gap or _Cut(len(paths), 0, end_offset, "no damage was found")


def _set_aside(paths: list[Path], keep_bytes: int, files: Files) -> None:
    """Renames the segments; of the first one `keep_bytes` are copied back."""
    for path in reversed(paths):
        files.rename(path, path.with_name(path.name + DAMAGED_SUFFIX))
        for suffix in INDEX_SUFFIXES:
            files.unlink(path.with_suffix(suffix))
    if keep_bytes:
        source = files.open(paths[0].with_name(paths[0].name + DAMAGED_SUFFIX))
        target = files.open(paths[0], create=True)
        for position in range(0, keep_bytes, _COPY_BYTES):
            count = min(_COPY_BYTES, keep_bytes - position)
            files.write_all(target, os.pread(source.fd, count, position))
        files.sync(target)
    files.sync_folder(paths[0].parent)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m kraftpy.storage.repair FOLDER-OF-A-PARTITION\n")
        return 2
    try:
        sys.stdout.write(repair(Path(arguments[0]).absolute(), Files()) + "\n")
    except (OSError, StorageError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
