"""`kraftpy group describe`: who is in a group, what each member reads, and how far behind it is.

The lag of a partition is what lies between the committed offset and the high watermark, which is
asked for after the offsets: it is never too small, and never negative while records come.
A partition that is assigned but has no committed offset has no lag, because where its consumer
begins is known to the consumer alone; such partitions are counted beside the group's lag.

With --keys the shares of each partition are shown, too, and the lag of each: that of what isn't
claimed for all its hashes.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    TEXT,
    Failure,
    Seconds,
    echo_json,
    group_failure,
    output_option,
    run_client,
    table_lines,
    timeout_option,
)
from kraftpy.cli.group_keys import ShareRow, share_lines, share_rows, shares_as_json
from kraftpy.cli.offset_spec import known_offsets
from kraftpy.client.cluster import Cluster
from kraftpy.client.group_admin import CommittedOffset, GroupAdmin, ShareStart
from kraftpy.client.group_info import SHARE, GroupInfo
from kraftpy.client.offsets import LATEST, Partition, by_topic
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import counted

_CLEAR_SCREEN = "\x1b[H\x1b[J"


@dataclass(frozen=True, slots=True)
class _Row:
    """A partition that the group reads or has an offset of; None where there is nothing to say."""

    topic: str
    partition: int
    committed: CommittedOffset | None
    end: int | None
    member_ids: tuple[str, ...]
    start: ShareStart | None = None
    """Of a share group, whose lag its coordinator tells."""

    @property
    def member_id(self) -> str | None:
        """Its only reader; of several that have parts of it the first one."""
        return self.member_ids[0] if self.member_ids else None

    @property
    def lag(self) -> int | None:
        if self.start is not None:
            return self.start.lag
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed.offset)

    @property
    def end_unknown(self) -> bool:
        return self.committed is not None and self.end is None


@dataclass(frozen=True, slots=True)
class _Described:
    """A group with its partitions; by topic and number, or the largest lag first."""

    info: GroupInfo
    rows: list[_Row]
    by_lag: bool
    shares: list[ShareRow] | None

    def topics(self) -> list[tuple[str, int, int | None]]:
        """(name, partitions, lag) of each topic; no lag if that of one partition is not known."""
        rows_of: dict[str, list[_Row]] = {}
        for row in self.rows:
            rows_of.setdefault(row.topic, []).append(row)
        topics = [(topic, len(rows), _total(rows)) for topic, rows in rows_of.items()]
        if self.by_lag:
            topics.sort(key=lambda topic: _largest_first(topic[2]))
        return topics

    def lag(self) -> int | None:
        return _total(self.rows)

    def without_offset(self) -> int:
        """How many partitions are read, but have no committed offset: the lag leaves them out."""
        return sum(row.committed is None for row in self.rows)


def _largest_first(lag: int | None) -> int:
    return 1 if lag is None else -lag


def _total(rows: Iterable[_Row]) -> int | None:
    total = 0
    for row in rows:
        if row.end_unknown:
            return None
        total += row.lag or 0
    return total


@click.command()
@click.argument("names", type=TEXT, nargs=-1, metavar="[GROUP]...")
@click.option(
    "--sort",
    type=click.Choice(["topic", "lag"]),
    default="topic",
    show_default=True,
    help="Order of the partitions and topics; with lag the largest comes first.",
)
@click.option("--keys", is_flag=True, help="Which keys of each partition are whose, too.")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option(
    "--interval",
    "interval_ms",
    type=Seconds(),
    default=2,
    show_default=True,
    metavar="SECONDS",
    help="Pause of --watch.",
)
@brokers_option
@timeout_option
@output_option
def describe(
    names: Sequence[str],
    sort: str,
    keys: bool,
    watch: bool,
    interval_ms: int,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Show the members, assignment and lag of groups, by default of all.

    LAG counts the records between OFFSET, where the group goes on, and END, the high watermark;
    "-" stands where nothing is committed or the end is not known. Of a share group OFFSET is the
    first record that isn't done, and LAG leaves out what is done behind it.

    With --keys each partition's SLOTS (of the hash of the key, 0 to 65535) stand with the member
    that has them. NEXT is the first offset that isn't done in all of them, and LAG what is left
    from there on, records of other slots included. "draining" are slots that wait for who had
    them to join again; then another member gets them.

    \b
    kraftpy group describe kitchen
    kraftpy group describe --sort lag --watch
    kraftpy group describe kitchen --keys

    Ends with exit code 1 when a group does not exist, or when a lag cannot be told because a
    partition has no leader. --watch redraws a terminal; elsewhere it writes a block of lines each
    time, or with -o json one line.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)
            while True:
                described = await _describe(cluster, admin, names, sort, keys)
                _show(described, output, watch)
                if not watch:
                    _check_complete(described)
                    return
                await asyncio.sleep(interval_ms / 1000)

    run_client(run())


async def _describe(
    cluster: Cluster, admin: GroupAdmin, names: Sequence[str], sort: str, keys: bool
) -> list[_Described]:
    found: list[tuple[GroupInfo, dict[Partition, CommittedOffset]]] = []
    starts: dict[str, dict[Partition, ShareStart]] = {}
    for name in names or [group.id for group in await admin.list_groups()]:
        try:
            info = await admin.describe_group(name)
            if info.type == SHARE:
                starts[name] = await admin.share_offsets(name)
                found.append((info, {p: _as_commit(each) for p, each in starts[name].items()}))
            else:
                found.append((info, await admin.committed(name, ranges=keys)))
        except KafkaError as error:
            if names or error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise group_failure(name, error) from None
    partitions = set[Partition]()
    for info, committed in found:
        partitions.update(committed, *(member.partitions for member in info.members))
    ends = await _ends(cluster, sorted(partitions))
    by_lag = sort == "lag"
    return [
        _Described(
            info,
            _rows(info, committed, ends, starts.get(info.id, {}), by_lag),
            by_lag,
            share_rows(info, committed, ends) if keys else None,
        )
        for info, committed in found
    ]


def _as_commit(start: ShareStart) -> CommittedOffset:
    return CommittedOffset(start.offset, start.leader_epoch, "")


async def _ends(cluster: Cluster, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """The high watermarks that can be told."""
    if not partitions:
        return {}
    await cluster.refresh(sorted({topic for topic, _ in partitions}))
    led = [
        (topic, number)
        for topic, number in partitions
        if topic in cluster.topics
        and number in cluster.topics[topic].partitions
        and cluster.topics[topic].partitions[number].leader >= 0
    ]
    return await known_offsets(cluster, led, LATEST)


def _rows(
    info: GroupInfo,
    committed: Mapping[Partition, CommittedOffset],
    ends: Mapping[Partition, int],
    starts: Mapping[Partition, ShareStart],
    by_lag: bool,
) -> list[_Row]:
    owners: dict[Partition, list[str]] = {}
    for member in info.members:
        for name in member.partitions:
            owners.setdefault(name, []).append(member.id)
    rows = [
        _Row(
            *name,
            committed.get(name),
            ends.get(name),
            tuple(owners.get(name, ())),
            starts.get(name),
        )
        for name in sorted(owners.keys() | committed.keys())
    ]
    if by_lag:
        rows.sort(key=lambda row: _largest_first(row.lag))
    return rows


def _check_complete(described: Iterable[_Described]) -> None:
    unknown = sorted(
        {
            f"{row.topic}-{row.partition}"
            for each in described
            for row in each.rows
            if row.end_unknown
        }
    )
    if unknown:
        raise Failure(
            f"the end of {', '.join(unknown)} is not known, so the lag isn't either: no leader "
            "answers. `kraftpy cluster health` says more",
            EXIT_BROKER_ERROR,
        )


# -- output


def _show(described: Sequence[_Described], output: str, watch: bool) -> None:
    if output == "json":
        echo_json([_as_json(each) for each in described])
        return
    lines = _joined(_lines(each) for each in described) or ["no groups yet"]
    if not watch:
        click.echo("\n".join(lines), err=not described)
        return
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().lines - 3
        if len(lines) > room > 0:
            lines[room:] = [f"... {counted(len(lines) - room, 'line')} more"]
        click.echo(_CLEAR_SCREEN + "\n".join([now, "", *lines]))
    else:
        click.echo("\n".join([now, *lines, ""]))


def _joined(blocks: Iterable[list[str]]) -> list[str]:
    """Blocks of lines, an empty line between them."""
    lines: list[str] = []
    for block in blocks:
        lines += ["", *block] if lines else block
    return lines


def _lines(each: _Described) -> list[str]:
    blocks = [_head(each)]
    if each.info.members:
        rows: list[tuple[object, ...]] = [
            (
                member.id + (f" ({member.instance_id})" if member.instance_id else ""),
                member.client_id or "-",
                member.host or "-",
                member.type,
                _reads(member.partitions, member.target),
            )
            for member in each.info.members
        ]
        blocks.append(table_lines(("MEMBER", "CLIENT", "HOST", "TYPE", "READS"), rows))
    if each.rows:
        rows = [
            (
                row.topic,
                row.partition,
                "-" if row.committed is None else row.committed.offset,
                _or_dash(row.end),
                _or_dash(row.lag),
                _readers(row.member_ids),
            )
            for row in each.rows
        ]
        header = ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER")
        blocks.append(table_lines(header, rows))
    if each.shares is not None:
        blocks.append(share_lines(each.shares))
    topics = each.topics()
    if len(topics) > 1:
        rows = [(topic, count, _or_dash(lag)) for topic, count, lag in topics]
        blocks.append(table_lines(("TOPIC", "PARTITIONS", "LAG"), rows))
    return _joined(blocks)


def _head(each: _Described) -> list[str]:
    info, lag, broker = each.info, each.lag(), each.info.coordinator
    missing = each.without_offset()
    return [
        f"{info.id}: {info.state}, {counted(len(info.members), 'member')}, "
        f"lag {'unknown' if lag is None else lag}"
        + (f", {counted(missing, 'partition')} without an offset" if missing else ""),
        f"  {info.type} protocol"
        + (f", assignor {info.assignor}" if info.assignor else "")
        + (f", epoch {info.epoch}" if info.epoch is not None else "")
        + f", coordinator {broker.id} ({broker.host}:{broker.port})",
    ]


def _or_dash(value: int | None) -> object:
    return "-" if value is None else value


def _readers(ids: Sequence[str]) -> str:
    return "-" if not ids else ids[0] if len(ids) == 1 else f"{len(ids)} members (--keys)"


def _reads(now: Sequence[Partition], target: Sequence[Partition] | None) -> str:
    """`orders:0,1 payments:3`, and behind an arrow what it is going to be."""
    text = _ranges(now)
    return text if target is None or set(target) == set(now) else f"{text} -> {_ranges(target)}"


def _ranges(partitions: Iterable[Partition]) -> str:
    topics = by_topic(partitions).items()
    return " ".join(f"{topic}:{','.join(map(str, n))}" for topic, n in topics) or "-"


def _as_json(each: _Described) -> dict[str, Any]:
    info = each.info
    shares = {} if each.shares is None else {"shares": shares_as_json(each.shares)}
    return {
        "group": info.id,
        "type": info.type,
        "state": info.state,
        "assignor": info.assignor,
        "epoch": info.epoch,
        "assignment_epoch": info.assignment_epoch,
        "coordinator": info.coordinator.id,
        "members": [
            {
                "member": member.id,
                "type": member.type,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.host,
                "topics": member.topics,
                "regex": member.regex,
                "epoch": member.epoch,
                "partitions": [_name(*name) for name in member.partitions],
                "target": None if member.target is None else [_name(*n) for n in member.target],
            }
            for member in info.members
        ],
        "partitions": [
            {
                **_name(row.topic, row.partition),
                "offset": None if row.committed is None else row.committed.offset,
                "end": row.end,
                "lag": row.lag,
                "member": row.member_id,
            }
            for row in each.rows
        ],
        **shares,
        "topics": [
            {"topic": topic, "partitions": count, "lag": lag} for topic, count, lag in each.topics()
        ],
        "lag": each.lag(),
        "without_offset": each.without_offset(),
    }


def _name(topic: str, partition: int) -> dict[str, Any]:
    return {"topic": topic, "partition": partition}
