"""`make bench ARGS=cooperative`: what it takes to share a partition, and what it brings.

    python -m tests.bench.cooperative range | record | load

prints by how many bytes a process grows for each range above a stable offset, the same of a record
in an index of keys, or the seconds of CPU that it takes to load a million claims; each runs in a
process of its own.

Members work on a record for five milliseconds, while there is more to do than they can. CPU is that
of all processes of one node, which is sent requests that were encoded before: commits of one
partition, plain or of one of eight slices, and fetches of slices, as many as members, which go
through a log side by side, each as far as it has a part of.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kraftpy.client.cluster import Cluster
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.producer import Producer
from kraftpy.core.coordination import Loaded
from kraftpy.core.filter_cache import FilterCache, FilterEntry
from kraftpy.core.groups import GroupConfig, GroupMachine, GroupMemory
from kraftpy.core.groups.individual.codec import ClaimsCodec
from kraftpy.core.groups.individual.coverage import Claim, Coverage
from kraftpy.core.groups.individual.records import ClaimRecord, ClaimState, encode_record
from kraftpy.core.metadata import MetadataState
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import (
    KEY_RANGES_TAG,
    SCANNED_OFFSET_TAG,
    SLICES_TAG,
    decode_int64,
    encode_ranges,
    encode_slices,
)
from kraftpy.protocol.key_index import key_index
from kraftpy.protocol.record_batch import RECORD_BATCH_OVERHEAD
from kraftpy.protocol.records import RecordInput, batch_data, build_batch, split_batches
from kraftpy.server.coordination.group_topics import ClusterTopics
from kraftpy.testing.process import BrokerError, LineProcess
from tests.bench.figures import Values
from tests.bench.measure import Round, Say
from tests.bench.wire import Wire, check, frames_of
from tests.processes import Broker, Kraftpy, cpu_seconds, memory_bytes, running

MEMBERS = (8, 32)
PROCESSES = 8
BACKLOG = 60_000
KEYS = 5_000
WINDOW_S = 4.0
SETTLE_S = 1.0
TIMEOUT_S = 60.0
POLL_S = 0.05

SIZES = {"100 B": 100, "1 KB": 1024}
SLICES = (2, 8, 64)
LOG_BYTES = 32 << 20
BATCH_BYTES = 128 << 10
FETCH_BYTES = 1 << 20
FETCH_VERSION = 12
PRODUCE_VERSION = 9

COMMITS = 4_000
COMMIT_VERSION = 8
CLAIMING = 8
CLAIMED = 100

COUNT = 1_000_000
CLAIMS_IN_A_BATCH = 1_000
NOW_MS = 1_700_000_000_000

PLAIN = "CPU of a plain commit"
CLAIM = "a member's claim against a plain commit, CPU"
RANGE = "memory of a range"
RECORD = "memory of a cached record"
LOAD = "load 1,000,000 claims"


def slices_of(count: int) -> list[tuple[int, int]]:
    """All hashes in so many slices."""
    bounds = [(1 << 63) * number // count for number in range(count + 1)]
    return [(bounds[number], bounds[number + 1] - 1) for number in range(count)]


def against_one(members: int) -> str:
    return f"{members} members on one partition, 5 ms a record, against one"


def fetched(size: str, slices: int) -> str:
    return f"range fetch, {size}, {slices} members, per broker core"


@contextlib.asynccontextmanager
async def shared_topic(cluster: Cluster) -> AsyncIterator[str]:
    """A topic of one partition that may be shared; deleted afterwards."""
    admin, name = GroupAdmin(cluster), f"bench-{uuid.uuid4().hex[:8]}"
    await admin.create_topic(
        name, partitions=1, replication_factor=1, configs={"accept.range.fetch": "true"}
    )
    try:
        yield name
    finally:
        await admin.delete_topic(name)


# -- members


async def members_rate(bootstrap: str, members: int) -> float:
    """Records a second that so many members process."""
    async with Cluster(bootstrap) as cluster, shared_topic(cluster) as topic:
        count = min(members, PROCESSES)
        command = [sys.executable, "-m", "tests.bench.members", bootstrap, topic, topic]
        processes = [
            LineProcess([*command, str(members // count)], None, new_session=False)
            for _ in range(count)
        ]
        try:
            await _shared_out(GroupAdmin(cluster), topic, members)
            async with Producer(cluster) as producer:
                for number in range(BACKLOG):
                    await producer.send(topic, bytes(100), key=b"%d" % (number % KEYS), partition=0)
            await asyncio.sleep(SETTLE_S)
            before = [_count(process) for process in processes]
            await asyncio.sleep(WINDOW_S)
            after = [_count(process) for process in processes]
        finally:
            for process in processes:
                process.kill()
    if sum(done for done, _ in after) >= BACKLOG:
        raise BrokerError("the members had nothing left to do")
    return sum(
        (done - done_before) / (at_ns - before_ns) * 1e9
        for (done_before, before_ns), (done, at_ns) in zip(before, after, strict=True)
    )


async def _shared_out(admin: GroupAdmin, group: str, members: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        with contextlib.suppress(Exception):
            (shares,) = (await admin.shares(group)).values()
            if len({share.owner.id for share in shares if share.owner is not None}) == members:
                return
        if time.monotonic() > deadline:
            raise BrokerError(f"{members} members have not shared a partition out")
        await asyncio.sleep(POLL_S)


def _count(process: LineProcess) -> tuple[int, int]:
    process.write_line("count")
    done, at_ns = process.read_line(TIMEOUT_S).split()
    return int(done), int(at_ns)


def members_against_one(node: Broker) -> Round:
    one = asyncio.run(members_rate(node.bootstrap, 1))
    return {
        against_one(members): asyncio.run(members_rate(node.bootstrap, members)) / one
        for members in MEMBERS
    }


# -- fetches of slices


def batch_of(size_bytes: int) -> bytes:
    """A plain batch of records of this size, each with one of many keys."""
    count = BATCH_BYTES // size_bytes
    inputs: list[RecordInput] = [
        (NOW_MS, b"%d" % (number * 7919 % KEYS), bytes(size_bytes), []) for number in range(count)
    ]
    return bytes(build_batch(inputs))


async def range_fetches(node: Broker, size_bytes: int) -> dict[int, float]:
    """MB of a log that a second of CPU looks through for all of so many members together."""
    found = {}
    async with Cluster(node.bootstrap) as cluster:
        for count in SLICES:
            async with shared_topic(cluster) as topic:
                with contextlib.closing(Wire(node.bootstrap)) as wire:
                    log_bytes = _write(wire, topic, batch_of(size_bytes))
                    before = cpu_seconds(node.pids())
                    _fetch_all(wire, topic, slices_of(count))
                    seconds = cpu_seconds(node.pids()) - before
            found[count] = log_bytes / seconds / 1e6
    return found


def _write(wire: Wire, topic: str, batch: bytes) -> int:
    kinds = messages.ProduceRequest
    data = [kinds.PartitionProduceData(0, memoryview(batch))]
    request = kinds(None, 1, 30_000, [kinds.TopicProduceData(name=topic, partition_data=data)])
    frames = frames_of(ApiKey.PRODUCE, PRODUCE_VERSION, [request]) * (LOG_BYTES // len(batch))
    for answer in wire.answers(ApiKey.PRODUCE, PRODUCE_VERSION, wire.send(frames)):
        check(answer.responses[0].partition_responses[0].error_code, "a batch")
    return len(batch) * len(frames)


def _fetch_all(wire: Wire, topic: str, slices: Sequence[tuple[int, int]]) -> None:
    """Each slice from the log's start to its end, in turn."""
    offsets = dict.fromkeys(slices, 0)
    end = 1
    while any(offset < end for offset in offsets.values()):
        for each in slices:
            if offsets[each] < end:
                answer = wire.ask(ApiKey.FETCH, FETCH_VERSION, _fetch(topic, each, offsets[each]))
                partition = answer.responses[0].partitions[0]
                check(partition.error_code, "a fetch")
                end = partition.high_watermark
                scanned = (partition._tags or {}).get(SCANNED_OFFSET_TAG)
                if scanned is None or decode_int64(scanned) <= offsets[each]:
                    raise BrokerError("a fetch below the end doesn't move")
                offsets[each] = decode_int64(scanned)


def _fetch(topic: str, hashes: tuple[int, int], offset: int) -> messages.FetchRequest:
    kinds = messages.FetchRequest
    partition = kinds.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
    )
    partition._tags = {KEY_RANGES_TAG: encode_ranges([hashes])}
    return kinds(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=FETCH_BYTES,
        topics=[kinds.FetchTopic(topic=topic, partitions=[partition])],
    )


# -- commits


async def commits(node: Broker) -> tuple[float, float]:
    """CPU of a plain commit and of a claim, in µs."""
    async with Cluster(node.bootstrap) as cluster, shared_topic(cluster) as topic:
        admin = GroupAdmin(cluster)
        # Finds the coordinator, and makes its topics.
        for group in ("plain", "claiming"):
            await admin.commit(f"{group}-{topic}", {(topic, 0): 0}, {(topic, 0): -1})
        with contextlib.closing(Wire(node.bootstrap)) as wire:
            _claim_once(wire, topic)
            plain = [_commit(f"plain-{topic}", topic, number) for number in range(COMMITS)]
            claims = list(_claims(topic))
            return _cpu_us(node, wire, plain), _cpu_us(node, wire, claims)


def _commit(
    group: str, topic: str, offset: int, tags: dict[int, bytes] | None = None
) -> messages.OffsetCommitRequest:
    kinds = messages.OffsetCommitRequest
    partition = kinds.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    partition._tags = tags
    topics = [kinds.OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    return kinds(group_id=group, topics=topics)


def _claims(topic: str) -> Iterator[messages.OffsetCommitRequest]:
    """Of eight members in turn; the stable offset follows."""
    slices = slices_of(CLAIMING)
    for number in range(COMMITS):
        step, member = divmod(number, CLAIMING)
        done = [(CLAIMED * step, CLAIMED * step + CLAIMED - 1)]
        tags = {SLICES_TAG: encode_slices([(*slices[member], done)])}
        yield _commit(f"claiming-{topic}", topic, -1, tags)


def _claim_once(wire: Wire, topic: str) -> None:
    """Until the log of claims is there."""
    deadline = time.monotonic() + TIMEOUT_S
    request = _commit(
        f"claiming-{topic}", topic, -1, {SLICES_TAG: encode_slices([(0, 0, [(0, 0)])])}
    )
    while True:
        (error,) = _errors(wire.ask(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, request))
        if not error:
            return
        if error != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS or time.monotonic() > deadline:
            check(error, "a claim")
        time.sleep(POLL_S)


def _errors(answer: Any) -> list[int]:
    return [each.error_code for topic in answer.topics for each in topic.partitions]


def _cpu_us(node: Broker, wire: Wire, requests: Sequence[object]) -> float:
    frames = frames_of(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, requests)
    before = cpu_seconds(node.pids())
    answers = wire.send(frames)
    seconds = cpu_seconds(node.pids()) - before
    for answer in wire.answers(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, answers):
        for error in _errors(answer):
            check(error, "a commit")
    return seconds / len(frames) * 1e6


# -- memory and loading


def memory_of_a_range(count: int) -> float:
    """Bytes that each of so many ranges adds to this process."""
    slices = slices_of(CLAIMING)
    gc.collect()
    before = memory_bytes([os.getpid()])
    coverage = Coverage()
    for number in range(count):
        first = 3 * (number // CLAIMING)
        coverage.add(Claim(*slices[number % CLAIMING], first, first + 1), 1)
    gc.collect()
    grown = memory_bytes([os.getpid()]) - before
    if coverage.count != count:
        raise BrokerError(f"{coverage.count} of {count} ranges are there")
    return grown / count


def memory_of_a_record(count: int) -> float:
    """The same of a record in the cache of fetches, its part of what a batch takes included."""
    batch = batch_of(SIZES["100 B"])
    ((position, header),) = split_batches(batch)
    data = batch_data(header, batch, position)
    batches = count // header.records_count
    gc.collect()
    before = memory_bytes([os.getpid()])
    cache = FilterCache(1 << 40)
    for number in range(batches):
        key = bytes(16), 0, number.to_bytes(RECORD_BATCH_OVERHEAD, "big")
        cache.put(key, FilterEntry(header, key_index(header, bytes(data))))
    gc.collect()
    grown = memory_bytes([os.getpid()]) - before
    if len(cache) != batches:
        raise BrokerError(f"{len(cache)} of {batches} batches are there")
    return grown / (batches * header.records_count)


def seconds_to_load(count: int) -> float:
    """Of a log with that many claims, into a coordinator."""
    codec, loaded = ClaimsCodec(), Loaded()
    machine = GroupMachine(GroupConfig(), ClusterTopics(MetadataState), GroupMemory(1 << 40))
    slices = slices_of(CLAIMING)
    state = ClaimState(bytes(16), 0, 1, NOW_MS)
    seconds = 0.0
    for start in range(0, count, CLAIMS_IN_A_BATCH):
        records = []
        for number in range(start, start + CLAIMS_IN_A_BATCH):
            first = 3 * (number // CLAIMING)
            its = state._replace(last=first + 1)
            records.append(ClaimRecord("group", "topic", 0, *slices[number % CLAIMING], first, its))
        batch = build_batch([(NOW_MS, *encode_record(each), []) for each in records])
        started_at = time.process_time()
        codec.replay(batch, machine, loaded)
        seconds += time.process_time() - started_at
    if machine.claims.ranges_count != count:
        raise BrokerError(f"{machine.claims.ranges_count} of {count} claims were loaded")
    return seconds


_IN_A_CHILD = {"range": memory_of_a_range, "record": memory_of_a_record, "load": seconds_to_load}


def in_a_child(what: str, count: int = COUNT) -> float:
    """One of these, of a process that has done nothing before."""
    command = [sys.executable, "-m", "tests.bench.cooperative", what, str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BrokerError(f"the program that measures {what!r} has failed")
    return float(done.stdout)


def one_round(node: Broker, say: Say) -> Round:
    say("commits")
    plain_us, claim_us = asyncio.run(commits(node))
    found: Round = {PLAIN: plain_us, CLAIM: claim_us / plain_us}
    for size, size_bytes in SIZES.items():
        say(f"fetches of slices, {size}")
        for count, rate in asyncio.run(range_fetches(node, size_bytes)).items():
            found[fetched(size, count)] = rate
    say("members")
    found |= members_against_one(node)
    say("memory and loading")
    return found | {
        RANGE: in_a_child("range"),
        RECORD: in_a_child("record"),
        LOAD: in_a_child("load"),
    }


def run(rounds: int, say: Say) -> Values:
    """All figures, in as many rounds."""
    values: Values = {}
    with (
        TemporaryDirectory(prefix="kraftpy-bench-") as folder,
        running(Kraftpy(Path(folder), group_initial_rebalance_delay_ms=0)) as node,
    ):
        asyncio.run(commits(node))  # The broker gets warm.
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for name, value in one_round(node, say).items():
                values.setdefault(name, []).append(value)
    return values


if __name__ == "__main__":
    print(_IN_A_CHILD[sys.argv[1]](int(sys.argv[2])))
