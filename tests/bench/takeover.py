"""`make bench ARGS=takeover`: the coordinator of ten million committed offsets is killed.

`--count N` is for another number; ten million take some ten minutes and 8 GB of memory. Three nodes
whose followers read the offsets along (`offsets.warm.replicas`), then three whose followers don't.
In each:

* The offsets are committed by OffsetCommit, `PARTITIONS` to a request and a group to each request,
  over several connections with requests under way. All groups are in one partition of
  `__consumer_offsets`, whose leader doesn't lead the metadata quorum.
* Once all followers are in sync, and have read it all if they read along, that node is killed with
  SIGKILL. Both others are asked for the offsets of a group until one has answered them right. The
  time begins with the first signal, so it has the end of the processes and the election in it.
* What of that the new coordinator loaded is what its event says, `coordinator-loaded`.
* Memory is the proportional set size of a node with all its processes, just before it is killed.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count as counting
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.core.coordination import partition_for
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing.process import BrokerError
from tests.bench import figures
from tests.bench.measure import Say
from tests.bench.wire import Wire, check, frames_of
from tests.endpoints import metric
from tests.processes import memory_bytes
from tests.quorums import KraftpyQuorum
from tests.waiting import wait_until

COUNT = 10_000_000
PARTITIONS = 1_000
TOPIC = "read"
OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 12
CONNECTIONS = 4
GROUPS_TOGETHER = 100
TIMEOUT_S = 300.0
POLL_S = 0.2
COMMIT, COMMIT_VERSION = ApiKey.OFFSET_COMMIT, 8
FETCH, FETCH_VERSION = ApiKey.OFFSET_FETCH, 8
_NAME = "group-{:09}"
_LOADED = re.compile(r" coordinator-loaded partition=(\d+) .*?seconds=(\S+) records=(\d+) ")


class Taken(NamedTuple):
    """What one takeover took, and what the nodes had in memory before."""

    fill_s: float
    behind_s: float
    """From the last commit until the followers had read it, too."""
    idle_mib: float
    leader_mib: float
    follower_mib: float
    answered_s: float
    loading_s: float
    records: int


class _Takeover:
    def __init__(self, quorum: KraftpyQuorum, groups: int, is_warm: bool, say: Say) -> None:
        self._quorum = quorum
        self._groups = groups
        self._is_warm = is_warm
        self._say = say

    def run(self) -> Taken:
        quorum = self._quorum
        quorum.start()
        self._prepare()
        idle_mib = memory_bytes(quorum.pids()) / len(quorum.running) / 2**20
        self._say(f"{self._groups:,} groups commit {PARTITIONS} offsets each")
        began_s = time.monotonic()
        self._fill()
        filled_s = time.monotonic()
        quorum.wait_in_sync(TIMEOUT_S)
        if self._is_warm:
            wait_until(self._all_read, "the followers have read along", TIMEOUT_S)
        behind_s = time.monotonic() - filled_s
        leader = quorum.leader_of(OFFSETS_TOPIC, self._index)
        if leader == quorum.controller():
            self._say("the node that is killed has come to lead the metadata quorum, too")
        leader_mib, *follower_mib = (
            memory_bytes(quorum.pids(node)) / 2**20 for node in (leader, *self._others(leader))
        )
        self._say(f"node {leader} is killed")
        successor, answered_s = self._kill(leader)
        loading_s, records = self._loaded(successor)
        return Taken(
            filled_s - began_s,
            behind_s,
            idle_mib,
            leader_mib,
            max(follower_mib),
            answered_s,
            loading_s,
            records,
        )

    def _others(self, node: int) -> list[int]:
        return [each for each in self._quorum.running if each != node]

    def _prepare(self) -> None:
        quorum = self._quorum
        controller = quorum.controller()
        # Where nobody is killed: no other partition is to need a leader then.
        topic = NewTopic(TOPIC, PARTITIONS, replica_assignment=[[controller]] * PARTITIONS)
        admin = AdminClient({"bootstrap.servers": quorum.bootstrap, "log_level": 0})
        admin.create_topics([topic])[TOPIC].result(TIMEOUT_S)
        wire = Wire(quorum.addresses[1])
        find = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[_NAME.format(0)])
        wait_until(
            lambda: not wire.ask(ApiKey.FIND_COORDINATOR, 4, find).coordinators[0].error_code,
            "there is a coordinator",
            TIMEOUT_S,
        )
        wire.close()
        quorum.wait_in_sync()
        self._index = next(
            index
            for (topic, index), found in sorted(quorum.partitions().items())
            if topic == OFFSETS_TOPIC and found.leader != controller
        )
        names = map(_NAME.format, counting())
        kept = (name for name in names if partition_for(name, OFFSETS_PARTITIONS) == self._index)
        self._names = list(islice(kept, self._groups))

    def _fill(self) -> None:
        address = self._quorum.addresses[self._quorum.leader_of(OFFSETS_TOPIC, self._index)]
        shares = [self._names[number::CONNECTIONS] for number in range(CONNECTIONS)]
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            list(threads.map(_commit_all, [address] * CONNECTIONS, shares))

    def _all_read(self) -> bool:
        time.sleep(POLL_S)  # a scrape is work for those that are waited for
        leader = self._quorum.leader_of(OFFSETS_TOPIC, self._index)
        return all(
            metric(self._quorum.configs[node], "kraftpy_followed_committed_offsets")
            == len(self._names) * PARTITIONS
            for node in self._others(leader)
        )

    def _kill(self, leader: int) -> tuple[int, float]:
        """The node that took over, and the seconds until it had answered."""
        request = _fetch(self._names[len(self._names) // 2])
        wires = [Wire(self._quorum.addresses[node]) for node in self._others(leader)]
        began_s = time.monotonic()
        self._quorum.kill(leader)
        # Whoever isn't the coordinator passes it on to the new one.
        with ThreadPoolExecutor(len(wires)) as threads:
            answered_s = min(threads.map(_ask_until_right, wires, [request] * 2)) - began_s
        for wire in wires:
            wire.close()

        def successor() -> int:
            return self._quorum.leader_of(OFFSETS_TOPIC, self._index)

        wait_until(lambda: successor() not in (leader, -1), "another node leads", TIMEOUT_S)
        return successor(), answered_s

    def _loaded(self, node: int) -> tuple[float, int]:
        """The seconds and the records of a load, as the node says it."""
        log = self._quorum.folder / f"node{node}.log"

        def events() -> Iterator[re.Match[str]]:
            return (
                found
                for found in _LOADED.finditer(log.read_text(errors="replace"))
                if int(found[1]) == self._index
            )

        wait_until(lambda: any(events()), f"node {node} says that it has loaded", TIMEOUT_S)
        *_, last = events()
        return float(last[2]), int(last[3])


def _commit_all(address: str, names: Sequence[str]) -> None:
    """Commits for each of these groups; the answers are all alike, so one of them is looked at."""
    wire = Wire(address)
    template = _NAME.format(0)
    (frame,) = frames_of(COMMIT, COMMIT_VERSION, [_commit(template)])
    for start in range(0, len(names), GROUPS_TOGETHER):
        some = names[start : start + GROUPS_TOGETHER]
        frames = [frame.replace(template.encode(), name.encode()) for name in some]
        for answer in wire.answers(COMMIT, COMMIT_VERSION, list(set(wire.send(frames)))):
            for partition in answer.topics[0].partitions:
                check(partition.error_code, "a commit")
    wire.close()


def _commit(name: str) -> messages.OffsetCommitRequest:
    kind = messages.OffsetCommitRequest
    partitions = [
        kind.OffsetCommitRequestPartition(number, _offset(number), committed_metadata="")
        for number in range(PARTITIONS)
    ]
    return kind(name, -1, topics=[kind.OffsetCommitRequestTopic(TOPIC, partitions=partitions)])


def _fetch(name: str) -> messages.OffsetFetchRequest:
    kind = messages.OffsetFetchRequest
    topics = [kind.OffsetFetchRequestTopics(TOPIC, partition_indexes=list(range(PARTITIONS)))]
    return kind(groups=[kind.OffsetFetchRequestGroup(name, topics=topics)])


def _ask_until_right(wire: Wire, request: messages.OffsetFetchRequest) -> float:
    """When it was answered right, by the clock of all."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not _is_right(wire.ask(FETCH, FETCH_VERSION, request)):
        if time.monotonic() > deadline_s:
            raise BrokerError("nobody took over")
    return time.monotonic()


def _is_right(answer: messages.OffsetFetchResponse) -> bool:
    (group,) = answer.groups
    if group.error_code:
        return False
    found = {each.partition_index: each for topic in group.topics for each in topic.partitions}
    for number in range(PARTITIONS):
        each = found[number]
        if each.error_code or each.committed_offset != _offset(number):
            what = f"{each.committed_offset} ({ErrorCode(each.error_code).name})"
            raise BrokerError(f"partition {number} of {group.group_id} is answered with {what}")
    return True


def _offset(partition: int) -> int:
    return 1_000_000_007 * (partition + 1)


def _taken(count: int, is_warm: bool, say: Say) -> Taken:
    settings = {
        "offsets_warm_replicas": str(is_warm).lower(),
        "offsets_topic_num_partitions": OFFSETS_PARTITIONS,
        # Who leads at the beginning does so when it's killed.
        "auto_leader_rebalance_enable": "false",
    }
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        quorum = KraftpyQuorum(Path(folder), **settings)
        try:
            return _Takeover(quorum, max(1, count // PARTITIONS), is_warm, say).run()
        finally:
            quorum.stop()


def run(count: int, say: Say) -> str:
    """The table."""
    columns = []
    for is_warm in (True, False):
        say(f"offsets.warm.replicas={str(is_warm).lower()}")
        columns.append(_taken(count, is_warm, say))
    table = [
        [name, *cells, unit]
        for (name, unit), *cells in zip(_ROWS, *map(_cells, columns), strict=True)
    ]
    return figures.layout([f"{count:,} offsets", "read along", "not read along", ""], table)


_ROWS = (
    ("killed to the first right answer", "s"),
    ("of that, loading", "s"),
    ("records read for it", ""),
    ("leader's node, PSS", "MiB"),
    ("larger of the followers' nodes, PSS", "MiB"),
    ("a node before the commits, PSS", "MiB"),
    ("all committed", "s"),
    ("from then on, followers in step", "s"),
)


def _cells(taken: Taken) -> list[str]:
    """Those of one column, a row each."""
    return [
        figures.number(taken.answered_s),
        figures.number(taken.loading_s),
        f"{taken.records:,}",
        figures.number(taken.leader_mib),
        figures.number(taken.follower_mib),
        figures.number(taken.idle_mib),
        figures.number(taken.fill_s),
        figures.number(taken.behind_s),
    ]
