"""Share groups from outside, on whichever quorum: how fast, how soon acknowledged, how soon again.

* Kafka's ShareConsumerPerformance as it is, one run after the other in one JVM: members of a new
  group that accept what they read (implicit), on one partition with a log that is there.
* From an acknowledgement to its answer, of one record at a time, in raw requests: no client of
  either side is in between.
* Kafka's VerifiableShareConsumer, which tells of every acknowledgement that was answered, while a
  node is killed.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from kraftpy.core.leases.state_records import ShareKey
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import FindCoordinatorRequest
from kraftpy.testing.process import BrokerError, LineProcess
from tests.apache_kafka import TOOLS, fetch_jars, java
from tests.bench.transactions import JVM, Rated
from tests.conformance.tool_runner import ToolRunner
from tests.quorums import Quorum
from tests.server.shares import ACCEPT, Member, Said, begin, topic_id
from tests.server.wire import Wire
from tests.share_groups import begin_at_start

PERF_TEST = "kafka-share-consumer-perf-test"
VERIFIABLE = "verifiable-share-consumer"
WAIT_MS = 5_000
# The tool gives up then, however far it is; the JVM that it runs in is waited for a little longer.
RUN_MAX_MS = 55_000
# So many acknowledgements in a row say that deliveries flow again.
FLOWING = 20
FLOWS_WITHIN_S = 60.0


def new_group(bootstrap: str) -> str:
    """One that begins at the start of its topics."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    begin_at_start(bootstrap, name)
    return name


def perf_test(runner: ToolRunner, bootstrap: str, topic: str, records: int, members: int) -> Rated:
    """ShareConsumerPerformance, with a group of its own."""
    words = ["--bootstrap-server", bootstrap, "--topic", topic, "--group", new_group(bootstrap)]
    words += [
        "--num-records",
        str(records),
        "--threads",
        str(members),
        "--timeout",
        str(RUN_MAX_MS),
    ]
    ended = runner.run(PERF_TEST, *words)
    lines = [line.split(", ") for line in ended.out.splitlines() if ", " in line]
    told = dict(zip(*lines[-2:], strict=False)) if len(lines) > 1 else {}
    consumed, seconds = told.get("data.consumed.in.nMsg"), told.get("fetch.time.ms")
    if ended.code or consumed is None or seconds is None or int(consumed) < records:
        raise BrokerError(f"ShareConsumerPerformance: {ended.out[-1000:]}{ended.err[-1000:]}")
    return Rated(int(consumed), int(seconds) / 1000)


@contextlib.contextmanager
def acknowledging(quorum: Quorum, topic: str) -> Iterator[Callable[[float], list[float]]]:
    """Milliseconds from an acknowledgement to its answer; the topic's partition 0 has records."""
    host, _, port = quorum.addresses[quorum.leader_of(topic)].rpartition(":")
    with Wire(host, int(port)) as wire:
        partition = topic_id(wire, topic), 0
        group = f"bench-{uuid.uuid4().hex[:8]}"
        begin(wire, group, partition)
        member = Member(wire, group, str(uuid.uuid4()))

        def times_ms(seconds: float) -> list[float]:
            times: list[float] = []
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                got = member.fetch(partition, most=1, mode=1, wait_ms=WAIT_MS).get(partition)
                if got is None or not got.runs:
                    raise BrokerError("nothing is left to be leased")
                first, last, _ = got.runs[0]
                said: Said = {partition: [(first, last, [ACCEPT])]}
                began_at = time.perf_counter()
                errors = member.acknowledge(said)
                times.append((time.perf_counter() - began_at) * 1000)
                if errors[partition]:
                    raise BrokerError(f"not taken: {ErrorCode(errors[partition]).name}")
            return times

        yield times_ms


def coordinator_of(quorum: Quorum, group: str, topic: str) -> int:
    """The node that keeps the state of the group on the topic's partition 0."""
    host, _, port = quorum.addresses[quorum.running[0]].rpartition(":")
    with Wire(host, int(port)) as wire:
        key = ShareKey(group, topic_id(wire, topic), 0).coordinator_key
        request = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
        (found,) = wire.call(ApiKey.FIND_COORDINATOR, 6, request).coordinators
    if found.error_code:
        raise BrokerError(f"{key} has no coordinator: {ErrorCode(found.error_code).name}")
    return int(found.node_id)


class Acknowledged:
    """When acknowledgements of a VerifiableShareConsumer were answered; `with` ends it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.times: list[float] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        words = ["--bootstrap-server", bootstrap, "--topic", topic]
        self.group = new_group(bootstrap)
        words += ["--group-id", self.group, "--acknowledgement-mode", "sync"]
        self._process = LineProcess(
            java(fetch_jars(), TOOLS[VERIFIABLE], *words, jvm=JVM), self._errors
        )
        self._reading = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Acknowledged:
        self._reading.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()
        self._reading.join(FLOWS_WITHIN_S)
        self._errors.close()

    def _read(self) -> None:
        with contextlib.suppress(BrokerError, OSError, ValueError):
            while True:
                line = self._process.read_line(FLOWS_WITHIN_S)
                if b"offsets_acknowledged" in line and json.loads(line).get("success", True):
                    self.times.append(time.perf_counter())

    def wait_flowing(self, since: float) -> list[float]:
        """The times from then on, once there are enough of them within a second."""
        deadline = time.perf_counter() + FLOWS_WITHIN_S
        while True:
            found = [each for each in self.times if each > since]
            if len(found) > FLOWING and found[-1] - found[-FLOWING] < 1.0:
                return found
            if time.perf_counter() > deadline:
                self._errors.seek(0)
                raise BrokerError(f"deliveries don't flow: {self._errors.read()[-1000:]!r}")
            time.sleep(0.05)


def until_flowing(acknowledged: Sequence[float], killed_at: float) -> float:
    """Seconds from the kill to the end of the longest pause behind it."""
    times = [killed_at, *acknowledged]
    pauses = [(later - earlier, later) for earlier, later in pairwise(times)]
    return max(pauses)[1] - killed_at
