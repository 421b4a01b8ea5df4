"""Transactions of a real coordinator, Apache Kafka's: what was aborted is left out.

Tables and lakes have what was committed through both doors, ours and Spark's own connector.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kraftpy.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from kraftpy.pipeline.bounds import Bound
from kraftpy.pipeline.load import Limits
from kraftpy.spark.brokers import Brokers
from kraftpy.spark.decoder import Slice
from kraftpy.spark.planning import by_keys
from kraftpy.spark.settings import ClientSettings
from tests.spark.jars import connector_jars
from tests.spark.loading import Loading
from tests.spark.topics import create_topic
from tests.waiting import wait_until


def producer(bootstrap: str, name: str) -> Any:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0})
    made.init_transactions(60)
    return made


def values(settings: ClientSettings, slices: int = 1) -> list[bytes]:
    """In the order of offsets, read in so many slices."""
    with Brokers(settings) as brokers:
        end = brokers.latest([("ledger", 0)])["ledger", 0]
        rows = [
            row
            for wanted in by_keys([Slice("ledger", 0, 0, end)], slices)
            for part in brokers.read(wanted, ("value", "offset"))
            for row in part.to_pylist()
        ]
        return [row["value"] for row in sorted(rows, key=lambda row: row["offset"])]


def end(bootstrap: str, topic: str, isolation: int) -> int:
    with Brokers(ClientSettings(bootstrap, isolation=isolation)) as brokers:
        return brokers.latest([(topic, 0)])[topic, 0]


class Ledger:
    """A topic of one partition that two producers write to, in transactions."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        create_topic(bootstrap, topic, 1)
        self.bootstrap = bootstrap
        self.topic = topic
        self.first = producer(bootstrap, f"{topic} first")
        self.second = producer(bootstrap, f"{topic} second")
        self.committed: list[bytes] = []
        self.everything: list[bytes] = []

    def write(self, who: Any, text: str, *, aborted: bool) -> None:
        who.produce(self.topic, text.encode(), partition=0)
        who.flush(30)
        self.everything.append(text.encode())
        if not aborted:
            self.committed.append(text.encode())

    def fill(self) -> None:
        """Two transactions at once, whose records alternate, again and again; some are aborted."""
        for number in range(10):
            aborts = number % 3 == 1, number % 3 == 2
            self.first.begin_transaction()
            self.second.begin_transaction()
            for each in range(3):
                self.write(self.first, f"first {number} {each}", aborted=aborts[0])
                self.write(self.second, f"second {number} {each}", aborted=aborts[1])
            for who, abort in ((self.second, aborts[1]), (self.first, aborts[0])):
                (who.abort_transaction if abort else who.commit_transaction)(30)
        self.wait_for_markers()

    def wait_for_markers(self) -> None:
        """A coordinator says that a transaction has ended before its partition has heard of it."""
        wait_until(
            lambda: (
                end(self.bootstrap, self.topic, READ_COMMITTED)
                == end(self.bootstrap, self.topic, READ_UNCOMMITTED)
            ),
            "all markers are there",
        )

    def leave_open(self) -> None:
        """Begins a transaction that has records and no end; it is the first producer's."""
        self.first.begin_transaction()
        for text in ("open", "open too"):
            self.write(self.first, text, aborted=True)

    def end_open(self) -> None:
        """Commits it."""
        self.first.commit_transaction(30)
        self.committed += [b"open", b"open too"]
        self.wait_for_markers()


def test_only_what_was_committed_is_read(apache: str) -> None:
    ledger = Ledger(apache, "ledger")
    ledger.fill()
    settings = ClientSettings(apache, isolation=READ_COMMITTED, partition_max_bytes=700)
    assert values(ClientSettings(apache)) == ledger.everything
    assert values(settings) == ledger.committed
    # Apache Kafka sends everything to whoever asks for a slice.
    assert values(settings, slices=3) == ledger.committed
    # An open transaction holds the end back for who reads what is committed.
    ledger.leave_open()
    assert values(settings) == ledger.committed
    assert values(ClientSettings(apache)) == ledger.everything
    ledger.end_open()
    assert values(settings) == ledger.committed


def test_both_doors_give_what_was_committed(spark: Any, apache: str, tmp_path: Path) -> None:
    ledger = Ledger(apache, "both")
    ledger.fill()
    loading = Loading(spark, apache, "both", tmp_path)
    # Tasks begin and end in the middle of transactions.
    tasks = Limits(max_records_per_task=7)

    def assert_committed() -> None:
        for door in ("kraftpy", "kafka"):
            for isolation, wanted in (
                ("read_committed", ledger.committed),
                ("read_uncommitted", ledger.everything),
            ):
                reader = spark.read.format(door).option("kafka.bootstrap.servers", apache)
                reader = reader.option("kafka.isolation.level", isolation)
                frame = reader.option("subscribe", "both").load().orderBy("offset")
                assert [bytes(row.value) for row in frame.collect()] == wanted, (door, isolation)
            loader = loading.loader(door, door, tasks)
            plan = loader.plan_load(Bound("lake"), Bound("latest"))
            assert plan is not None
            loader.run(plan)
            assert [row[3] for row in loading.rows(door)] == ledger.committed, door
            assert loader.plan_load(Bound("lake"), Bound("latest")) is None
        assert loading.rows("kraftpy") == loading.rows("kafka")

    assert_committed()
    ledger.leave_open()
    ledger.second.begin_transaction()
    ledger.write(ledger.second, "aborted", aborted=True)
    ledger.second.abort_transaction(30)
    loader = loading.loader("kraftpy")
    assert loader.plan_load(Bound("lake"), Bound("latest")) is None, "the open one isn't waited for"
    ledger.end_open()
    assert_committed()


@pytest.mark.timeout(600)
def test_the_commands_load_it_through_their_connector(
    spark: Any, apache: str, tmp_path: Path
) -> None:
    ledger = Ledger(apache, "typed")
    ledger.fill()
    loading = Loading(spark, apache, "typed", tmp_path)
    assert loading.load("ours") is not None
    ours = loading.rows("ours")
    assert [row[3] for row in ours] == ledger.committed
    jars = f"spark.jars={','.join(map(str, connector_jars()))}"

    def run(*arguments: str) -> Any:
        command = [sys.executable, "-m", "kraftpy", "pipeline", *arguments, "-b", apache]
        command += ["--source", "kafka", "--master", "local[2]", "--conf", jars, "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    lake = str(tmp_path / "theirs")
    assert run("stream", "typed", lake, "--available-now")["rows"] == len(ledger.committed)
    assert loading.rows("theirs") == ours
    (again,) = run("rerun", "typed", lake, "--from", "20", "--to", "60")["runs"]
    assert (again["kind"], again["version"]) == ("rerun", 2)
    assert again["ranges"] == [["typed", 0, 20, 60]]
    assert loading.rows("theirs") == ours
