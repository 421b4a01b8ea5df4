"""`kraftpy produce`: lines, or records in a format, from a file or stdin into a topic."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
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
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import COMPRESSION_NAMES
from kraftpy.wording import counted

_CHUNK_SIZE_BYTES = 256 * 1024
_PARTITIONS_SHOWN = 8
_SETTLED_EVERY = 50_000  # of so many records it is remembered which they are
# A leader answers with these for a batch that is in its log, and may come to be in all of them.
_MAYBE_WRITTEN = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)


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

    A topic that does not exist is created if the broker allows it. Ctrl-C and SIGTERM end it when
    what was read is written. One that is refused doesn't keep those behind it from being written.

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
        async with brokers.connect(timeout_ms) as cluster:
            try:
                await cluster.topic(topic, auto_create=True)
            except KafkaError as error:
                raise topic_failure(topic, error) from None
            async with Producer(
                cluster,
                acks=-1 if acks == "all" else int(acks),
                idempotent=acks == "all",
                compression=compression,
                delivery_timeout_ms=timeout_ms,
            ) as producer:
                try:
                    await _produce(producer, file, reader, defaults, summary, output)
                except asyncio.CancelledError:  # Ctrl-C: what was read is sent, and told
                    await _finish(producer, summary, output)
                    raise

    run_client(run(), hears_sigterm=True)
    summary.show(output)


async def _produce(
    producer: Producer[bytes, bytes],
    file: BinaryIO,
    reader: RecordReader,
    defaults: InputRecord,
    summary: _Summary,
    output: str,
) -> None:
    """Writes the input; a `Failure` says what of it is not, and what is."""
    refused: Exception | None = None
    try:
        await _send_all(producer, file, reader, defaults, summary)
    except (FormatError, UnknownPartitionError, ConnectionError, KafkaError) as error:
        if isinstance(error, ConnectionError) and not summary.records:
            raise
        refused = error  # what stands before it has been accepted and is not taken back
    await _settle(producer, summary)
    failure = summary.failure(refused)
    if failure is not None:
        if output == "json":
            summary.show(output)
        raise failure


async def _settle(producer: Producer[bytes, bytes], summary: _Summary) -> None:
    """Waits until it is known what became of all that was sent."""
    try:
        await producer.flush()
    except (ConnectionError, KafkaError):
        await summary.settle(all_written=False)
    else:
        await summary.settle(all_written=True)


async def _finish(producer: Producer[bytes, bytes], summary: _Summary, output: str) -> None:
    click.echo(err=True)  # behind what the terminal shows for Ctrl-C
    await _settle(producer, summary)
    failure = summary.failure(None)
    if failure is not None:
        click.echo(f"kraftpy: interrupted. {failure.message}", err=True)
    if failure is None or output == "json":
        summary.show(output)


async def _send_all(
    producer: Producer[bytes, bytes],
    file: BinaryIO,
    reader: RecordReader,
    defaults: InputRecord,
    summary: _Summary,
) -> None:
    with _progress(file, summary) as advance:
        async for chunk in _chunks(file):
            for record in reader.feed(chunk) if chunk else reader.finish():
                partition = record.partition
                delivery = await producer.send(
                    summary.topic,
                    record.value,
                    key=defaults.key if record.key is None else record.key,
                    partition=defaults.partition if partition is None else partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=[*(defaults.headers or ()), *(record.headers or ())],
                )
                summary.add(delivery, len(record.value or b""))
                if len(summary.on_their_way) >= _SETTLED_EVERY:
                    await _settle(producer, summary)
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
def _progress(file: BinaryIO, summary: _Summary) -> Iterator[Callable[[int], None]]:
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
    with click.progressbar(length=status.st_size, label=summary.topic, file=sys.stderr) as bar:
        yield bar.update


@dataclass(slots=True)
class _Summary:
    """Counts what was read, and what of it was written where."""

    topic: str
    records: int = 0
    value_bytes: int = 0
    written: int = 0
    written_value_bytes: int = 0
    first_failed: tuple[int, ConnectionError | KafkaError] | None = None
    places: dict[int, _Place] = field(default_factory=dict)
    on_their_way: list[tuple[Delivery, int]] = field(default_factory=list)

    def add(self, delivery: Delivery, value_bytes: int) -> None:
        self.records += 1
        self.value_bytes += value_bytes
        self.on_their_way.append((delivery, value_bytes))

    async def settle(self, *, all_written: bool) -> None:
        """Learns what became of what is on its way, once it is flushed."""
        written = self.on_their_way if all_written else await self._written()
        self.on_their_way = []
        self.written += len(written)
        by_partition: dict[int, list[Delivery]] = {}
        for delivery, value_bytes in written:
            self.written_value_bytes += value_bytes
            by_partition.setdefault(delivery.partition, []).append(delivery)
        for partition, deliveries in by_partition.items():
            place = self.places.get(partition)
            if place is None:
                place = self.places[partition] = _Place((await deliveries[0]).offset)
            place.last = (await deliveries[-1]).offset
            place.records += len(deliveries)

    async def _written(self) -> list[tuple[Delivery, int]]:
        written = []
        for number, each in enumerate(
            self.on_their_way, start=self.records - len(self.on_their_way) + 1
        ):
            try:
                await each[0]
            except (ConnectionError, KafkaError) as error:
                self.first_failed = self.first_failed or (number, error)
            else:
                written.append(each)
        return written

    def failure(self, refused: Exception | None) -> Failure | None:
        """What went wrong, if something did; `refused` is why no more was read."""
        if self.first_failed is None:
            return None if refused is None else self._refused(refused)
        number, error = self.first_failed
        if isinstance(error, ConnectionError):
            return Failure(
                f"{error}. Of {counted(self.records, 'record')} read not all are known to be "
                f"written ({self.written} {'is' if self.written == 1 else 'are'}): sending the "
                "others again may write some twice",
                EXIT_UNREACHABLE,
            )
        left = self.records - self.written
        what = f"Record {number} of the input was"
        if left > 1:
            what = f"{left} records were, the first of them record {number} of the input,"
        what += " not known to be written" if error.code in _MAYBE_WRITTEN else " not written"
        what += f", {counted(self.written, 'other')} {'was' if self.written == 1 else 'were'}"
        if refused is not None:
            what += f"; and nothing was read behind record {self.records}: {refused}"
        return Failure(
            f"{topic_failure(self.topic, error).message}{_size_hint(self.topic, error)}. {what}",
            EXIT_BROKER_ERROR,
        )

    def _refused(self, error: Exception) -> Failure:
        if isinstance(error, ConnectionError):
            text, code = str(error), EXIT_UNREACHABLE
        elif isinstance(error, KafkaError):
            text, code = topic_failure(self.topic, error).message, EXIT_BROKER_ERROR
        else:
            text, code = str(error), EXIT_USAGE
        return Failure(f"{text}. Written before it: {self.written}", code)

    def show(self, output: str) -> None:
        offsets = sorted(self.places.items())
        if output == "json":
            document: dict[str, Any] = {
                "topic": self.topic,
                "records": self.written,
                "value_bytes": self.written_value_bytes,
                "partitions": [
                    {
                        "partition": partition,
                        "records": place.records,
                        "first_offset": place.first,
                        "last_offset": place.last,
                    }
                    for partition, place in offsets
                ],
            }
            if self.first_failed is not None:
                number, error = self.first_failed
                code = error.code.name if isinstance(error, KafkaError) else None
                document["not_written"] = self.records - self.written
                document["first_not_written"] = number
                document |= {"error": code, "message": str(error)}
            echo_json(document)
            return
        places = [
            f"partition {partition}"
            + (f" at offset {place.first}" if place.first >= 0 else "")
            + (f" to {place.last}" if place.last > place.first >= 0 else "")
            for partition, place in offsets
        ]
        if len(places) > _PARTITIONS_SHOWN:
            places = [f"{len(places)} partitions"]
        click.echo(
            f"wrote {counted(self.written, 'record')} to {self.topic}"
            + (": " if places else "")
            + ", ".join(places),
            err=True,
        )


@dataclass(slots=True)
class _Place:
    """What was written to a partition: how much, and its first and last offset."""

    first: int
    last: int = -1
    records: int = 0


def _size_hint(topic: str, error: KafkaError) -> str:
    if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
        return ""
    return f". `kraftpy topic alter {topic} -c max.message.bytes=BYTES` lets larger ones in"
