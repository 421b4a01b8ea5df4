"""`kraftpy consume`: records of topics to stdout, from an offset on or as a member of a group.

`-o` takes an offset, as in kcat and rpk, and also `json`, as in every other command here. What has
been fetched is written at once, so a reader at the other end of a pipe never waits for a buffer.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase, translate
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    TEXT,
    Failure,
    run_client,
    timeout_option,
    topic_failure,
)
from kraftpy.cli.format import FORMAT_HELP, FormatError, record_formatter
from kraftpy.cli.last_records import begin_of_last
from kraftpy.cli.meter import Meter
from kraftpy.cli.offset_spec import OFFSET_HELP, OffsetError, OffsetSpec, parse_offset, resolve
from kraftpy.client.cluster import Cluster
from kraftpy.client.fetcher import Fetched, Fetcher
from kraftpy.client.isolation import ISOLATION_LEVELS
from kraftpy.client.offsets import EARLIEST, LATEST, Partition, list_offsets
from kraftpy.client.rebalance_listener import RebalanceListener
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.records import Record

if TYPE_CHECKING:
    from kraftpy.client.consumer import Consumer
    from kraftpy.client.consumer_records import ConsumerRecord

_JSON_HELP = """\b
With -o json each line is an object with topic, partition, offset, timestamp
(milliseconds), key, value and headers: [[name, value], ...].  Bytes that are
not UTF-8 become {"base64": ...}.
"""

_RANGES_SHOWN = 4
_COMMIT_EVERY_S = 1.0
_POLL_MS = 500
_POLL_RECORDS = 500
_Formatter = Callable[[str, int, Record], bytes]


@click.command(epilog="\n\n".join((OFFSET_HELP, _JSON_HELP, FORMAT_HELP)))
@click.argument("topics", type=TEXT, nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-g",
    "--group",
    type=TEXT,
    metavar="GROUP",
    help="Read as a member of this group, from its offsets on, and commit what was written. -o is "
    "start or end then, for partitions without an offset.",
)
@click.option(
    "-o",
    "--offset",
    "offsets",
    multiple=True,
    metavar="OFFSET|json",
    help="Where to begin (see below); `-o json` for JSON lines. Both may be given.",
)
@click.option("-n", "--num", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition. Repeatable.  [default: all]",
)
@click.option(
    "--isolation-level",
    type=click.Choice(("read_committed", "read_uncommitted")),
    default="read_committed",
    show_default=True,
    help="read_committed leaves out what transactions aborted, and waits for those that are open; "
    "read_uncommitted shows all, as kafka-console-consumer does by default.",
)
@click.option("-f", "--format", "format_text", help=r"How to write a record.  [default: %v\n]")
@brokers_option
@timeout_option
def command(
    topics: Sequence[str],
    group: str | None,
    offsets: Sequence[str],
    num: int | None,
    partitions: Sequence[int],
    isolation_level: str,
    format_text: str | None,
    brokers: Brokers,
    timeout_ms: int,
) -> None:
    """Write the records of TOPIC to stdout, and follow it until Ctrl-C.

    Several topics may be named, and patterns as a shell's: of those the topics that there are, with
    -g also those that come. Ctrl-C and SIGTERM with -g commit what was written, and leave the
    group.

    \b
    kraftpy consume orders                 all records, then new ones
    kraftpy consume orders -o -10:end      the last 10 of each partition, then stop
    kraftpy consume orders -o end -n 1     wait for the next one
    kraftpy consume orders -f '%p %o %k %v\\n'
    kraftpy consume 'orders-*' returns -f '%t %v\\n'
    kraftpy consume orders -g kitchen
    """
    spec, as_json = _parse_offsets(offsets)
    if as_json and format_text is not None:
        raise click.UsageError("-o json and -f exclude each other")
    if group is not None and partitions:
        raise click.UsageError("-p does not go with -g, which deals partitions out")
    if group is not None and (spec.kind not in ("start", "end") or spec.until_end):
        raise click.UsageError(
            "-g begins where the group is: -o start or end is for what it has no offset of. "
            "`kraftpy group seek` moves a group"
        )
    try:
        write = _json_line if as_json else record_formatter(format_text or r"%v\n")
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint="'-f' / '--format'") from None
    meter = Meter(shows=not sys.stdout.isatty())
    output = _Output(write, num, meter)

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            try:
                if group is not None:
                    await _consume_as_member(cluster, topics, group, spec, isolation_level, output)
                else:
                    names = await _topics_of(cluster, topics)
                    isolation = ISOLATION_LEVELS[isolation_level]
                    await _consume(cluster, names, partitions, spec, isolation, output)
            except KafkaError as error:
                what = topics[0] if len(topics) == 1 else ", ".join(topics)
                raise topic_failure(what, error) from None

    try:
        run_client(run(), hears_sigterm=group is not None)
    finally:
        meter.clear()
        if sys.stderr.isatty():
            newline = "" if output.complete else "\n"
            click.echo(f"{newline}read {meter.text()}", err=True)


class _Output:
    """Writes records to stdout until there are enough."""

    def __init__(self, write: _Formatter, num: int | None, meter: Meter) -> None:
        self._write = write
        self._meter = meter
        self.left = num

    @property
    def complete(self) -> bool:
        return self.left == 0

    def add(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        out = [self._write(topic, partition, record) for record in records]
        sys.stdout.buffer.write(b"".join(out))
        self._meter.add(len(records), sum(len(record.value or b"") for record in records))
        if self.left is not None:
            self.left -= len(records)

    def flush(self) -> None:
        sys.stdout.buffer.flush()


def _parse_offsets(texts: Sequence[str]) -> tuple[OffsetSpec, bool]:
    """What `-o` was given: where to begin, and whether to write JSON."""
    specs = [text for text in texts if text != "json"]
    if len(specs) > 1:
        raise click.UsageError(f"one offset, please, not {' and '.join(specs)}")
    try:
        return parse_offset(specs[0] if specs else "start"), "json" in texts
    except OffsetError as error:
        raise click.BadParameter(str(error), param_hint="'-o' / '--offset'") from None


_PATTERN_CHARACTERS = frozenset("*?[")


def _is_pattern(name: str) -> bool:
    """Whether it can be no topic: names have none of these characters."""
    return not _PATTERN_CHARACTERS.isdisjoint(name)


async def _topics_of(cluster: Cluster, names: Sequence[str]) -> list[str]:
    """The topics named, and those that match; the cluster's own only where they are named."""
    found = [name for name in names if not _is_pattern(name)]
    patterns = [name for name in names if _is_pattern(name)]
    if patterns:
        await cluster.refresh(None)
        for pattern in patterns:
            matching = [
                name
                for name, info in sorted(cluster.topics.items())
                if not info.internal and fnmatchcase(name, pattern)
            ]
            if not matching:
                raise Failure(
                    f"no topic matches {pattern!r}. `kraftpy topic list` shows what there is",
                    EXIT_BROKER_ERROR,
                )
            found += matching
    return list(dict.fromkeys(found))


async def _consume(
    cluster: Cluster,
    topics: Sequence[str],
    wanted: Sequence[int],
    spec: OffsetSpec,
    isolation: int,
    output: _Output,
) -> None:
    names = []
    for topic in topics:
        try:
            info = await cluster.topic(topic)
        except KafkaError as error:
            raise topic_failure(topic, error) from None
        for partition in wanted:
            if partition not in info.partitions:
                raise Failure(
                    f"topic {topic!r} has no partition {partition}; "
                    f"the last one is {max(info.partitions)}",
                    EXIT_BROKER_ERROR,
                )
        names += [(topic, partition) for partition in wanted or info.partitions]
    if spec.kind == "exact":
        await _check_inside(cluster, names, spec.value)
    positions, now_ends = await _positions(cluster, names, spec, isolation)
    ends = now_ends if spec.until_end else None
    # Retention may delete what is still to be read; a follower goes on with what there is. An
    # offset that the user asked for must exist.
    reset = "none" if spec.kind == "exact" else "earliest"
    async with Fetcher(cluster, positions, auto_offset_reset=reset, isolation=isolation) as fetcher:
        _drop_finished(fetcher, ends)
        while fetcher.positions:
            for fetched in await fetcher.poll():
                records = _until(fetched, ends)[: output.left]
                output.add(fetched.topic, fetched.partition, records)
                if output.complete:
                    output.flush()
                    return
            output.flush()
            _drop_finished(fetcher, ends)


async def _positions(
    cluster: Cluster, names: Sequence[Partition], spec: OffsetSpec, isolation: int
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Where to begin, and the ends now."""
    if spec.kind != "last":
        return await resolve(cluster, names, spec, isolation)
    starts, ends = await resolve(cluster, names, OffsetSpec("start"), isolation)
    return await begin_of_last(cluster, starts, ends, spec.value, isolation), ends


# -- as a member of a group


class _Written(RebalanceListener):
    """What of each partition is on stdout, and commits it.

    With the markers of transactions behind it: else a lag of one would stay.
    """

    def __init__(self, consumer: Consumer[bytes, bytes]) -> None:
        self._consumer = consumer
        self._offsets: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._commit_at = time.monotonic() + _COMMIT_EVERY_S

    def add(self, name: Partition, offset: int) -> None:
        self._offsets[name] = self._ends[name] = offset

    async def commit(self) -> None:
        self._commit_at = time.monotonic() + _COMMIT_EVERY_S
        offsets, self._offsets = self._offsets, {}
        if offsets:
            await self._consumer.commit(offsets)

    async def commit_if_due(self) -> None:
        """To be called while all that was polled is written."""
        if time.monotonic() >= self._commit_at:
            for name in self._ends.keys() & self._consumer.assignment:
                position = await self._consumer.position(name)
                if position > self._ends[name]:
                    self.add(name, position)
            await self.commit()

    async def revoked(self, partitions: Sequence[Partition]) -> None:
        await self.commit()
        self._forget(partitions)

    async def lost(self, partitions: Sequence[Partition]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: Sequence[Partition]) -> None:
        for name in partitions:
            self._offsets.pop(name, None)
            self._ends.pop(name, None)


async def _consume_as_member(
    cluster: Cluster,
    topics: Sequence[str],
    group: str,
    spec: OffsetSpec,
    isolation_level: str,
    output: _Output,
) -> None:
    from kraftpy.client.consumer import Consumer

    async with Consumer(
        cluster,
        group_id=group,
        auto_offset_reset="earliest" if spec.kind == "start" else "latest",
        isolation_level=isolation_level,
        enable_auto_commit=False,  # what is written is committed, no more
        allow_individual_commit=False,
    ) as consumer:
        written = _Written(consumer)
        if any(map(_is_pattern, topics)):
            expression = "|".join(map(translate, topics))
            consumer.subscribe(re.compile(expression), listener=written)
        else:
            for topic in topics:
                try:
                    await cluster.topic(topic)
                except KafkaError as error:
                    raise topic_failure(topic, error) from None
            consumer.subscribe(topics, listener=written)
        try:
            while not output.complete:
                records = await consumer.poll(_POLL_MS, max_records=_records_wanted(output.left))
                for record in records:
                    output.add(record.topic, record.partition, [_as_fetched(record)])
                output.flush()
                for record in records:
                    written.add((record.topic, record.partition), record.offset + 1)
                await written.commit_if_due()
        except asyncio.CancelledError:  # Ctrl-C, SIGTERM
            await written.commit()
            raise
        await written.commit()


def _records_wanted(left: int | None) -> int:
    return _POLL_RECORDS if left is None else min(left, _POLL_RECORDS)


def _as_fetched(record: ConsumerRecord[bytes, bytes]) -> Record:
    return Record(record.offset, record.timestamp, record.key, record.value, record.headers)


async def _check_inside(cluster: Cluster, names: Sequence[Partition], offset: int) -> None:
    starts = await list_offsets(cluster, dict.fromkeys(names, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(names, LATEST))
    outside = [name for name in names if not starts[name] <= offset <= ends[name]]
    if not outside:
        return
    shown = [
        f"{topic}-{partition} "
        + (
            f"has {starts[topic, partition]} to {ends[topic, partition] - 1}"
            if starts[topic, partition] < ends[topic, partition]
            else f"is empty, and the next record gets {ends[topic, partition]}"
        )
        for topic, partition in outside[:_RANGES_SHOWN]
    ]
    if len(outside) > _RANGES_SHOWN:
        shown.append(f"{len(outside) - _RANGES_SHOWN} more")
    raise Failure(
        f"offset {offset} is outside the log: {', '.join(shown)}. -p takes one partition, "
        "+N counts from the oldest record",
        EXIT_BROKER_ERROR,
    )


def _until(fetched: Fetched, ends: dict[Partition, int] | None) -> list[Record]:
    if ends is None:
        return fetched.records
    end = ends[fetched.topic, fetched.partition]
    return [record for record in fetched.records if record.offset < end]


def _drop_finished(fetcher: Fetcher, ends: dict[Partition, int] | None) -> None:
    if ends is not None:
        for name, position in list(fetcher.positions.items()):
            if position >= ends[name]:
                fetcher.drop(*name)


def _json_line(topic: str, partition: int, record: Record) -> bytes:
    document = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _json_bytes(record.key),
        "value": _json_bytes(record.value),
        "headers": [[name, _json_bytes(value)] for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _json_bytes(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
