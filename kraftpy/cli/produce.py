"""`kraftpy produce`: lines, or records in a format, from a file or stdin into a topic."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    TEXT,
    Failure,
    echo_json,
    parse_key_values,
    run_client,
    timeout_option,
    topic_failure,
)
from kraftpy.cli.format import FORMAT_HELP, FormatError, InputRecord, RecordReader
from kraftpy.cli.meter import Meter
from kraftpy.client.batches import Delivery
from kraftpy.client.producer import Producer, UnknownPartitionError
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.records import COMPRESSION_NAMES
from kraftpy.wording import counted

_CHUNK_SIZE_BYTES = 256 * 1024
_PARTITIONS_SHOWN = 8


@click.command(epilog=FORMAT_HELP)
@click.argument("topic", type=TEXT)
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "-f",
    "--format",
    "format_text",
    default=r"%v\n",
    show_default=True,
    help="How records stand in the input.",
)
@click.option("-k", "--key", help="Key of the records whose format has none.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="[default: by key, or any]")
@click.option(
    "-H", "--header", "headers", type=TEXT, multiple=True, metavar="NAME=VALUE", help="Repeatable."
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(COMPRESSION_NAMES),
    default="none",
    show_default=True,
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Replicas that must have a record before it counts as written.",
)
@brokers_option
@timeout_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Where the records went: a sentence on stderr, or JSON on stdout.",
)
def command(
    topic: str,
    file: BinaryIO,
    format_text: str,
    key: str | None,
    partition: int | None,
    headers: Sequence[str],
    compression: str,
    acks: str,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Write records, one a line, from FILE or stdin to TOPIC.

    A topic that does not exist is created if the broker allows it. Ctrl-C ends it when what was
    read is written.

    \b
    echo hello | kraftpy produce greetings
    kraftpy produce orders -f '%k %v\\n' -z zstd orders.txt
    """
    try:
        reader = RecordReader(format_text)
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint="'-f' / '--format'") from None
    defaults = InputRecord(
        key=os.fsencode(key) if key is not None else None,
        partition=partition,
        headers=[(n, v.encode()) for n, v in parse_key_values(headers, "'-H' / '--header'")],
    )
    summary = _Summary(topic)

    async def run() -> None:
        async with (
            brokers.connect(timeout_ms) as cluster,
            Producer(
                cluster,
                acks=-1 if acks == "all" else int(acks),
                idempotent=acks == "all",
                compression=compression,
                delivery_timeout_ms=timeout_ms,
            ) as producer,
        ):
            try:
                await cluster.topic(topic, auto_create=True)
                await _send_all(producer, topic, file, reader, defaults, summary)
                await producer.flush()
                await summary.resolve()
            except KafkaError as error:
                raise topic_failure(topic, error) from None
            except asyncio.CancelledError:  # Ctrl-C: what was read is sent, and told
                await _finish(producer, summary, output)
                raise
            except ConnectionError as error:
                if not summary.records:
                    raise
                raise Failure(
                    f"{error}. Of {summary.records} records read not all are known to be written: "
                    "sending them again may write some twice",
                    EXIT_UNREACHABLE,
                ) from None
            except (FormatError, UnknownPartitionError) as error:
                # What stands before the bad record has been accepted and is not taken back.
                await producer.flush()
                raise Failure(
                    f"{error}. Written before it: {summary.records}", EXIT_USAGE
                ) from None

    run_client(run())
    summary.show(output)


async def _finish(producer: Producer[bytes, bytes], summary: _Summary, output: str) -> None:
    click.echo(err=True)  # behind what the terminal shows for Ctrl-C
    try:
        await producer.flush()
        await summary.resolve()
    except (ConnectionError, KafkaError) as error:
        click.echo(
            f"kraftpy: interrupted. {error}. Of {counted(summary.records, 'record')} read not all "
            "are known to be written",
            err=True,
        )
    else:
        summary.show(output)


async def _send_all(
    producer: Producer[bytes, bytes],
    topic: str,
    file: BinaryIO,
    reader: RecordReader,
    defaults: InputRecord,
    summary: _Summary,
) -> None:
    with _progress(file, topic, summary) as advance:
        async for chunk in _chunks(file):
            for record in reader.feed(chunk) if chunk else reader.finish():
                partition = record.partition
                delivery = await producer.send(
                    topic,
                    record.value,
                    key=defaults.key if record.key is None else record.key,
                    partition=defaults.partition if partition is None else partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=[*(defaults.headers or ()), *(record.headers or ())],
                )
                summary.add(delivery, len(record.value or b""))
            advance(len(chunk))


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """The input in pieces as they come, and b"" at its end.

    A pipe or terminal is read only when it has something, so that records already read are sent
    while the next ones are awaited.
    """
    fd = file.fileno()
    loop = asyncio.get_running_loop()
    mode = os.fstat(fd).st_mode
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
    while True:
        if waits:
            readable = asyncio.Event()
            loop.add_reader(fd, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(fd)
        else:
            await asyncio.sleep(0)  # let the producer send
        chunk = os.read(fd, _CHUNK_SIZE_BYTES)
        yield chunk
        if not chunk:
            return


@contextmanager
def _progress(file: BinaryIO, label: str, summary: _Summary) -> Iterator[Callable[[int], None]]:
    """A progress bar over a file's bytes, if a person watches and its size is known.

    Of a pipe what was read so far is shown; who types sees what he types.
    """
    status = os.fstat(file.fileno())
    if not (stat.S_ISREG(status.st_mode) and status.st_size and sys.stderr.isatty()):
        meter = Meter(shows=not os.isatty(file.fileno()))

        def advance(_: int) -> None:
            meter.add(summary.records - meter.records, summary.value_bytes - meter.value_bytes)

        try:
            yield advance
        finally:
            meter.clear()
        return
    with click.progressbar(length=status.st_size, label=label, file=sys.stderr) as bar:
        yield bar.update


@dataclass(slots=True)
class _Summary:
    """Counts what was sent, and keeps each partition's first and last delivery."""

    topic: str
    records: int = 0
    value_bytes: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, tuple[Delivery, Delivery]] = field(default_factory=dict)
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, delivery: Delivery, value_bytes: int) -> None:
        partition = delivery.partition
        self.records += 1
        self.value_bytes += value_bytes
        self.counts[partition] = self.counts.get(partition, 0) + 1
        self.ends[partition] = (self.ends.get(partition, (delivery,))[0], delivery)

    async def resolve(self) -> None:
        """Learns the offsets, once everything is flushed."""
        for partition, (first, last) in sorted(self.ends.items()):
            self.offsets[partition] = ((await first).offset, (await last).offset)

    def show(self, output: str) -> None:
        if output == "json":
            echo_json(
                {
                    "topic": self.topic,
                    "records": self.records,
                    "value_bytes": self.value_bytes,
                    "partitions": [
                        {
                            "partition": partition,
                            "records": self.counts[partition],
                            "first_offset": first,
                            "last_offset": last,
                        }
                        for partition, (first, last) in self.offsets.items()
                    ],
                }
            )
            return
        places = [
            f"partition {partition}"
            + (f" at offset {first}" if first >= 0 else "")
            + (f" to {last}" if last > first >= 0 else "")
            for partition, (first, last) in self.offsets.items()
        ]
        if len(places) > _PARTITIONS_SHOWN:
            places = [f"{len(places)} partitions"]
        click.echo(
            f"wrote {counted(self.records, 'record')} to {self.topic}"
            + (": " if places else "")
            + ", ".join(places),
            err=True,
        )
