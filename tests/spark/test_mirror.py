"""`kraftpy pipeline mirror`: all that is in a topic arrives in one of another cluster, in order."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.client.admin import Admin
from kraftpy.pipeline.alone import BusyError
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.manifests import TopicIdentity
from kraftpy.pipeline.mirror import Cycle, Mirror
from kraftpy.pipeline.mirrored import CheckpointError, Names, Notes
from kraftpy.pipeline.target import Target
from kraftpy.protocol.errors import KafkaError
from kraftpy.spark.positions import OptionError
from kraftpy.testing import Broker
from tests.spark.outages import outage
from tests.spark.topics import (
    START_MS,
    create_topic,
    delete_topic,
    end_of,
    fill,
    numbered,
    on_cluster,
)
from tests.spark.writing import first_copies, records, repeated
from tests.waiting import wait_until

ROWS = 2000
BATCH = 400
TOPIC = "flights"


class Mirroring:
    """A topic on one cluster and its copy on another."""

    def __init__(self, spark: Any, source: str, target: str, folder: Path) -> None:
        self.spark = spark
        self.source = source
        self.target = target
        self.folder = folder
        self.options: dict[str, str] = {}
        self.to_options: dict[str, str] = {}
        self.to_topic = TOPIC

    def mirror(self) -> Mirror:
        door = Door(self.source, "kraftpy", self.options)
        target = Target(self.target, "", self.to_options)
        names = Names((TOPIC,), to_topic=self.to_topic)
        return Mirror(door, names, target, self.folder / "at", lambda: self.spark, BATCH)

    def copy(self) -> Cycle:
        """One cycle."""
        (cycle,) = self.mirror().cycles(every_s=None, stop=threading.Event())
        return cycle

    def copies(self) -> list[tuple[Any, ...]]:
        return records(self.spark, self.target, self.to_topic)

    def assert_all_there(self, *, most_again: int = 0) -> None:
        found = self.copies()
        assert first_copies(found) == records(self.spark, self.source, TOPIC)
        again = repeated(found).total()
        assert again <= most_again

    def arrived(self) -> int:
        """How many records of partition 1 are in the copy."""
        with contextlib.suppress(KafkaError):
            return end_of(self.target, self.to_topic, 1)
        return 0

    @contextlib.contextmanager
    def process(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """The command at work; it is gone at the end of the block."""
        command = self.command(*arguments)
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def command(self, *arguments: str) -> list[str]:
        return [
            *(sys.executable, "-m", "kraftpy", "pipeline", "mirror", TOPIC, "-b", self.source),
            *("--to-bootstrap", self.target, "--checkpoint", str(self.folder / "at")),
            *("--master", "local[2]", "--conf", "spark.driver.memory=1g", *arguments),
        ]


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Broker(dir=tmp_path_factory.mktemp("far")) as broker:
        yield broker.bootstrap


@pytest.fixture
def mirroring(spark: Any, broker: Broker, far: str, tmp_path: Path) -> Iterator[Mirroring]:
    yield from mirroring_of(Mirroring(spark, broker.bootstrap, far, tmp_path))


def mirroring_of(pair: Mirroring) -> Iterator[Mirroring]:
    create_topic(pair.source, TOPIC, 2, max_message_bytes=300_000, min_insync_replicas=1)
    try:
        fill(pair.source, TOPIC, numbered(ROWS, 2), compression="lz4")
        yield pair
    finally:
        for bootstrap in (pair.source, pair.target):
            with contextlib.suppress(Exception):
                delete_topic(bootstrap, TOPIC)


@pytest.fixture(params=["kraftpy to kraftpy", "kraftpy to Apache", "Apache to kraftpy"])
def pair(
    request: pytest.FixtureRequest, spark: Any, broker: Broker, tmp_path: Path
) -> Iterator[Mirroring]:
    """Both kinds of brokers on either side."""
    ends = {
        "kraftpy": broker.bootstrap,
        "Apache": None if "Apache" not in request.param else request.getfixturevalue("apache"),
    }
    source, target = request.param.split(" to ")
    if source == target:
        ends["far"], target = request.getfixturevalue("far"), "far"
    yield from mirroring_of(Mirroring(spark, str(ends[source]), str(ends[target]), tmp_path))


@pytest.mark.usefixtures("other_file_system")
def test_a_checkpoint_is_where_its_path_says(mirroring: Mirroring) -> None:
    (cycle,) = mirroring.mirror().cycles(every_s=None, stop=threading.Event())
    assert cycle.rows > 0
    assert (mirroring.folder / "at" / "spark" / "commits").is_dir()


def test_a_copy_is_made_and_follows(pair: Mirroring) -> None:
    (preview,) = pair.mirror().preview()
    assert (preview.creates, preview.partitions) == (True, 2)
    assert [one[1:] for one in preview.ranges] == [(0, 0, ROWS // 2), (1, 0, ROWS // 2)]
    cycle = pair.copy()
    assert (cycle.rows, cycle.batches) == (ROWS, ROWS // BATCH)
    pair.assert_all_there()
    configs = on_cluster(pair.target, lambda cluster: Admin(cluster).describe_configs(TOPIC))
    own = {each.name: each.value for each in configs if each.source == "topic"}
    assert own == {"retention.ms": "-1", "max.message.bytes": "300000"}

    on_cluster(pair.source, lambda cluster: Admin(cluster).create_partitions(TOPIC, 3))
    fill(pair.source, TOPIC, numbered(90, 3, first=ROWS), compression="zstd")
    (preview,) = pair.mirror().preview()
    assert (preview.creates, preview.adds_partitions) == (False, 1)
    assert [one[1:] for one in preview.ranges] == [
        (0, ROWS // 2, ROWS // 2 + 30), (1, ROWS // 2, ROWS // 2 + 30), (2, 0, 30)]  # fmt: skip
    assert pair.copy().rows == 90
    pair.assert_all_there()
    assert pair.copy().rows == 0
    assert pair.mirror().ends() == {
        (TOPIC, 0): ROWS // 2 + 30,
        (TOPIC, 1): ROWS // 2 + 30,
        (TOPIC, 2): 30,
    }


def until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Waits for the condition, or for the end of the process, which is a failure."""

    def look() -> bool:
        if process.poll() is not None:
            pytest.fail(f"the command has ended with {process.returncode}: {process.stderr.read()}")
        return condition()

    wait_until(look, "something is copied", timeout_s=250)


@pytest.mark.parametrize("after", [1, 450, 850])
def test_a_mirror_that_is_killed_goes_on(mirroring: Mirroring, after: int) -> None:
    with mirroring.process("--available-now", "--max-records", str(BATCH)) as process:
        until(process, lambda: mirroring.arrived() >= after)
        process.kill()
        assert process.wait(timeout=60) == -signal.SIGKILL
    mirroring.copy()
    mirroring.assert_all_there(most_again=BATCH)


def test_a_task_that_fails_is_done_again(mirroring: Mirroring) -> None:
    create_topic(mirroring.target, TOPIC, 2, max_message_bytes=2000)
    row = {"value": bytes(3000), "partition": 0, "timestamp_ms": START_MS + 999_999}
    fill(mirroring.source, TOPIC, [row, *numbered(100, 2, first=ROWS)])
    door = Door(mirroring.source)
    target = Target(mirroring.target, "", {"kafka.batch.size": "1000"})
    work = Mirror(
        door, Names((TOPIC,)), target, mirroring.folder / "at", lambda: mirroring.spark, BATCH
    )
    with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
        list(work.cycles(every_s=None, stop=threading.Event()))
    on_cluster(
        mirroring.target,
        lambda cluster: Admin(cluster).alter_configs(TOPIC, values={"max.message.bytes": "5000"}),
    )
    mirroring.copy()
    mirroring.assert_all_there(most_again=BATCH)


def test_it_goes_on_until_it_is_told_to_stop(mirroring: Mirroring) -> None:
    with mirroring.process("--every", "0.5", "-o", "json") as process:
        until(process, lambda: mirroring.arrived() >= ROWS // 2)
        with pytest.raises(BusyError, match="another process mirrors"):
            mirroring.copy()
        fill(mirroring.source, TOPIC, numbered(100, 2, first=ROWS))
        until(process, lambda: mirroring.arrived() >= ROWS // 2 + 50)
        process.terminate()
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
    said = json.loads(out)
    ends = {"0": ROWS // 2 + 50, "1": ROWS // 2 + 50}
    assert (said["rows"], said["ends"]) == (ROWS + 100, {TOPIC: ends})
    mirroring.assert_all_there()


@pytest.mark.parametrize("away", ["source", "target"])
def test_brokers_that_are_away_between_two_cycles_are_waited_for(
    spark: Any, tmp_path: Path, away: str
) -> None:
    with Broker(dir=tmp_path / "near") as near, Broker(dir=tmp_path / "far") as far:
        create_topic(near.bootstrap, TOPIC, 2)
        mirroring = Mirroring(spark, near.bootstrap, far.bootstrap, tmp_path)

        def write() -> None:
            fill(near.bootstrap, TOPIC, numbered(10, 2))

        write()
        cycles = mirroring.mirror().cycles(every_s=0.1, stop=threading.Event())
        assert next(cycles).rows == 10
        with outage(near if away == "source" else far, write):
            next(cycles)
        while mirroring.arrived() < 10:
            next(cycles)
        assert mirroring.copies() == records(spark, near.bootstrap, TOPIC)


def test_what_would_go_wrong_is_refused(mirroring: Mirroring) -> None:
    mirroring.options = {"minPartitions": "4"}
    with pytest.raises(OptionError, match="mixes up its records"):
        mirroring.mirror()
    mirroring.options = {}
    mirroring.copy()
    mirroring.to_topic = "other"
    with pytest.raises(CheckpointError, match="is of other topics than flights and other"):
        mirroring.copy()
    mirroring.to_topic = TOPIC
    delete_topic(mirroring.target, TOPIC)
    with pytest.raises(CheckpointError, match="deleted and created again"):
        mirroring.copy()
    mirroring.folder /= "new"
    mirroring.copy()
    mirroring.assert_all_there()
    mirroring.folder /= "newer"
    mirroring.target = mirroring.source
    with pytest.raises(OptionError, match="would be copied to itself"):
        mirroring.copy()
    mirroring.to_topic = "stamped"
    create_topic(mirroring.target, "stamped", 2, message_timestamp_type="LogAppendTime")
    with pytest.raises(OptionError, match=r"message\.timestamp\.type=CreateTime"):
        mirroring.copy()


def test_a_target_that_is_made_anew_meanwhile_ends_it(
    mirroring: Mirroring, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(self: Mirror, partitions: object) -> dict[int, int]:
        delete_topic(mirroring.target, TOPIC)
        create_topic(mirroring.target, TOPIC, 2)
        return {0: 1}

    monkeypatch.setattr(Mirror, "_copy", copy)
    with pytest.raises(CheckpointError, match="deleted and created again"):
        mirroring.copy()


def test_a_target_that_deletes_old_records_is_warned_of(
    mirroring: Mirroring, caplog: pytest.LogCaptureFixture
) -> None:
    mirroring.to_topic = "aged"
    create_topic(mirroring.target, "aged", 2, retention_ms=1 << 50)
    mirroring.mirror().preview()
    assert caplog.text == ""
    work = mirroring.mirror()
    hour = {"retention.ms": "3600000"}
    on_cluster(mirroring.target, lambda cluster: Admin(cluster).alter_configs("aged", values=hour))
    work.preview()
    work.preview()
    assert caplog.text.count("its brokers will delete them") == 1


def test_topics_of_brokers_without_ids_are_told_apart_by_name(tmp_path: Path) -> None:
    identity = TopicIdentity("cluster", "00" * 16)
    for name in (TOPIC, "other"):
        with pytest.raises(OptionError) if name == TOPIC else contextlib.nullcontext():
            Notes(tmp_path).check(TOPIC, identity, name, identity)


def test_the_command_says_what_it_would_do(mirroring: Mirroring) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = mirroring.command(*arguments)
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    planned = run("--available-now", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.splitlines() == [
        "would make flights with 2 partitions",
        "would copy flights-0 [0, 1000)",
        "would copy flights-1 [0, 1000)",
    ]
    assert not (mirroring.folder / "at").exists()
    for arguments, code, words in (
        ((), 2, "say either --available-now or --every"),
        (("--available-now", "--to-option", "kafka.acks=1"), 2, "kafka.acks has to be all"),
        (("--available-now", "-b", "127.0.0.1:1"), 3, "127.0.0.1:1"),
    ):
        failed = run(*arguments)
        assert failed.returncode == code, failed.stderr
        assert words in failed.stderr
        assert "Traceback" not in failed.stderr
