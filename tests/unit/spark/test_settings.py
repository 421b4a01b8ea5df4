"""Options of the Spark source: what they mean, what is refused and with which words."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kraftpy.client.offsets import READ_COMMITTED
from kraftpy.spark.positions import Assigned, OptionError, Pattern, Position, Subscribed, table_of
from kraftpy.spark.settings import (
    BATCH,
    CLIENT,
    OPTIONS,
    SINK,
    STREAM,
    check_job,
    check_stream,
    read_settings,
    write_settings,
)

LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "a, b"}


def read(where: str = BATCH, **more: str) -> Any:
    return read_settings(LEAST | {k.replace("__", "."): v for k, v in more.items()}, where)


def test_defaults() -> None:
    batch, stream = read(), read(STREAM)
    assert batch.topics == Subscribed(("a", "b"))
    assert (batch.starting.kind, batch.ending.kind) == ("earliest", "latest")
    assert stream.starting.kind == "latest"
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert batch.client.bootstrap == "127.0.0.1:9092"
    assert stream.max_delay_ms == 900_000


def test_names_are_read_in_any_case() -> None:
    """Spark hands them over in lower case: a default in their place would go unnoticed."""
    said = {name.lower(): value for name, value in LEAST.items()}
    said |= {"maxoffsetspertrigger": "7", "FAILONDATALOSS": "False"}
    settings = read_settings(said, STREAM)
    assert settings.max_offsets == 7
    assert not settings.fail_on_data_loss


def test_one_time_takes_precedence_over_times_by_partition_and_those_over_offsets() -> None:
    offsets, times = '{"a":{"0":5}}', '{"a":{"0":77}}'
    settings = read(
        startingTimestamp="9", startingOffsetsByTimestamp=times, startingOffsets=offsets
    )
    assert settings.starting == Position("timestamp", timestamp_ms=9, strict=True)
    settings = read(startingOffsetsByTimestamp=times, startingOffsets=offsets)
    assert settings.starting.by_partition == {("a", 0): 77}
    assert settings.starting.kind == "timestamps"
    settings = read(startingOffsets=offsets, endingOffsets='{"a":{"0":-1}}')
    assert settings.starting.by_partition == {("a", 0): 5}
    assert table_of(settings.ending.by_partition) == {"a": {"0": -1}}
    lenient = read(startingTimestamp="9", startingOffsetsByTimestampStrategy="LATEST")
    assert not lenient.starting.strict
    assert not read(endingTimestamp="9").ending.strict


def test_ways_to_choose_topics() -> None:
    def topics(**way: str) -> Any:
        return read_settings({"kafka.bootstrap.servers": "h:1"} | way, BATCH).topics

    assert topics(assign='{"t":[1,0],"s":[2]}') == Assigned((("s", 2), ("t", 0), ("t", 1)))
    assert topics(subscribePattern="fl.*") == Pattern("fl.*")
    assert Pattern("fl.*").choose(["old-fl", "flights", "fl"]) == ["fl", "flights"]
    with pytest.raises(OptionError, match=r"exactly one of subscribe.*there is none"):
        topics()
    with pytest.raises(OptionError, match="there are subscribe, assign"):
        topics(assign='{"t":[1]}', subscribe="t")


def test_settings_of_the_client() -> None:
    client = read(
        kafka__isolation__level="read_committed",
        kafka__max__partition__fetch__bytes="1000",
        fetchOffset__numRetries="0",
    ).client
    assert (client.isolation, client.partition_max_bytes, client.retries) == (
        READ_COMMITTED,
        1000,
        0,
    )
    sink = write_settings(
        LEAST | {"topic": "t", "kafka.acks": "1", "kafka.compression.type": "ZSTD"}
    )
    assert (sink.topic, sink.producer["acks"], sink.producer["compression"]) == ("t", 1, "zstd")


ONCE = {**LEAST, "topic": "t", "exactlyOnce": "true"}


def test_writing_exactly_once() -> None:
    settings = write_settings(ONCE)
    assert settings.exactly_once
    assert settings.transaction_timeout_ms == 900_000
    check_stream(settings)
    with pytest.raises(OptionError, match=r'jobId, the same whenever.*option\("jobId"'):
        check_job(settings)
    job = write_settings(ONCE | {"jobId": " a.b-1_ ", "kafka.transaction.timeout.ms": "7"})
    assert (job.job_id, job.transaction_timeout_ms) == ("a.b-1_", 7)
    check_job(job)
    with pytest.raises(OptionError, match="a query is known by its checkpoint"):
        check_stream(job)
    check_job(write_settings(LEAST | {"topic": "t"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exactlyOnce": "yes"}, "exactlyOnce is true or false, not 'yes'"),
        ({"kafka.acks": "1"}, "exactlyOnce needs kafka.acks=all"),
        ({"kafka.enable.idempotence": "false"}, "needs kafka.enable.idempotence=true"),
        ({"topic": " "}, "exactlyOnce needs the option topic"),
        ({"jobId": ""}, "jobId is 1 to 200 letters, digits and . _ -, not ''"),
        ({"jobId": "a b"}, "jobId is 1 to 200 letters"),
        ({"jobId": "é"}, "jobId is 1 to 200 letters"),
        ({"jobId": "x" * 201}, "jobId is 1 to 200 letters"),
        ({"exactlyOnce": "false", "jobId": "a"}, "jobId is of no use without the option exactlyO"),
        ({"kafka.transaction.timeout.ms": "0"}, "kafka.transaction.timeout.ms is at least 1"),
    ],
)
def test_what_is_refused_with_exactly_once(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        write_settings(ONCE | options)


@pytest.mark.parametrize(
    ("options", "where", "message"),
    [
        ({"kafka.bootstrap.servers": ""}, BATCH, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "h:p"}, BATCH, "is not HOST:PORT"),
        ({"startingOffsets": "first"}, BATCH, "startingOffsets is earliest, latest or"),
        ({"startingOffsets": '{"a":{"x":1}}'}, BATCH, "startingOffsets is earliest, latest or"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, STREAM, "startingOffsets is earliest, latest or"),
        ({"startingOffsets": '{"a":{"0":true}}'}, STREAM, "startingOffsets is earliest"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, BATCH, "can't be latest"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, BATCH, "can't be earliest"),
        ({"endingTimestamp": "5"}, STREAM, "a stream has no end"),
        ({"minPartitions": "many"}, BATCH, "minPartitions is a number, not 'many'"),
        ({"minPartitions": "0"}, BATCH, "minPartitions is at least 1"),
        ({"slicesPerPartition": "0"}, BATCH, "a number from 1 to 1024, not '0': .option"),
        ({"slicesPerPartition": "1025"}, STREAM, r'"slicesPerPartition", "4"\) has four tasks'),
        ({"slicesPerPartition": "two"}, STREAM, "a number from 1 to 1024, not 'two'"),
        ({"slicesPerPartition": "²"}, BATCH, "a number from 1 to 1024"),
        ({"slicesPerPartition": ""}, BATCH, "a number from 1 to 1024"),
        (
            {"slicesPerPartition": "2", "minPartitions": "4"},
            BATCH,
            "minPartitions by offsets.*leave out minPartitions, or slicesPerPartition",
        ),
        (
            {"slicesPerPartition": "2", "maxRecordsPerPartition": "4"},
            STREAM,
            "leave out maxRecordsPerPartition",
        ),
        ({"failOnDataLoss": "no"}, BATCH, "failOnDataLoss is true or false"),
        ({"maxTriggerDelay": "soon"}, STREAM, "maxTriggerDelay is a time like"),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            STREAM,
            "larger than maxOffsetsPerTrigger",
        ),
        ({"kafka.ssl.key": "x"}, BATCH, "ssl.key is no setting of security here"),
        ({"kafka.security.protocol": "TLS"}, BATCH, "security.protocol is one of PLAINTEXT, SSL"),
        ({"kafka.enable.auto.commit": "true"}, STREAM, "commits none"),
    ],
)
def test_what_is_refused(options: dict[str, str], where: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_settings(LEAST | options, where)


@pytest.mark.parametrize("where", [BATCH, STREAM])
def test_every_documented_option_is_taken_without_a_warning(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = [o.name for o in (*OPTIONS, *CLIENT) if where in o.where]
    harmless = {"pushFilters": "true", "includeHeaders": "true", "groupIdPrefix": "x"}
    read_settings(LEAST | {n: harmless[n] for n in names if n in harmless}, where)
    defaults = {
        o.name: o.default
        for o in (*OPTIONS, *CLIENT)
        if where in o.where and o.default and " " not in o.default
    }
    read_settings(LEAST | defaults, where)
    assert not caplog.records


def test_defaults_are_those_of_the_table() -> None:
    """Saying a default changes nothing."""
    for where in (BATCH, STREAM, SINK):
        said = {
            o.name: o.default
            for o in (*OPTIONS, *CLIENT)
            if where in o.where and o.default and " " not in o.default
        }
        if where == SINK:
            assert write_settings(LEAST | said) == write_settings(LEAST)
        else:
            assert read_settings(LEAST | said, where) == read_settings(LEAST, where)


def test_what_is_not_known_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_settings(LEAST | {"startingOffset": "earliest", "kafka.max.poll.records": "5"}, BATCH)
    assert [record.getMessage() for record in caplog.records] == [
        "option startingoffset has no effect on format('kraftpy'); did you mean startingOffsets?",
        "setting kafka.max.poll.records has no effect on format('kraftpy')",
    ]
