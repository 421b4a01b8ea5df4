"""`kraftpy consume`: records of a topic to stdout, from an offset on.

`-o` takes an offset, as in kcat and rpk, and also `json`, as in every other command here. What has
been fetched is written at once, so a reader at the other end of a pipe never waits for a buffer.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

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
from kraftpy.cli.offset_spec import OFFSET_HELP, OffsetError, OffsetSpec, parse_offset, resolve
from kraftpy.client.cluster import Cluster
from kraftpy.client.fetcher import Fetched, Fetcher
from kraftpy.client.offsets import EARLIEST, LATEST, Partition, list_offsets
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.records import Record

_JSON_HELP = """\b
With -o json each line is an object with topic, partition, offset, timestamp
(milliseconds), key, value and headers: [[name, value], ...].  Bytes that are
not UTF-8 become {"base64": ...}.
"""

_RANGES_SHOWN = 4
_Formatter = Callable[[str, int, Record], bytes]


@click.command(epilog="\n\n".join((OFFSET_HELP, _JSON_HELP, FORMAT_HELP)))
@click.argument("topic", type=TEXT)
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
@click.option("-f", "--format", "format_text", help=r"How to write a record.  [default: %v\n]")
@brokers_option
@timeout_option
def command(
    topic: str,
    offsets: Sequence[str],
    num: int | None,
    partitions: Sequence[int],
    format_text: str | None,
    brokers: Brokers,
    timeout_ms: int,
) -> None:
    """Write the records of TOPIC to stdout, and follow it until Ctrl-C.

    \b
    kraftpy consume orders                 all records, then new ones
    kraftpy consume orders -o -10:end      the last 10 of each partition, then stop
    kraftpy consume orders -o end -n 1     wait for the next one
    kraftpy consume orders -f '%p %o %k %v\\n'
    """
    spec, as_json = _parse_offsets(offsets)
    if as_json and format_text is not None:
        raise click.UsageError("-o json and -f exclude each other")
    try:
        write = _json_line if as_json else record_formatter(format_text or r"%v\n")
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint="'-f' / '--format'") from None

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            try:
                await _consume(cluster, topic, partitions, spec, num, write)
            except KafkaError as error:
                raise topic_failure(topic, error) from None

    run_client(run())


def _parse_offsets(texts: Sequence[str]) -> tuple[OffsetSpec, bool]:
    """What `-o` was given: where to begin, and whether to write JSON."""
    specs = [text for text in texts if text != "json"]
    if len(specs) > 1:
        raise click.UsageError(f"one offset, please, not {' and '.join(specs)}")
    try:
        return parse_offset(specs[0] if specs else "start"), "json" in texts
    except OffsetError as error:
        raise click.BadParameter(str(error), param_hint="'-o' / '--offset'") from None


async def _consume(
    cluster: Cluster,
    topic: str,
    wanted: Sequence[int],
    spec: OffsetSpec,
    num: int | None,
    write: _Formatter,
) -> None:
    info = await cluster.topic(topic)
    for partition in wanted:
        if partition not in info.partitions:
            raise Failure(
                f"topic {topic!r} has no partition {partition}; "
                f"the last one is {max(info.partitions)}",
                EXIT_BROKER_ERROR,
            )
    names = [(topic, partition) for partition in wanted or info.partitions]
    if spec.kind == "exact":
        await _check_inside(cluster, names, spec.value)
    positions, now_ends = await resolve(cluster, names, spec)
    ends = now_ends if spec.until_end else None
    # Retention may delete what is still to be read; a follower goes on with what there is. An
    # offset that the user asked for must exist.
    reset = "none" if spec.kind == "exact" else "earliest"
    async with Fetcher(cluster, positions, auto_offset_reset=reset) as fetcher:
        _drop_finished(fetcher, ends)
        left = num
        while fetcher.positions:
            for fetched in await fetcher.poll():
                records = _until(fetched, ends)[:left]
                out = [write(fetched.topic, fetched.partition, record) for record in records]
                sys.stdout.buffer.write(b"".join(out))
                if left is not None:
                    left -= len(records)
                    if left == 0:
                        sys.stdout.buffer.flush()
                        return
            sys.stdout.buffer.flush()
            _drop_finished(fetcher, ends)


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
