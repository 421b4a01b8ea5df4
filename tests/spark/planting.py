"""Damage in the closed segments of a stopped node, whose indexes stay true for what is sound.

A broker looks at no checksum when it reads, and at a start, below the recovery point, at nothing
but the headers behind each segment's last index entry. So the first two batches of a segment, and
its last two, aren't damaged. What a clean stop has noted of the logs' sizes is forgotten, as if it
had been a crash.
"""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import check_batch, read_batch_header
from kraftpy.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from tests.unit.pipeline.damage import Damage, Told

INDEX_INTERVAL_BYTES = 300
"""About so far apart are index entries, so that an answer's end or a segment's is found."""

KINDS: dict[str, Callable[[Damage, int], None]] = {
    "gap": Damage.gap,
    "duplicate": Damage.duplicate,
    "order": Damage.order,
    "crc": Damage.crc,
    "magic": Damage.magic,
    "long": lambda damage, number: damage.length(number, 1 << 30),
    "short": lambda damage, number: damage.length(number, 55),
    "no length": lambda damage, number: damage.length(number, 0),
    "epoch": lambda damage, number: damage.epoch(number, 1 << 20),
    "offset": Damage.offset,
}


def closed_segments(folder: Path) -> list[Path]:
    """The segment files of a partition that nobody appends to."""
    return sorted(folder.glob("*.log"))[:-1]


def batches_of(path: Path) -> list[bytes]:
    data, position, found = path.read_bytes(), 0, []
    while position < len(data):
        size = check_batch(data, position).size_bytes
        found.append(data[position : position + size])
        position += size
    return found


def plant(path: Path, damages: dict[int, str]) -> Told:
    """Damage batches of a segment, which are `numbered` from 0 on; what an audit has to say."""
    damage = Damage(batches_of(path))
    for number, kind in damages.items():
        KINDS[kind](damage, number)
    write_segment(path, damage.batches)
    return damage.told


def forget_shutdown(log_dir: Path) -> None:
    """A start would else miss what files had more, or fewer, at the clean stop before."""
    (log_dir / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)


def write_segment(path: Path, pieces: list[bytes]) -> None:
    """The file, with an index whose entries are of sound batches."""
    forget_shutdown(path.parent.parent)
    path.write_bytes(b"".join(pieces))
    base, position, indexed = int(path.stem), 0, -INDEX_INTERVAL_BYTES
    entries = []
    for number, piece in enumerate(pieces):
        try:
            header = check_batch(piece) if piece else None
        except DecodeError:
            header = None
        last = number == len(pieces) - 1
        if header is not None and header.size_bytes == len(piece):
            far = position - indexed >= INDEX_INTERVAL_BYTES and header.base_offset < 1 << 40
            if far or last:
                entries.append(struct.pack(">ii", header.last_offset - base, position))
                indexed = position
        position += len(piece)
    path.with_suffix(".index").write_bytes(b"".join(entries))


def plant_at_random(rng: random.Random, folder: Path) -> Told:
    """Any damage at any places of a partition's closed segments, none beside another."""
    told: Told = []
    for path in closed_segments(folder):
        count = len(batches_of(path))
        places = range(2, count - 5, 4)
        chosen = rng.sample(places, rng.randint(0, min(3, len(places))))
        told += plant(path, {one: rng.choice(sorted(KINDS)) for one in chosen})
    return sorted(told, key=lambda one: one[1])


def command(*arguments: str, bootstrap: str) -> subprocess.CompletedProcess[str]:
    """`kraftpy pipeline audit` as from a shell, with JSON."""
    words = [sys.executable, "-m", "kraftpy", "pipeline", "audit", *arguments]
    words += ["-b", bootstrap, "-o", "json", "--master", "local[2]"]
    words += ["--conf", "spark.driver.memory=1g"]
    return subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)


def findings_of(found: Any) -> dict[int, Told]:
    """By partition, from what the command prints."""
    return {
        one["partition"]: [(each["kind"], each["first"], each["last"]) for each in one["findings"]]
        for one in found["partitions"]
    }


def last_offset(path: Path) -> int:
    return read_batch_header(batches_of(path)[-1]).last_offset
