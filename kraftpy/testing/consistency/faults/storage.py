"""What crashes and bad disks do to the files of a node that is down, and a disk that is full."""

from __future__ import annotations

import random
from pathlib import Path

from kraftpy.storage.checkpoints import RECOVERY_POINT_FILE
from kraftpy.storage.directory import DAMAGED_SUFFIX
from kraftpy.testing import disks
from kraftpy.testing.consistency.faults.ground import Act, Ground, LeftOut, Need

NEEDS_DISKS = Need("small_disks", disks.missing)
_TAIL_BYTES_MAX = 4096
_NAMED_MAX = 3


def lose_tail(log_dir: Path, rng: random.Random) -> str:
    """Takes the newest bytes of each log, as if they had not reached the disk; in words, what.

    A cut in the middle of a batch leaves a torn one. A log whose bytes aren't there but whose
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
    if not logs:
        return LeftOut("nothing is taken: its logs are empty")
    how = "are zeros" if zeros else "are gone"
    return f"the last {taken} bytes of {logs} logs {how}"


def flip_bits(log_dir: Path, rng: random.Random) -> str:
    """Flips a bit in one closed segment of each log that has one; in words, what.

    What was set aside earlier is nobody's log.
    """
    flipped = []
    for folder in sorted(each for each in log_dir.iterdir() if each.is_dir()):
        if folder.name.endswith(DAMAGED_SUFFIX):
            continue
        closed = sorted(folder.glob("*.log"))[:-1]
        full = [path for path in closed if path.stat().st_size]
        if full:
            path = rng.choice(full)
            position = rng.randrange(path.stat().st_size)
            with path.open("r+b") as file:
                file.seek(position)
                (byte,) = file.read(1)
                file.seek(position)
                file.write(bytes([byte ^ 1 << rng.randrange(8)]))
            flipped.append(f"{folder.name}/{path.name} at {position}")
    if not flipped:
        return LeftOut("nothing is flipped: no log has a closed segment")
    more = f" and {len(flipped) - _NAMED_MAX} more" if len(flipped) > _NAMED_MAX else ""
    return f"a bit flipped in {', '.join(flipped[:_NAMED_MAX])}{more}"


def bit_flip(ground: Ground) -> Act:
    """One node is killed, and its disk gives back what was not written, in old segments.

    Of one replica only: what all have lost nobody can bring back. So it goes without its recovery
    point, and its start looks at everything. Else the damage could lie there unread until the next
    fault of this kind has another replica lose the rest; and what no checksum covers, a batch's
    first offset, clients that don't compare it would go by.
    """
    cluster, (victim,) = ground.cluster, ground.victims(1)

    def begin() -> str:
        in_sync = ground.all_in_sync()
        cluster.kill(victim)
        if not in_sync:
            return LeftOut("nothing is flipped: not all replicas are in sync")
        log_dir = cluster.nodes[victim].log_dir
        (log_dir / RECOVERY_POINT_FILE).unlink(missing_ok=True)
        return flip_bits(log_dir, ground.rng)

    def end() -> None:
        # Before the others do without it, it must not give up what it has.
        ground.wait_until_out_of_sync(victim)
        cluster.restart(victim)

    return Act([victim], "SIGKILL", begin, end)


def disk_full(ground: Ground) -> Act:
    """One node's disk takes nothing more until there is room again.

    A node may refuse what it can't write, or stop. What it has acknowledged it must have.
    """
    cluster, (victim,) = ground.cluster, ground.victims(1)

    def end() -> None:
        cluster.free_disk(victim)
        if cluster.nodes[victim].ended:
            cluster.restart(victim)

    return Act([victim], "its disk has no room", lambda: cluster.fill_disk(victim), end)
