"""Spark at a broker with TLS and logins: its own Kafka connector and ours, by the same options."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.logins import CERTIFICATE, PASSWORD, WAYS, Guarded, Login, guarded_broker

DOORS = ("kafka", "kraftpy")
COUNT = 50
PLANS = ("extended", "formatted")
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as started:
        yield started


def options(login: Login) -> dict[str, str]:
    """The same for both doors: those of Java's clients."""
    found = {"bootstrap.servers": login.bootstrap, **login.java()}
    return {f"kafka.{key}": value for key, value in found.items()}


def fill(login: Login, topic: str) -> None:
    producer = Producer(login.librdkafka())
    for number in range(COUNT):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(TIMEOUT_S) == 0


def table(spark: Any, door: str, login: Login, topic: str) -> Any:
    return spark.read.format(door).options(**options(login), subscribe=topic).load()


def stream(spark: Any, door: str, login: Login, topic: str) -> Any:
    reader = spark.readStream.format(door).options(**options(login), subscribe=topic)
    return reader.option("startingOffsets", "earliest").load()


def plans(frame: Any) -> str:
    """All that Spark tells of a table or a stream."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        for mode in PLANS:
            frame.explain(mode=mode)
    return f"{told.getvalue()}{frame._jdf.queryExecution()}{frame}"


def plans_of_query(query: Any) -> str:
    """All that it tells of a stream that runs."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        query.explain(extended=True)
    return f"{told.getvalue()}{query.lastProgress}{query.status}"


def plans_kept(spark: Any) -> str:
    """What its page shows of all that was carried out."""
    kept = spark._jsparkSession.sharedState().statusStore().executionsList()
    each = [kept.apply(number) for number in range(kept.size())]
    return "".join(f"{one.physicalPlanDescription()}{one.modifiedConfigs()}" for one in each)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("door", DOORS)
def test_tables_and_streams(
    spark: Any, guarded: Guarded, door: str, way: str, tmp_path: Path
) -> None:
    """Trap 23 as well: no plan has a password."""
    login, topics = guarded.logins[way], (f"{door}-{way}".lower(), f"{door}-{way}-copy".lower())
    fill(login, topics[0])
    rows = stream(spark, door, login, topics[0])
    query = (
        rows.select("key", "value")
        .writeStream.format(door)
        .options(**options(login), topic=topics[1], checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    frame = table(spark, door, login, topics[1])
    read = [int(bytes(row.value)) for row in frame.sort("offset").collect()]
    assert read == list(range(COUNT))
    of_stream = plans(rows)
    assert way == CERTIFICATE or "kafka.sasl.jaas.config=*********(redacted)" in of_stream
    for told in (of_stream, plans(frame), plans_of_query(query), plans_kept(spark)):
        assert PASSWORD not in told


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.parametrize("door", DOORS)
def test_a_wrong_password_ends_it(spark: Any, guarded: Guarded, door: str, way: str) -> None:
    login = guarded.logins[way].with_wrong_password()
    with pytest.raises(Exception, match=r"(?i)authentication.failed") as caught:
        table(spark, door, login, "never").collect()
    assert PASSWORD not in str(caught.value)
