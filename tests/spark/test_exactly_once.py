"""Writing exactly once where nothing is killed: repeats, time that is over, what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
from pyspark.sql.types import StructType

from kraftpy.client.cluster import Cluster
from kraftpy.client.transaction_admin import TransactionAdmin
from kraftpy.spark.positions import OptionError
from kraftpy.spark.settings import write_settings
from kraftpy.spark.sink import StreamWriter
from kraftpy.testing import Broker
from tests.spark.test_exactly_once_killed import committed
from tests.spark.topics import end_of, fill, on_cluster

NewTopic = Callable[..., str]


def copy(frame: Any, bootstrap: str, topic: str, job: str = "job", **more: str) -> None:
    writer = frame.write.format("kraftpy").option("kafka.bootstrap.servers", bootstrap)
    writer = writer.option("topic", topic).option("exactlyOnce", "true").option("jobId", job)
    writer.options(**{k.replace("__", "."): v for k, v in more.items()}).mode("append").save()


def rows(spark: Any, count: int, tasks: int = 3) -> Any:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) as value")


def numbers(bootstrap: str, topic: str) -> list[int]:
    return sorted(int(value) for _, _, value in committed(bootstrap, topic))


def test_a_job_that_is_repeated_writes_nothing_again(
    spark: Any, broker: Broker, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    for tasks in (1, 3):  # of the second job the last tasks have no rows
        copy(rows(spark, tasks, 3), broker.bootstrap, topic, f"{topic}-{tasks}")
    assert numbers(broker.bootstrap, topic) == [0, 0, 1, 2]
    ends = [end_of(broker.bootstrap, topic, partition) for partition in (0, 1)]
    copy(rows(spark, 3, 3), broker.bootstrap, topic, f"{topic}-3")
    assert [end_of(broker.bootstrap, topic, partition) for partition in (0, 1)] == ends
    with pytest.raises(Exception, match="has 2 rows to write, and what was written under this"):
        copy(rows(spark, 6, 3), broker.bootstrap, topic, f"{topic}-3")
    assert numbers(broker.bootstrap, topic) == [0, 0, 1, 2]


def test_a_job_that_fails_leaves_nothing(spark: Any, broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    broken = "if(id = 5, string(raise_error('made by the test')), cast(id as string)) as value"
    with pytest.raises(Exception, match="made by the test"):
        copy(spark.range(0, 6, 1, 2).selectExpr(broken), broker.bootstrap, topic, topic)
    copy(rows(spark, 6, 2), broker.bootstrap, topic, topic)
    assert numbers(broker.bootstrap, topic) == list(range(6))


class SlowWriter(StreamWriter):
    """Commits the first batch when the coordinator has aborted a transaction of it."""

    folder: Path

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        if not (self.folder / "waited").exists():
            name = messages[0].transaction.transactional_id
            deadline = time.monotonic() + 60
            while _state(self.settings.client.bootstrap, name) != "CompleteAbort":
                assert time.monotonic() < deadline
                time.sleep(0.2)
            (self.folder / "waited").touch()
        super().commit(messages, batchId)


def _state(bootstrap: str, transactional_id: str) -> str:
    async def ask(cluster: Cluster) -> str:
        return (await TransactionAdmin(cluster).describe_transaction(transactional_id)).state

    return str(on_cluster(bootstrap, ask))


class SlowSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "slow-sink"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options = dict(self.options)
        folder = Path(options.pop("folder"))
        writer = SlowWriter(write_settings(options))
        writer.folder = folder
        return writer


def test_a_batch_that_takes_too_long_fails_and_is_repeated(
    spark: Any, broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target = new_topic(2), new_topic(2)
    fill(broker.bootstrap, source, [{"value": b"%d" % n, "partition": n % 2} for n in range(50)])
    spark.dataSource.register(SlowSink)

    def run(timeout_ms: int) -> None:
        (
            spark.readStream.format("kraftpy")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .select("value")
            .writeStream.format("slow-sink")
            .queryName("copies")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", target)
            .option("exactlyOnce", "true")
            .option("kafka.transaction.timeout.ms", str(timeout_ms))
            .option("folder", str(tmp_path))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    with pytest.raises(Exception, match=r"more than kafka.transaction.timeout.ms \(1000\)"):
        run(1000)
    run(60_000)
    assert numbers(broker.bootstrap, target) == list(range(50))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka__acks": "1"}, "exactlyOnce needs kafka.acks=all"),
        ({"kafka__transaction__timeout__ms": "900001"}, "more than transaction.max.timeout.ms"),
    ],
)
def test_errors_say_what_to_do(
    spark: Any, broker: Broker, new_topic: NewTopic, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        copy(rows(spark, 3), broker.bootstrap, new_topic(1), "refused", **options)


def test_a_job_without_a_name_is_refused(spark: Any, broker: Broker, new_topic: NewTopic) -> None:
    writer = rows(spark, 3).write.format("kraftpy").option("exactlyOnce", "true")
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
    with pytest.raises(Exception, match="exactlyOnce needs the option jobId"):
        writer.option("topic", new_topic(1)).mode("append").save()


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """This process is a task; its local properties."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)  # and none is left behind
    context = TaskContext()
    properties: dict[str, str] = {}
    monkeypatch.setattr(context, "_localProperties", properties)
    monkeypatch.setattr(context, "_partitionId", 0)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    return properties


def test_a_task_that_does_not_know_its_batch_writes_nothing(
    in_task: dict[str, str], broker: Broker, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    said = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "exactlyOnce": "true"}
    writer = StreamWriter(write_settings(said))
    with pytest.raises(OptionError, match=r"the property sql.streaming.queryId of"):
        writer.write(iter([]))
    in_task["sql.streaming.queryId"] = topic
    with pytest.raises(OptionError, match=r"the property streaming.sql.batchId of"):
        writer.write(iter([]))
    in_task["streaming.sql.batchId"] = "7"
    in_task["spark.speculation"] = "true"
    with pytest.raises(OptionError, match=r"spark\.speculation has tasks run twice"):
        writer.write(iter([]))
    in_task["spark.speculation"] = "false"
    written = writer.write(iter([]))
    writer.commit([written], 7)
    in_task["streaming.sql.batchId"] = "6"
    with pytest.raises(RuntimeError, match="has written batch 7, and batch 6 comes now"):
        writer.write(iter([]))
