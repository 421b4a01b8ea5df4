"""`kraftpy group seek`: where a group goes on, moved.

Rules:

* Nothing moves while the group has members: they would commit over it. The coordinator refuses
  that too, so a member that joins in between does no harm.
* What was shown as the old offset is what is replaced: a partition whose offset somebody else has
  changed meanwhile stays as it is and is reported.
* An offset outside the log is moved to its nearest end, and that is said.
* The text that was committed with an offset stays, unless --metadata or the file has another one.
* A share group is moved by where it begins: what it has done behind that is forgotten. It has no
  texts, and its coordinator compares nothing with what was shown.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    TEXT,
    Failure,
    Scope,
    echo_json,
    echo_table,
    group_failure,
    output_option,
    run_client,
    scope_option,
    timeout_option,
)
from kraftpy.cli.group_offsets import in_scope, partitions_in
from kraftpy.cli.offset_spec import OffsetSpec, Position, resolve
from kraftpy.cli.offsets_file import OffsetsFileError, WrittenOffset, offsets_csv, read_offsets
from kraftpy.client.cluster import Cluster
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.group_info import SHARE, GroupInfo
from kraftpy.client.offsets import (
    EARLIEST,
    LATEST,
    OffsetAndMetadata,
    Partition,
    by_topic,
    list_offsets,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import counted, printable

_FILE_MAX_BYTES = 64 * 1024 * 1024
_MEMBERS_NAMED = 5
_OFFSET_MAX = 2**63 - 1

_SEEK_HELP = """\b
Where to (--to), for each partition:
  start         the oldest record
  end           records from now on
  -10           the last 10
  +5            5 behind the oldest
  42            offset 42
  @1700000000000, @2023-11-14T22:13:20Z
                the first record at or after a time: milliseconds since 1970, or
                ISO 8601 (local time unless it names a zone)
  @-90m         the first record of the last 90 minutes; or s, h, d
"""


@click.command(epilog=_SEEK_HELP)
@click.argument("name", type=TEXT, metavar="GROUP")
@click.option("--to", "position", type=Position(), metavar="OFFSET", help="Where to, see below.")
@click.option(
    "--shift",
    type=click.IntRange(-_OFFSET_MAX, _OFFSET_MAX),
    metavar="N",
    help="N records on from where it is, or back: --shift -10.",
)
@click.option(
    "--file",
    type=click.File("rb"),
    metavar="FILE",
    help="To the offsets in a file: CSV as --export and Kafka's tools write it, or JSON.",
)
@click.option(
    "--metadata",
    type=TEXT,
    metavar="TEXT",
    help="The text to commit with each offset; '' for none.  [default: the one that is there, or "
    "in the file]",
)
@scope_option("Only this topic. Repeatable.  [default: all that the group has offsets of]")
@click.option("--dry-run", is_flag=True, help="Show what would change.")
@click.option(
    "--export",
    is_flag=True,
    help="Change nothing; write the offsets, now or as sought, as CSV (-o json: JSON) for --file.",
)
@brokers_option
@timeout_option
@output_option
def seek(
    name: str,
    position: OffsetSpec | None,
    shift: int | None,
    file: IO[bytes] | None,
    metadata: str | None,
    scopes: Sequence[Scope],
    dry_run: bool,
    export: bool,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Let a group go on from other offsets. It must have no members meanwhile.

    A share group begins there, and what it has done of the records behind is forgotten.

    \b
    kraftpy group seek kitchen --to start --dry-run
    kraftpy group seek kitchen --to @2026-01-31T12:00:00Z -t orders:0,1
    kraftpy group seek kitchen --shift -10
    kraftpy group seek kitchen --export > before.csv
    kraftpy group seek kitchen --file before.csv
    """
    ways = sum(way is not None for way in (position, shift, file))
    if ways > 1 or (not ways and not export):
        raise click.UsageError("give one of --to OFFSET, --shift N and --file FILE")
    if file is not None and scopes:
        raise click.UsageError("-t does not go with --file, which names the partitions itself")
    given = None if file is None else _read(file, name)

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)
            try:
                info = await _group(admin, name)
                is_share = _is_share(info, metadata)
                before = await _before(admin, name, is_share)
                if not ways:
                    _export(name, {n: o for n, o in before.items() if in_scope(n, scopes)}, output)
                    return
                offsets = await _plan(
                    cluster,
                    name,
                    {each: was.offset for each, was in before.items()},
                    position,
                    shift,
                    None if given is None else {each: to.offset for each, to in given.items()},
                    scopes,
                )
                plan = _with_texts(offsets, before, {} if is_share else given or {}, metadata)
                if export:
                    _export(name, plan, output)
                    return
                members = info if info is not None and info.members else None
                errors = {}
                if not members and not dry_run:
                    errors = await _carry_out(admin, name, plan, before, is_share)
            except KafkaError as error:
                raise group_failure(name, error) from None
        if members and not dry_run:
            raise _has_members(name, members)
        _show(plan, before, errors, output)
        if members:
            raise _has_members(name, members)
        if dry_run and output == "table":
            click.echo("nothing was changed: run it without --dry-run to seek", err=True)
        if errors:
            raise Failure(
                f"{len(errors)} of {counted(len(plan), 'partition')} could not be moved: run it "
                "again",
                EXIT_BROKER_ERROR,
            )

    run_client(run())


# -- what to do


def _read(file: IO[bytes], group_id: str) -> dict[Partition, WrittenOffset]:
    data = file.read(_FILE_MAX_BYTES + 1)
    try:
        if len(data) > _FILE_MAX_BYTES:
            raise OffsetsFileError(f"it is larger than {_FILE_MAX_BYTES} bytes")
        return read_offsets(data, group_id)
    except OffsetsFileError as error:
        raise click.BadParameter(
            f"{error}; `kraftpy group seek {group_id} --export` writes one", param_hint="'--file'"
        ) from None


async def _before(
    admin: GroupAdmin, name: str, is_share: bool
) -> dict[Partition, OffsetAndMetadata]:
    if is_share:
        starts = await admin.share_offsets(name)
        return {each: OffsetAndMetadata(start.offset) for each, start in starts.items()}
    committed = await admin.committed(name)
    return {
        each: OffsetAndMetadata(found.offset, found.metadata) for each, found in committed.items()
    }


def _with_texts(
    plan: Mapping[Partition, int],
    before: Mapping[Partition, OffsetAndMetadata],
    given: Mapping[Partition, WrittenOffset],
    metadata: str | None,
) -> dict[Partition, OffsetAndMetadata]:
    """The plan with the text of each: the one asked for, that of the file, or the old one."""
    found = {}
    for name, offset in plan.items():
        text = metadata
        if text is None and name in given:
            text = given[name].metadata
        if text is None:
            text = before[name].metadata if name in before else ""
        found[name] = OffsetAndMetadata(offset, text)
    return found


async def _plan(
    cluster: Cluster,
    name: str,
    before: Mapping[Partition, int],
    position: OffsetSpec | None,
    shift: int | None,
    given: Mapping[Partition, int] | None,
    scopes: Sequence[Scope],
) -> dict[Partition, int]:
    """The offset that each partition is to get, inside its log."""
    if given is not None:
        named = [Scope(topic, tuple(some)) for topic, some in by_topic(given).items()]
        partitions = await partitions_in(cluster, named)
    elif scopes or before:
        all_of_it = [Scope(topic, ()) for topic in dict.fromkeys(topic for topic, _ in before)]
        partitions = await partitions_in(cluster, scopes or all_of_it)
    else:
        raise Failure(
            f"group {name!r} has committed nothing: name the topics with -t", EXIT_BROKER_ERROR
        )
    if position is not None:
        wanted, _ = await resolve(cluster, partitions, position)
    elif given is not None:
        wanted = dict(given)
    else:
        assert shift is not None
        wanted = {each: before[each] + shift for each in partitions if each in before}
        if not wanted:
            raise Failure(
                f"group {name!r} has committed nothing there that could be shifted: use --to",
                EXIT_BROKER_ERROR,
            )
    return await _inside(cluster, wanted)


async def _inside(cluster: Cluster, wanted: Mapping[Partition, int]) -> dict[Partition, int]:
    """The offsets, those outside the log at its nearest end."""
    starts = await list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(wanted, LATEST))
    plan = {}
    for name, offset in sorted(wanted.items()):
        plan[name] = min(max(offset, starts[name]), ends[name])
        if plan[name] != offset:
            where = "before the start of" if offset < plan[name] else "behind the end of"
            click.echo(
                f"kraftpy: {offset} is {where} {name[0]}-{name[1]}: {plan[name]} is taken",
                err=True,
            )
    return plan


def _is_share(info: GroupInfo | None, metadata: str | None) -> bool:
    found = info is not None and info.type == SHARE
    if found and metadata is not None:
        raise click.UsageError("--metadata does not go with share groups, which keep no texts")
    return found


async def _group(admin: GroupAdmin, name: str) -> GroupInfo | None:
    try:
        return await admin.describe_group(name)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:  # the commit makes it
            return None
        raise


def _has_members(name: str, info: GroupInfo) -> Failure:
    named = [f"{printable(m.client_id or m.id)} at {m.host}" for m in info.members[:_MEMBERS_NAMED]]
    if len(info.members) > _MEMBERS_NAMED:
        named.append(f"{len(info.members) - _MEMBERS_NAMED} more")
    return Failure(
        f"group {name!r} is in use: first stop {', '.join(named)}. A member that was killed is "
        "gone when its session ends",
        EXIT_BROKER_ERROR,
    )


async def _carry_out(
    admin: GroupAdmin,
    name: str,
    plan: Mapping[Partition, OffsetAndMetadata],
    before: Mapping[Partition, OffsetAndMetadata],
    is_share: bool,
) -> dict[Partition, KafkaError]:
    if is_share:
        # Also where the offset stays: what was done behind it is to be forgotten.
        starts = {each: to.offset for each, to in plan.items()}
        return await admin.alter_share_offsets(name, starts)
    changed = {each: to for each, to in plan.items() if before.get(each) != to}
    expected = {each: before[each].offset if each in before else -1 for each in changed}
    errors = await admin.commit(name, changed, expected)
    for error in errors.values():
        if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
            raise error
    return errors


# -- output


def _export(name: str, offsets: Mapping[Partition, OffsetAndMetadata], output: str) -> None:
    if not offsets:  # a backup should not be empty without anybody hearing of it
        raise Failure(f"group {name!r} has committed nothing there", EXIT_BROKER_ERROR)
    if output == "json":
        echo_json(
            [
                {
                    "group": name,
                    "topic": topic,
                    "partition": partition,
                    "offset": each.offset,
                    "metadata": each.metadata,
                }
                for (topic, partition), each in offsets.items()
            ]
        )
    else:
        sys.stdout.write(offsets_csv(name, offsets))


def _show(
    plan: Mapping[Partition, OffsetAndMetadata],
    before: Mapping[Partition, OffsetAndMetadata],
    errors: Mapping[Partition, KafkaError],
    output: str,
) -> None:
    if output == "json":
        echo_json([_as_json(each, plan, before, errors) for each in plan])
        return
    header = ["TOPIC", "PARTITION", "FROM", "TO"]
    rows: list[list[object]] = [
        [*each, before[each].offset if each in before else "-", to.offset]
        for each, to in plan.items()
    ]
    if any(to.metadata or (each in before and before[each].metadata) for each, to in plan.items()):
        header.append("METADATA")
        for to, row in zip(plan.values(), rows, strict=True):
            row.append(to.metadata)
    if errors:
        header.append("ERROR")
        for each, row in zip(plan, rows, strict=True):
            row.append(errors[each].message if each in errors else "")
    echo_table(header, rows)


def _as_json(
    name: Partition,
    plan: Mapping[Partition, OffsetAndMetadata],
    before: Mapping[Partition, OffsetAndMetadata],
    errors: Mapping[Partition, KafkaError],
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic": name[0],
        "partition": name[1],
        "from": before[name].offset if name in before else None,
        "to": plan[name].offset,
        "metadata": plan[name].metadata,
    }
    if name in errors:
        row |= {"error": errors[name].code.name, "message": errors[name].message}
    return row
