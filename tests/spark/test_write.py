"""`kraftpy pipeline write`: every row of a lake arrives as it is, in order, and once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster
from kraftpy.client.partitioner import partition_of_key
from kraftpy.pipeline.alone import BusyError
from kraftpy.pipeline.bounds import Bound
from kraftpy.pipeline.compaction import compact
from kraftpy.pipeline.lake import DoesNotFitError, LakeError
from kraftpy.pipeline.ranges import OffsetRange
from kraftpy.pipeline.target import Target, TargetTopic
from kraftpy.pipeline.write import Wanted, _Link, _Work
from kraftpy.protocol.errors import KafkaError
from kraftpy.spark.brokers import Brokers
from kraftpy.spark.positions import OptionError
from kraftpy.spark.sink import deliver
from kraftpy.testing import Broker
from tests.spark.loading import Loading
from tests.spark.topics import START_MS, create_topic, delete_topic, fill, on_cluster
from tests.spark.writing import ALL, PART, Writing, first_copies, repeated

NewTopic = Callable[..., str]


@pytest.fixture
def writing(loading: Loading, new_topic: NewTopic) -> Writing:
    loading.fill(1000)
    loading.load()
    return Writing(loading, new_topic(2))


def test_rows_arrive_as_they_are_and_only_what_is_new_later(writing: Writing) -> None:
    (outcome,) = writing.write()
    assert (outcome.rows, outcome.version) == (1000, 2)
    assert outcome.parts > 2
    assert writing.written() == writing.wanted()
    assert writing.write() == []
    writing.loading.fill(500, first=1000)
    writing.loading.load()
    assert [outcome.rows for outcome in writing.write()] == [500]
    assert writing.written() == writing.wanted()
    change = writing.loading.lake().read(2)
    assert (change.kind, change.written, list(change.targets)) == ("write", 1000, [writing.target])
    with pytest.raises(LakeError, match="wrote rows to a topic"):
        writing.loading.loader().plan_rerun_of(outcome.run)


def test_keys_choose_partitions(writing: Writing, new_topic: NewTopic) -> None:
    writing.target = new_topic(3)
    writing.write(Wanted(by_key=True))
    expected: dict[int, list[Any]] = {}
    for own, key, *rest in writing.wanted():
        chosen = own if key is None else partition_of_key(bytes(key), 3)
        expected.setdefault(own, []).append((chosen, key, *rest))
    found = writing.written()
    times = [{row[3] for row in expected[own]} for own in (0, 1)]
    for own in (0, 1):  # what came from a partition is in order wherever it went
        ours = [row for row in found if row[3] in times[own]]
        assert ours == sorted(expected[own], key=lambda row: row[0])
    assert {row[0] for row in found} == {0, 1, 2}


def test_an_earlier_version_is_written(writing: Writing) -> None:
    before = writing.wanted()
    writing.loading.fill(10, first=1000)
    writing.loading.load()
    (outcome,) = writing.write(Wanted(version=1))
    assert outcome.reads == 1
    assert writing.written() == before
    with pytest.raises(LakeError, match="no version 9"):
        writing.write(Wanted(version=9))


def test_rows_that_a_rerun_replaced_are_in_their_order(writing: Writing) -> None:
    loader = writing.loading.loader()
    plan = loader.plan_rerun(Bound.read("60"), Bound.read("120"))
    assert plan is not None
    loader.run(plan)
    files = writing.loading.lake().latest().files.values()
    spans = sorted((f.first_offset, f.last_offset) for f in files if f.partition == 0)
    assert any(one[0] < other[0] < one[1] for one in spans for other in spans)
    writing.write()
    assert writing.written() == writing.wanted()


def test_some_topics_of_a_lake_are_written(writing: Writing, new_topic: NewTopic) -> None:
    loading = writing.loading
    other = Loading(loading.spark, loading.bootstrap, new_topic(2), loading.folder)
    other.fill(100, first=5000)
    other.load()
    with pytest.raises(OptionError, match="say which are written, with --topic"):
        writing.write()
    with pytest.raises(OptionError, match="topic weather isn't in the lake"):
        writing.write(Wanted(("weather",)))
    writing.write(Wanted((other.topic,)))
    wanted = Writing(other, writing.target).wanted()
    assert writing.written() == wanted
    writing.write(Wanted((other.topic, loading.topic)))
    both = sorted([*wanted, *writing.wanted()], key=lambda row: (row[0], row[3] < wanted[0][3]))
    assert writing.written() == both


def test_a_plan_keeps_its_files_and_its_target(writing: Writing, new_topic: NewTopic) -> None:
    lake = writing.loading.lake()
    plan = writing.writer().plan(ALL)
    assert plan is not None
    lake.freeze(plan)
    assert [one.run for one in writing.writer().preview(ALL)] == [plan.run]
    compact(lake, lambda: writing.loading.spark, 1 << 30, keep_ms=0)
    (outcome,) = writing.write()
    assert (outcome.run, outcome.finished_earlier_run) == (plan.run, True)
    assert writing.written() == writing.wanted()

    second = Writing(writing.loading, new_topic(2))
    plan = second.writer().plan(ALL)
    assert plan is not None
    lake.freeze(plan)
    bootstrap = writing.loading.bootstrap
    delete_topic(bootstrap, second.target)
    create_topic(bootstrap, second.target, 2)
    with pytest.raises(DoesNotFitError, match="deleted and created again; end the run with --ab"):
        second.write()
    assert [one.rows for one in second.write(abandon=True)] == [1000]
    assert second.written() == writing.wanted()


def test_one_writer_at_a_time(writing: Writing) -> None:
    runs = writing.writer().write(ALL)
    assert next(runs).rows == 1000
    with pytest.raises(BusyError, match="another process writes"):
        writing.write()
    assert list(runs) == []
    assert writing.write() == []


def test_targets_that_would_change_records_are_refused(
    writing: Writing, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    for target, options, message in (
        (new_topic(1), {}, r"has 1 partitions.*-p 2`.*--by-key"),
        (new_topic(2, message_timestamp_type="LogAppendTime"), {}, "CreateTime`"),
        ("nowhere", {}, "kraftpy topic create nowhere"),
        (writing.target, {"kafka.acks": "1"}, "kafka.acks has to be all"),
    ):
        writing.target = target
        with pytest.raises(OptionError, match=message):
            writing.writer(**options).plan(ALL)
    writing.target = new_topic(2, retention_ms=1000)
    assert writing.writer().plan(ALL) is not None
    assert "its brokers will delete them" in caplog.text


def test_brokers_without_topic_ids_have_several_targets(
    writing: Writing, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = Target.find

    def without_id(self: Target, brokers: Brokers) -> TargetTopic | None:
        found = describe(self, brokers)
        assert found is not None
        return replace(found, identity=replace(found.identity, topic_id="00" * 16))

    monkeypatch.setattr(Target, "find", without_id)
    writing.write()
    assert writing.write() == []
    writing.target = new_topic(2)
    assert [outcome.rows for outcome in writing.write()] == [1000]


def test_a_topic_is_not_written_to_itself(writing: Writing) -> None:
    writing.target = writing.loading.topic
    with pytest.raises(OptionError, match="come from this very topic"):
        writing.write()
    assert writing.loading.lake().unfinished() == []


def test_speculation_is_refused(writing: Writing) -> None:
    conf = {"spark.speculation": "true"}
    writing.loading.spark = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    with pytest.raises(OptionError, match="set it to false"):
        writing.write()
    assert writing.loading.lake().unfinished() == []


CHAIN = [_Link(0, OffsetRange("t", 0, 0, 9), ())]


def work(folder: Path, target: Target, by_key: int | None = None) -> _Work:
    """What tasks do of a run that hasn't ended."""
    (folder / "plan").touch()
    return _Work(folder, folder / "plan", folder / "notes", target.settings(), by_key)


def test_a_task_of_a_run_that_has_ended_sends_nothing(tmp_path: Path) -> None:
    task = work(tmp_path, Target("127.0.0.1:1", "t", {}))
    assert len(list(task._parts(CHAIN))) == 1
    (tmp_path / "plan").unlink()
    with pytest.raises(LakeError, match="the run has ended without this task"):
        list(task._parts(CHAIN))


def test_keys_of_either_width_choose_the_same(tmp_path: Path) -> None:
    task = work(tmp_path, Target("127.0.0.1:1", "t", {}), by_key=7)
    keys = [None if n == 3 else b"key %d" % n for n in range(50)]
    narrow, wide = (
        task._partitions(pa.record_batch({"key": pa.array(keys, kind)}), 0)
        for kind in (pa.binary(), pa.large_binary())
    )
    assert narrow == wide


def test_a_topic_that_was_deleted_is_not_made_again(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic()
    delete_topic(broker.bootstrap, topic)
    rows = pa.record_batch(
        {"value": [b"v"], "timestamp": pa.array([START_MS * 1000], pa.timestamp("us", "UTC"))}
    )
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        deliver(Target(broker.bootstrap, topic, {}).settings(), [rows])
    assert topic not in on_cluster(broker.bootstrap, topics_of)


async def topics_of(cluster: Cluster) -> list[str]:
    await cluster.refresh(None)
    return list(cluster.topics)


def test_a_record_that_is_refused_ends_the_run_and_the_order_stays(
    writing: Writing, new_topic: NewTopic
) -> None:
    loading = writing.loading
    row = {"value": bytes(3000), "partition": 0, "timestamp_ms": START_MS + 999_999}
    fill(loading.bootstrap, loading.topic, [row])
    loading.fill(100, first=1000)
    loading.load()
    writing.target = new_topic(2, max_message_bytes=2000)
    small = {"kafka.batch.size": "1000"}
    with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
        list(writing.writer(**small).write(ALL))
    sent = writing.written()
    assert [row for row in writing.wanted() if row[0] == 0][:500] == [
        row for row in sent if row[0] == 0
    ]
    on_cluster(
        loading.bootstrap,
        lambda cluster: Admin(cluster).alter_configs(
            writing.target, values={"max.message.bytes": "5000"}
        ),
    )
    writing.write()
    found = writing.written()
    assert first_copies(found) == writing.wanted()
    assert max(repeated(found).values()) <= PART


def test_the_command(writing: Writing) -> None:
    lake = str(writing.loading.folder / "lake")
    way = ("-b", writing.loading.bootstrap, "--master", "local[2]")

    def kraftpy(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kraftpy", "pipeline", "write", lake, *arguments, *way]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    planned = kraftpy(writing.target, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    name = writing.loading.topic
    assert planned.stdout.splitlines() == [
        f"would write {name}-0 [0, 500) of version 1",
        f"would write {name}-1 [0, 500) of version 1",
        "in 2 parts",
    ]
    assert writing.written() == []
    done = kraftpy(writing.target, "-o", "json", "--option", "kafka.compression.type=zstd")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["rows"], run["parts"], run["reads"], run["version"]) == (1000, 2, 1, 2)
    assert writing.written() == writing.wanted()
    nothing = kraftpy(writing.target)
    assert (nothing.returncode, nothing.stdout[:13]) == (0, "nothing to do")
    failed = kraftpy("nowhere")
    assert failed.returncode == 2
    assert "there is no topic nowhere" in failed.stderr
    assert "Traceback" not in failed.stderr
