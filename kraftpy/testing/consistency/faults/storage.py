"""What a crash does to the files of a node that is down."""

from __future__ import annotations

import random
from pathlib import Path

_TAIL_BYTES_MAX = 4096


def lose_tail(log_dir: Path, rng: random.Random) -> str:
    """Take the newest bytes of each log, as if they had not reached the disk; in words, what.

    A cut in the middle of a batch leaves a torn one.  A log whose bytes aren't there but whose
    length is (zeros) is the other thing that file systems leave.
    """
    zeros = rng.random() < 0.3
    logs = taken = 0
    for folder in sorted(each for each in log_dir.iterdir() if each.is_dir()):
        segments = sorted(folder.glob("*.log"))
        size = segments[-1].stat().st_size if segments else 0
        if not size:
            continue
        keep = size - min(size, rng.randint(1, _TAIL_BYTES_MAX))
        with segments[-1].open("r+b") as file:
            file.truncate(keep)
            if zeros:
                file.truncate(size)
        logs += 1
        taken += size - keep
    how = "are zeros" if zeros else "are gone"
    return f"the last {taken} bytes of {logs} logs {how}"
