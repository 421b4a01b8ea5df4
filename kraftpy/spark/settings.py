"""What a user asked for: the options of `format("kraftpy")`, checked and typed.

The names, defaults and rules are those of Spark's Kafka source and sink; `OPTIONS` and `CLIENT`
list all of them, and kraftpy/spark/README.md is their table. Rules:

* Spark hands over names in lower case; they are read without regard to case.
* What Spark's source refuses is refused here, with what to type instead.
* A `kafka.` setting that this client doesn't know is of no effect, as with Kafka's own: one warning
  names it. One of security (sasl, ssl) is refused: without effect it would be a trap (`security`).
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kraftpy.client.cluster import AddressError, Cluster, parse_addresses
from kraftpy.client.isolation import ISOLATION_LEVELS
from kraftpy.client.offsets import READ_UNCOMMITTED
from kraftpy.frozen import NamedTuple
from kraftpy.spark.positions import (
    Assigned,
    OptionError,
    Pattern,
    Position,
    Subscribed,
    Topics,
    at_timestamp,
    position_by_offsets,
    position_by_timestamps,
)
from kraftpy.spark.security import NO_OPTIONS, SecurityOptions, is_security_option

_logger = logging.getLogger("kraftpy.spark")

Options = Mapping[str, str]

BATCH, STREAM, SINK = "batch", "stream", "sink"


class Option(NamedTuple):
    """An option as users know it; `where` it has an effect, and its default as text."""

    name: str
    where: tuple[str, ...]
    default: str
    meaning: str


_READ = (BATCH, STREAM)
OPTIONS = (
    Option("subscribe", _READ, "", "topics, separated by commas"),
    Option("subscribePattern", _READ, "", "regular expression that a topic's whole name matches"),
    Option("assign", _READ, "", 'partitions: `{"flights":[0,1]}`'),
    Option(
        "startingOffsets",
        _READ,
        "earliest (batch), latest (stream)",
        'earliest, latest or `{"flights":{"0":23,"1":-2}}`; -2 is the start, -1 the end',
    ),
    Option("endingOffsets", (BATCH,), "latest", "latest or offsets by partition; -1 is the end"),
    Option(
        "startingOffsetsByTimestamp",
        _READ,
        "",
        'milliseconds by partition: `{"flights":{"0":1700000000000}}`',
    ),
    Option("endingOffsetsByTimestamp", (BATCH,), "", "as above; no record that young: the end"),
    Option("startingTimestamp", _READ, "", "milliseconds, for all partitions"),
    Option("endingTimestamp", (BATCH,), "", "milliseconds, for all partitions"),
    Option(
        "startingOffsetsByTimestampStrategy",
        _READ,
        "error",
        "where no record is that young: error, or latest",
    ),
    Option("failOnDataLoss", _READ, "true", "fail when offsets are gone, or warn and go on"),
    Option("minPartitions", _READ, "", "at least this many tasks"),
    Option("maxRecordsPerPartition", _READ, "", "at most this many offsets in a task"),
    Option(
        "slicesPerPartition",
        _READ,
        "1",
        "so many tasks for each partition, each of them for a part of the keys (see below)",
    ),
    Option("maxOffsetsPerTrigger", (STREAM,), "", "at most this many offsets in a batch"),
    Option("minOffsetsPerTrigger", (STREAM,), "", "wait for this many offsets"),
    Option("maxTriggerDelay", (STREAM,), "15m", "how long minOffsetsPerTrigger waits at most"),
    Option("includeHeaders", _READ, "false", "a column `headers`"),
    Option("fetchOffset.numRetries", _READ, "3", "tries to ask for offsets after the first"),
    Option("fetchOffset.retryIntervalMs", _READ, "1000", "pause between them"),
    Option(
        "kafkaConsumer.pollTimeoutMs", _READ, "120000", "how long a task waits without progress"
    ),
    Option("groupIdPrefix", _READ, "", "taken and not used: no consumer group is joined"),
    Option("pushFilters", (BATCH,), "false", "filters choose partitions and offsets (see below)"),
    Option(
        "keepTimestamps",
        (SINK,),
        "false",
        "records have the time in the column `timestamp`, not now",
    ),
    Option("createTopics", (SINK,), "true", "the brokers may make topics that aren't there"),
    Option(
        "exactlyOnce",
        (SINK,),
        "false",
        "who reads what is committed finds each row once (see below)",
    ),
    Option("jobId", (SINK,), "", "with exactlyOnce: the name of a batch job"),
    Option("topic", (SINK,), "", "where records go; else the column `topic` says"),
    Option("includeHeaders", (SINK,), "false", "taken and not used: a column `headers` is enough"),
)

_CLIENT = (BATCH, STREAM, SINK)
CLIENT = (
    Option("kafka.bootstrap.servers", _CLIENT, "", "HOST:PORT of some brokers (needed)"),
    Option("kafka.client.id", _CLIENT, "kraftpy-spark", "name in the broker's logs"),
    Option("kafka.request.timeout.ms", _CLIENT, "30000", "how long a request may take"),
    Option(
        "kafka.socket.connection.setup.timeout.ms", _CLIENT, "10000", "how long connecting may take"
    ),
    Option(
        "kafka.security.protocol",
        _CLIENT,
        "PLAINTEXT",
        "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL (see below)",
    ),
    Option("kafka.sasl.mechanism", _CLIENT, "", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
    Option(
        "kafka.sasl.jaas.config",
        _CLIENT,
        "",
        "name and password, as `...ScramLoginModule required username=... password=...;`",
    ),
    Option(
        "kafka.ssl.truststore.location", _CLIENT, "", "whom to trust: a file (else the system's)"
    ),
    Option("kafka.ssl.truststore.type", _CLIENT, "JKS", "PEM, or PKCS12, which JKS means too"),
    Option("kafka.ssl.truststore.password", _CLIENT, "", "its password"),
    Option("kafka.ssl.truststore.certificates", _CLIENT, "", "whom to trust: PEM itself"),
    Option("kafka.ssl.keystore.location", _CLIENT, "", "the client's own certificate and key"),
    Option("kafka.ssl.keystore.type", _CLIENT, "JKS", "as kafka.ssl.truststore.type"),
    Option("kafka.ssl.keystore.password", _CLIENT, "", "its password"),
    Option("kafka.ssl.keystore.certificate.chain", _CLIENT, "", "the certificate, PEM itself"),
    Option("kafka.ssl.keystore.key", _CLIENT, "", "its key, PEM itself"),
    Option("kafka.ssl.key.password", _CLIENT, "", "the key's password"),
    Option(
        "kafka.ssl.endpoint.identification.algorithm",
        _CLIENT,
        "https",
        "empty: brokers' names aren't compared with their certificates",
    ),
    Option(
        "kafka.isolation.level",
        _READ,
        "read_uncommitted",
        "read_committed leaves out what transactions aborted and waits for open ones",
    ),
    Option("kafka.fetch.max.bytes", _READ, "52428800", "largest answer"),
    Option("kafka.max.partition.fetch.bytes", _READ, "8388608", "largest answer of a partition"),
    Option("kafka.fetch.max.wait.ms", _READ, "500", "how long a broker waits for records"),
    Option("kafka.group.id", _READ, "", "taken and not used: no consumer group is joined"),
    Option("kafka.acks", (SINK,), "all", "all, 1 or 0"),
    Option("kafka.enable.idempotence", (SINK,), "true with acks=all", "no duplicates by retries"),
    Option("kafka.compression.type", (SINK,), "none", "none, gzip, snappy, lz4 or zstd"),
    Option("kafka.linger.ms", (SINK,), "5", "how long a batch waits for more records"),
    Option(
        "kafka.transaction.timeout.ms",
        (SINK,),
        "900000",
        "with exactlyOnce: how long a batch may take",
    ),
    Option("kafka.batch.size", (SINK,), "131072", "bytes of a batch"),
    Option("kafka.buffer.memory", (SINK,), "33554432", "bytes of records that wait"),
    Option("kafka.delivery.timeout.ms", (SINK,), "120000", "how long delivering may take"),
)

_REFUSED = {
    "kafka.auto.offset.reset": "set startingOffsets instead: the source keeps its own offsets",
    "kafka.enable.auto.commit": "the source keeps its own offsets and commits none",
    "kafka.interceptor.classes": "interceptors would change records behind Spark's back",
    "kafka.key.deserializer": "keys are binary; cast the column",
    "kafka.value.deserializer": "values are binary; cast the column",
    "kafka.key.serializer": "keys are strings or binary; cast the column",
    "kafka.value.serializer": "values are strings or binary; cast the column",
}
# Spark puts these in by itself, or they steer Spark and not the source.
_SPARKS_OWN = {"path", "checkpointlocation", "queryname", "__default__", "header"}

_SLICES_MAX = 1024
_POSITIONS_LOWER = {"earliest", "latest"}
_JOB_ID_MAX = 200
_NUMBER = re.compile(r"[0-9]{1,9}")
_JOB_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{_JOB_ID_MAX}}}")


class _Reader:
    """The options by lower-case name; typed access, errors that name the option as documented."""

    def __init__(self, options: Options, where: str) -> None:
        self.where = where
        self.given = {name.lower(): value for name, value in options.items()}
        self.known = {o.name.lower(): o for o in (*OPTIONS, *CLIENT) if where in o.where}
        self._check_names()

    def _check_names(self) -> None:
        elsewhere = {o.name.lower() for o in (*OPTIONS, *CLIENT)} - set(self.known)
        for name in self.given:
            for refused, why in _REFUSED.items():
                if name == refused:
                    raise OptionError(f"option {refused} is not supported: {why}")
            if name in self.known or name in _SPARKS_OWN or is_security_option(name):
                continue
            if name in elsewhere:
                self._refuse_elsewhere(name)
            elif name.startswith("kafka."):
                _logger.warning("setting %s has no effect on format('kraftpy')", name)
            else:
                near = difflib.get_close_matches(name, self.known, 1)
                hint = f"; did you mean {self.known[near[0]].name}?" if near else ""
                _logger.warning("option %s has no effect on format('kraftpy')%s", name, hint)

    def _refuse_elsewhere(self, name: str) -> None:
        if self.where == STREAM and name.startswith("ending"):
            raise OptionError(
                f"option {name} is not for streams: a stream has no end; read it as a batch, or "
                "stop at today's end with trigger(availableNow=True)"
            )

    def text(self, name: str) -> str | None:
        value = self.given.get(name.lower())
        return value.strip() if value is not None else None

    def number(self, name: str, default: int | None, least: int = 1) -> Any:
        value = self.text(name)
        if value is None:
            return default
        if not value.lstrip("-").isascii() or not value.lstrip("-").isdigit():
            raise OptionError(f"option {name} is a number, not {value!r}")
        if int(value) < least:
            raise OptionError(f"option {name} is at least {least}, not {value}")
        return int(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"option {name} is true or false, not {value!r}")
        return value == "true"

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        value = self.text(name) or default
        for each in choices:
            if value.lower() == each.lower():
                return each
        raise OptionError(f"option {name} is one of {', '.join(choices)}, not {value!r}")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to reach the cluster and how to read; small enough to travel with every task."""

    bootstrap: str
    client_id: str = "kraftpy-spark"
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    isolation: int = READ_UNCOMMITTED
    fetch_max_bytes: int = 50 << 20
    partition_max_bytes: int = 8 << 20
    max_wait_ms: int = 500
    retries: int = 3
    retry_interval_ms: int = 1_000
    poll_timeout_ms: int = 120_000
    security: SecurityOptions = NO_OPTIONS

    def connect(self) -> Cluster:
        """A client of the cluster. Raises SecurityError."""
        return Cluster(
            self.bootstrap,
            client_id=self.client_id,
            request_timeout_ms=self.request_timeout_ms,
            connect_timeout_ms=self.connect_timeout_ms,
            security=self.security.security(),
        )

    def patient(self) -> ClientSettings:
        """The same, but planning asks again for as long as a task may go without progress.

        That is for who has work to lose, and has reached the brokers before.
        """
        retries = self.poll_timeout_ms // max(self.retry_interval_ms, 100)
        return replace(self, retries=max(self.retries, retries))


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a reader was asked for; `starting` and `ending` are resolved when it plans."""

    client: ClientSettings
    topics: Topics
    starting: Position
    ending: Position
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    slices_per_partition: int = 1
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 900_000
    include_headers: bool = False
    push_filters: bool = False


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """What a writer was asked for; `producer` are the keyword arguments of the client's."""

    client: ClientSettings
    topic: str | None
    producer: Mapping[str, Any] = field(default_factory=dict)
    keep_timestamps: bool = False
    create_topics: bool = True
    exactly_once: bool = False
    job_id: str | None = None
    transaction_timeout_ms: int = 900_000


def read_settings(options: Options, where: str) -> ReadSettings:
    """The settings of a batch or stream reader; raises OptionError."""
    reader = _Reader(options, where)
    batch = where == BATCH
    topics = _topics(reader)
    least, most = (
        reader.number("minOffsetsPerTrigger", None),
        reader.number("maxOffsetsPerTrigger", None),
    )
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"option minOffsetsPerTrigger ({least}) is larger than maxOffsetsPerTrigger ({most})"
        )
    settings = ReadSettings(
        client=_client(reader),
        topics=topics,
        starting=_position(reader, "starting", "earliest" if batch else "latest", topics),
        ending=_position(reader, "ending", "latest", topics) if batch else Position("latest"),
        fail_on_data_loss=reader.boolean("failOnDataLoss", True),
        min_partitions=reader.number("minPartitions", None),
        max_records_per_partition=reader.number("maxRecordsPerPartition", None),
        slices_per_partition=_slices(reader),
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=_duration(reader.text("maxTriggerDelay") or "15m"),
        include_headers=reader.boolean("includeHeaders", False),
        push_filters=reader.boolean("pushFilters", False),
    )
    _check_slices(settings)
    return settings


def _slices(reader: _Reader) -> int:
    text = reader.text("slicesPerPartition")
    if text is None:
        return 1
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= _SLICES_MAX:
        raise OptionError(
            f"option slicesPerPartition is a number from 1 to {_SLICES_MAX}, not {text!r:.40}:"
            ' .option("slicesPerPartition", "4") has four tasks read each partition'
        )
    return int(text)


def _check_slices(settings: ReadSettings) -> None:
    """Raises OptionError for what would give a key to several tasks."""
    if settings.slices_per_partition == 1:
        return
    for name, value in (
        ("minPartitions", settings.min_partitions),
        ("maxRecordsPerPartition", settings.max_records_per_partition),
    ):
        if value is not None:
            raise OptionError(
                f"option slicesPerPartition cuts partitions up by keys and {name} by offsets, so"
                f" a key wouldn't be one task's: leave out {name}, or slicesPerPartition where"
                " that doesn't matter"
            )


def write_settings(options: Options, *, by_topic: bool = False) -> WriteSettings:
    """The settings of a batch or stream writer; raises OptionError.

    `by_topic`: what a task has written exactly once is kept by topic, so rows may name theirs.
    """
    reader = _Reader(options, SINK)
    acks = reader.choice("kafka.acks", "all", ("all", "-1", "1", "0"))
    producer = {
        "acks": -1 if acks == "all" else int(acks),
        "compression": reader.choice(
            "kafka.compression.type", "none", ("none", "gzip", "snappy", "lz4", "zstd")
        ),
        "linger_ms": reader.number("kafka.linger.ms", 5, 0),
        "batch_size_bytes": reader.number("kafka.batch.size", 128 << 10),
        "buffer_size_bytes": reader.number("kafka.buffer.memory", 32 << 20),
        "delivery_timeout_ms": reader.number("kafka.delivery.timeout.ms", 120_000),
    }
    if reader.text("kafka.enable.idempotence") is not None:
        producer["idempotent"] = reader.boolean("kafka.enable.idempotence", True)
        if producer["idempotent"] and producer["acks"] != -1:
            raise OptionError("option kafka.enable.idempotence needs kafka.acks=all")
    settings = WriteSettings(
        client=_client(reader),
        topic=reader.text("topic") or None,
        producer=producer,
        keep_timestamps=reader.boolean("keepTimestamps", False),
        create_topics=reader.boolean("createTopics", True),
        exactly_once=reader.boolean("exactlyOnce", False),
        job_id=reader.text("jobId"),
        transaction_timeout_ms=reader.number("kafka.transaction.timeout.ms", 900_000),
    )
    _check_exactly_once(settings, by_topic)
    return settings


def _check_exactly_once(settings: WriteSettings, by_topic: bool) -> None:
    """Raises OptionError for what goes wrong with the option, or without it."""
    job = settings.job_id
    if not settings.exactly_once:
        if job is not None:
            raise OptionError("option jobId is of no use without the option exactlyOnce: set both")
        return
    if settings.producer["acks"] != -1:
        raise OptionError("option exactlyOnce needs kafka.acks=all")
    if not settings.producer.get("idempotent", True):
        raise OptionError("option exactlyOnce needs kafka.enable.idempotence=true")
    if settings.topic is None and not by_topic:
        raise OptionError(
            "option exactlyOnce needs the option topic, beside which is kept what was written: one"
            " query or job for each topic"
        )
    if job is not None and not _JOB_ID.fullmatch(job):
        raise OptionError(
            f"option jobId is 1 to {_JOB_ID_MAX} letters, digits and . _ -, not {job!r:.40}"
        )


def check_job(settings: WriteSettings) -> None:
    """OptionError unless it is known which batch job this is, where that matters."""
    if settings.exactly_once and settings.job_id is None:
        raise OptionError(
            "option exactlyOnce needs the option jobId, the same whenever the job is repeated:"
            ' .option("jobId", "copy-of-2026-11-23")'
        )


def check_stream(settings: WriteSettings) -> None:
    """OptionError for what a stream is not to be told."""
    if settings.job_id is not None:
        raise OptionError("option jobId is not for streams: a query is known by its checkpoint")


def _client(reader: _Reader) -> ClientSettings:
    bootstrap = reader.text("kafka.bootstrap.servers")
    if not bootstrap:
        raise OptionError(
            'option kafka.bootstrap.servers is missing: .option("kafka.bootstrap.servers", '
            '"127.0.0.1:9092")'
        )
    try:
        parse_addresses(bootstrap)
    except AddressError as error:
        raise OptionError(f"option kafka.bootstrap.servers: {error}") from None
    levels = tuple(ISOLATION_LEVELS)
    level = reader.choice("kafka.isolation.level", levels[0], levels)
    return ClientSettings(
        bootstrap=bootstrap,
        client_id=reader.text("kafka.client.id") or "kraftpy-spark",
        request_timeout_ms=reader.number("kafka.request.timeout.ms", 30_000),
        connect_timeout_ms=reader.number("kafka.socket.connection.setup.timeout.ms", 10_000),
        isolation=ISOLATION_LEVELS[level],
        fetch_max_bytes=reader.number("kafka.fetch.max.bytes", 50 << 20),
        partition_max_bytes=reader.number("kafka.max.partition.fetch.bytes", 8 << 20),
        max_wait_ms=reader.number("kafka.fetch.max.wait.ms", 500, 0),
        retries=reader.number("fetchOffset.numRetries", 3, 0),
        retry_interval_ms=reader.number("fetchOffset.retryIntervalMs", 1_000, 0),
        poll_timeout_ms=reader.number("kafkaConsumer.pollTimeoutMs", 120_000),
        security=SecurityOptions.read(reader.given),
    )


def _topics(reader: _Reader) -> Topics:
    ways: dict[str, Callable[[str], Topics]] = {
        "subscribe": Subscribed.read,
        "subscribePattern": Pattern.read,
        "assign": Assigned.read,
    }
    chosen = {name: text for name in ways if (text := reader.text(name)) is not None}
    if len(chosen) != 1:
        said = f"there are {', '.join(chosen)}" if chosen else "there is none of them"
        raise OptionError(f"exactly one of subscribe, subscribePattern and assign; {said}")
    ((name, text),) = chosen.items()
    return ways[name](text)


def _position(reader: _Reader, which: str, default: str, topics: Topics) -> Position:
    """Where reading starts or ends: a time for all before times by partition before offsets."""
    strategy = reader.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
    strict = which == "starting" and strategy == "error"
    when = reader.number(f"{which}Timestamp", None, 0)
    if when is not None:
        return at_timestamp(when, strict)
    name = f"{which}OffsetsByTimestamp"
    if (text := reader.text(name)) is not None:
        return position_by_timestamps(name, text, strict)
    name = f"{which}Offsets"
    text = reader.text(name) or default
    if text.lower() not in _POSITIONS_LOWER:
        position = position_by_offsets(name, text)
    else:
        position = Position(text.lower())
    if reader.where == BATCH:
        _check_batch(name, which, position)
    return position


def _check_batch(name: str, which: str, position: Position) -> None:
    offsets = position.by_partition or {}
    if which == "starting" and (position.kind == "latest" or -1 in offsets.values()):
        raise OptionError(
            f"option {name} can't be latest (-1) in a batch: nothing would be read; "
            "earliest, an offset or startingTimestamp says where to start"
        )
    if which == "ending" and (position.kind == "earliest" or -2 in offsets.values()):
        raise OptionError(
            f"option {name} can't be earliest (-2): nothing would be read; "
            "latest, an offset or endingTimestamp says where to end"
        )


_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration(text: str) -> int:
    """Milliseconds of a time as Spark's configuration writes it: 15m, 30s, 500ms; plain: ms."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz").strip()
    unit = text[len(digits) :].strip() or "ms"
    if not digits.isascii() or not digits.isdigit() or unit not in _UNITS_MS:
        raise OptionError(f"option maxTriggerDelay is a time like 30s or 15m, not {text!r}")
    return int(digits) * _UNITS_MS[unit]
