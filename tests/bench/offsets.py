"""What a committed offset takes in memory, and how fast a coordinator loads its log.

    python -m tests.bench.offsets size map|dict GROUPS PARTITIONS
    python -m tests.bench.offsets rates map|dict
    python -m tests.bench.offsets load map|dict ENTRIES

Each runs in a process of its own. The first fills the coordinator's map, or a dict of objects as
one writes it without a thought for memory, and prints by how many bytes the process grew for each
entry: structures, names and what the allocator loses included. Entries come in no order, with names
of their own, as from a log. The second overwrites and reads entries one by one, and prints how many
a second. The third reads a log of so many entries, 100 to a batch, and prints seconds and bytes an
entry; what the dict of objects takes for ten million is ten times what it takes for one.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from kraftpy.core.coordination import Loaded
from kraftpy.core.groups import (
    CommittedOffset,
    GroupCodec,
    GroupConfig,
    GroupMachine,
    GroupMemory,
    OffsetRecord,
    decode_record,
    encode_record,
)
from kraftpy.core.groups.offsets import OffsetMap
from kraftpy.core.metadata import MetadataState
from kraftpy.protocol.records import RecordInput, build_batch, iter_records
from kraftpy.server.coordination.group_topics import ClusterTopics
from kraftpy.testing.process import BrokerError
from tests.bench.measure import Round, Say
from tests.processes import memory_bytes

RATE_SHAPE = (10_000, 100)
RATE_BLOCK = 10_000
SHAPES = [(1_000, 1_000), (100_000, 10), (1_000_000, 1)]
LOAD_ENTRIES = 10_000_000
# A dict of objects of so many takes 4 GB; it gets fewer, and the figure is for as many as above.
LOAD_DICT_ENTRIES = 1_000_000
LOAD_PARTITIONS = 100
RECORDS_PER_BATCH = 100

TOPICS = 100
NOW_MS = 1_700_000_000_000
# A prime: multiplied by it, the numbers below another one come in an order without pattern.
STRIDE = 1_000_003


def entry(groups: int, number: int) -> tuple[str, str, int, CommittedOffset]:
    """The fields of one record, of a group with a 13-letter name that reads one of the topics."""
    partition, group = divmod(number, groups)
    committed = CommittedOffset(number * 2_654_435_761 % 2**40, group % 50, "", NOW_MS + number, -1)
    return f"group-{group:07}", f"topic-{group % TOPICS}", partition, committed


def size(kind: str, groups: int, partitions: int) -> float:
    """Bytes that each of groups x partitions entries adds to this process."""
    count = groups * partitions
    gc.collect()
    before = memory_bytes([os.getpid()])
    offsets = OffsetMap()
    plain: dict[tuple[str, str, int], CommittedOffset] = {}
    for step in range(count):
        group_id, topic, partition, committed = entry(groups, step * STRIDE % count)
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
            key, value = encode_record(OffsetRecord(*entry(groups, partition * groups + group)))
            inputs.append((NOW_MS, key, value, []))
        yield bytes(build_batch(inputs))


def rates(kind: str) -> tuple[float, float]:
    """Entries a second that are overwritten, and that are read, of a million."""
    groups, count = RATE_SHAPE[0], RATE_SHAPE[0] * RATE_SHAPE[1]
    offsets = OffsetMap()
    plain: dict[tuple[str, str, int], CommittedOffset] = {}
    seconds = []
    for work in ("fill", "overwrite", "read"):
        spent = 0.0
        for start in range(0, count, RATE_BLOCK):
            entries = [
                entry(groups, step * STRIDE % count) for step in range(start, start + RATE_BLOCK)
            ]
            started_at = time.perf_counter()
            if work == "read" and kind == "map":
                for group_id, topic, partition, _ in entries:
                    offsets.get(group_id, topic, partition)
            elif work == "read":
                for group_id, topic, partition, _ in entries:
                    plain.get((group_id, topic, partition))
            elif kind == "map":
                for group_id, topic, partition, committed in entries:
                    offsets.put(group_id, topic, partition, committed)
            else:
                for group_id, topic, partition, committed in entries:
                    plain[group_id, topic, partition] = committed
            spent += time.perf_counter() - started_at
        seconds.append(spent)
    return count / seconds[1], count / seconds[2]


def _load_map(log: Iterator[bytes]) -> tuple[object, int, float]:
    """(what was filled, entries, seconds), by a coordinator."""
    machine = GroupMachine(GroupConfig(), ClusterTopics(MetadataState), GroupMemory(1 << 40))
    codec, loaded = GroupCodec(), Loaded()
    seconds = 0.0
    for batch in log:
        started_at = time.perf_counter()
        codec.replay(batch, machine, loaded)
        seconds += time.perf_counter() - started_at
    return machine, machine.offsets_count, seconds


def _load_dict(log: Iterator[bytes]) -> tuple[object, int, float]:
    """The same, record by record into a dict of objects."""
    plain: dict[tuple[str, str, int], CommittedOffset] = {}
    seconds = 0.0
    for batch in log:
        started_at = time.perf_counter()
        for each in iter_records(batch):
            decoded = decode_record(each.key, each.value)
            assert isinstance(decoded, OffsetRecord)
            assert decoded.committed is not None
            plain[decoded.group_id, decoded.topic, decoded.partition] = decoded.committed
        seconds += time.perf_counter() - started_at
    return plain, len(plain), seconds


def load(kind: str, entries: int) -> tuple[float, float]:
    """Seconds to read so many entries into a coordinator, and the bytes that each takes."""
    gc.collect()
    before = memory_bytes([os.getpid()])
    work = _load_map if kind == "map" else _load_dict
    _kept, count, seconds = work(batches(entries))
    if count != entries:
        raise BrokerError(f"{count} of {entries} entries were loaded")
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
    say("committed offsets in memory, one by one")
    for kind, what in (("map", ""), ("dict", ", dict of objects")):
        written, read = _in_a_child("rates", kind)
        result[f"committed offsets overwritten in memory{what}"] = written
        result[f"committed offsets read in memory{what}"] = read
    return result


def loading(say: Say) -> Round:
    say(f"loading {LOAD_ENTRIES:,} committed offsets")
    seconds, size_bytes = _in_a_child("load", "map", LOAD_ENTRIES)
    dict_seconds, dict_size_bytes = _in_a_child("load", "dict", LOAD_DICT_ENTRIES)
    return {
        f"load {LOAD_ENTRIES:,} committed offsets": seconds,
        f"load {LOAD_ENTRIES:,} committed offsets, dict of objects": (
            dict_seconds * LOAD_ENTRIES / LOAD_DICT_ENTRIES
        ),
        "committed offset, loaded": size_bytes,
        "committed offset, loaded, dict of objects": dict_size_bytes,
    }


def main(arguments: list[str]) -> list[float]:
    match arguments:
        case ["size", kind, groups, partitions]:
            return [size(kind, int(groups), int(partitions))]
        case ["rates", kind]:
            return list(rates(kind))
        case ["load", kind, entries]:
            return list(load(kind, int(entries)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
