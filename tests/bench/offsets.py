"""What a committed offset takes in memory, and how fast a coordinator loads its log.

    python -m tests.bench.offsets size map|dict GROUPS PARTITIONS
    python -m tests.bench.offsets load ENTRIES

Each runs in a process of its own. The first fills the coordinator's map, or a dict of objects as
one writes it without a thought for memory, and prints by how many bytes the process grew for each
entry: structures, names and what the allocator loses included. Entries come in no order, with names
of their own, as from a log. The second reads a log of so many entries, 100 to a batch, and prints
seconds and bytes an entry.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from kraftpy.core.groups import (
    CommittedOffset,
    GroupConfig,
    GroupMachine,
    OffsetRecord,
    encode_record,
)
from kraftpy.core.groups.loading import Loaded, load_batches
from kraftpy.core.groups.offsets import OffsetMap
from kraftpy.core.metadata import MetadataState
from kraftpy.protocol.records import RecordInput, build_batch
from kraftpy.server.group_topics import ClusterTopics
from tests.bench.measure import Round, Say
from tests.processes import BrokerError, memory_bytes

SHAPES = [(1_000, 1_000), (100_000, 10), (1_000_000, 1)]
LOAD_ENTRIES = 10_000_000
LOAD_PARTITIONS = 100
RECORDS_PER_BATCH = 100

TOPICS = 100
NOW_MS = 1_700_000_000_000
# A prime: multiplied by it, the numbers below another one come in an order without pattern.
STRIDE = 1_000_003


def record(groups: int, number: int) -> OffsetRecord:
    """One of the entries, of a group with a 13-letter name that reads one of the topics."""
    partition, group = divmod(number, groups)
    committed = CommittedOffset(number * 2_654_435_761 % 2**40, group % 50, "", NOW_MS + number, -1)
    return OffsetRecord(f"group-{group:07}", f"topic-{group % TOPICS}", partition, committed)


def size(kind: str, groups: int, partitions: int) -> float:
    """Bytes that each of groups x partitions entries adds to this process."""
    count = groups * partitions
    gc.collect()
    before = memory_bytes([os.getpid()])
    offsets = OffsetMap()
    plain: dict[tuple[str, str, int], CommittedOffset] = {}
    for step in range(count):
        group_id, topic, partition, committed = record(groups, step * STRIDE % count)
        assert committed is not None
        if kind == "map":
            offsets.put(group_id, topic, partition, committed)
        else:
            plain[group_id, topic, partition] = committed
    gc.collect()
    grown = memory_bytes([os.getpid()]) - before
    if len(offsets) + len(plain) != count:
        raise BrokerError(f"{len(offsets) + len(plain)} of {count} entries are there")
    return grown / count


def batches(entries: int) -> Iterator[bytes]:
    """A log in which each commit of a group is a batch."""
    groups = max(1, entries // LOAD_PARTITIONS)
    for start in range(0, entries, RECORDS_PER_BATCH):
        group = start // RECORDS_PER_BATCH * STRIDE % groups
        inputs: list[RecordInput] = []
        for partition in range(min(RECORDS_PER_BATCH, entries - start)):
            key, value = encode_record(record(groups, partition * groups + group))
            inputs.append((NOW_MS, key, value, []))
        yield bytes(build_batch(inputs))


def load(entries: int) -> tuple[float, float]:
    """Seconds to read so many entries into a coordinator, and the bytes that each takes."""
    gc.collect()
    before = memory_bytes([os.getpid()])
    machine = GroupMachine(GroupConfig(), ClusterTopics(MetadataState))
    loaded = Loaded()
    seconds = 0.0
    for batch in batches(entries):
        started_at = time.perf_counter()
        load_batches(machine, batch, loaded)
        seconds += time.perf_counter() - started_at
    if machine.offsets_count != entries:
        raise BrokerError(f"{machine.offsets_count} of {entries} entries were loaded")
    gc.collect()
    return seconds, (memory_bytes([os.getpid()]) - before) / entries


def _in_a_child(*arguments: object) -> list[float]:
    command = [sys.executable, "-m", "tests.bench.offsets", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BrokerError("the program that fills a map of offsets has failed")
    return list(json.loads(done.stdout))


def sizes(say: Say) -> Round:
    result = {}
    for groups, partitions in SHAPES:
        say(f"committed offsets of {groups:,} groups x {partitions:,}")
        for kind, what in (("map", ""), ("dict", ", dict of objects")):
            name = f"committed offset, {groups:,} groups x {partitions:,}{what}"
            (result[name],) = _in_a_child("size", kind, groups, partitions)
    return result


def loading(say: Say) -> Round:
    say(f"loading {LOAD_ENTRIES:,} committed offsets")
    seconds, size_bytes = _in_a_child("load", LOAD_ENTRIES)
    return {
        f"load {LOAD_ENTRIES:,} committed offsets": seconds,
        "committed offset, loaded": size_bytes,
    }


def main(arguments: list[str]) -> list[float]:
    match arguments:
        case ["size", kind, groups, partitions]:
            return [size(kind, int(groups), int(partitions))]
        case ["load", entries]:
            return list(load(int(entries)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
