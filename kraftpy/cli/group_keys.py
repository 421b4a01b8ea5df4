"""Which keys of a partition are whose: `kraftpy group ranges`, `group owner`, `describe --keys`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    MAX_PARTITIONS,
    TEXT,
    Failure,
    Scope,
    echo_json,
    echo_table,
    group_failure,
    output_option,
    run_client,
    scope_option,
    table_lines,
    timeout_option,
)
from kraftpy.cli.group_offsets import in_scope, partitions_in
from kraftpy.client.group_admin import CommittedOffset, GroupAdmin
from kraftpy.client.group_info import GroupInfo, GroupMember
from kraftpy.client.group_shares import Share, next_of, shares_of, slice_text
from kraftpy.client.offsets import Partition
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.key_hash import SLOTS, slot_of


class ShareRow(NamedTuple):
    """A share of a partition, and how far its owner is with it; None where nobody knows."""

    partition: Partition
    share: Share
    next: int | None
    end: int | None

    @property
    def lag(self) -> int | None:
        if self.next is None or self.end is None:
            return None
        return max(0, self.end - self.next)


def share_rows(
    info: GroupInfo, committed: Mapping[Partition, CommittedOffset], ends: Mapping[Partition, int]
) -> list[ShareRow]:
    """The shares of a group by partition and slot."""
    rows = []
    for name, shares in shares_of(info).items():
        offset = committed.get(name)
        for share in shares:
            following = None
            if offset is not None:
                following = next_of(share.low, share.high, offset.offset, offset.ranges)
            rows.append(ShareRow(name, share, following, ends.get(name)))
    return rows


def share_lines(rows: Sequence[ShareRow]) -> list[str]:
    """A table of them."""
    header = ("TOPIC", "PARTITION", "SLOTS", "PART", "NEXT", "END", "LAG", "MEMBER", "HOST")
    cells = [
        (
            *row.partition,
            slice_text(row.share.low, row.share.high),
            f"{_part(row.share):.1%}",
            *("-" if each is None else each for each in (row.next, row.end, row.lag)),
            _owner(row.share.owner, row.share.last_owner),
            _host(row.share.owner),
        )
        for row in rows
    ]
    return table_lines(header, cells)


def shares_as_json(rows: Sequence[ShareRow]) -> list[dict[str, Any]]:
    """The same for programs; `first` and `last` are slots, of which there are 65,536."""
    return [
        {
            "topic": row.partition[0],
            "partition": row.partition[1],
            **_slots(row.share),
            "next": row.next,
            "end": row.end,
            "lag": row.lag,
            "member": row.share.owner and row.share.owner.id,
            "host": row.share.owner and _host(row.share.owner),
            "draining": row.share.last_owner and row.share.last_owner.id,
        }
        for row in rows
    ]


def _slots(share: Share) -> dict[str, int]:
    return {"first_slot": slot_of(share.low), "last_slot": slot_of(share.high)}


def _part(share: Share) -> float:
    return (slot_of(share.high) - slot_of(share.low) + 1) / SLOTS


def _owner(owner: GroupMember | None, last_owner: GroupMember | None) -> str:
    if owner is not None:
        return owner.id
    return "nobody" if last_owner is None else f"draining from {last_owner.id}"


def _host(member: GroupMember | None) -> str:
    """The place that the member says it shares with others, or else its address."""
    if member is None:
        return "-"
    said = member.sharing.share_host if member.sharing is not None else ""
    return said or member.host or "-"


@click.command()
@click.argument("name", type=TEXT, metavar="GROUP")
@scope_option("Only of this topic. Repeatable.")
@brokers_option
@timeout_option
@output_option
def ranges(
    name: str, scopes: Sequence[Scope], brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """Show what a group has done beyond the offsets that it has committed.

    Of the records with keys in SLOTS, FIRST to LAST are done. SLOTS are of the hash of the key, 0
    to 65535; slices that don't end with a slot are shown as hashes. What lies below OFFSET is done
    for all keys.

    \b
    kraftpy group ranges kitchen -t orders
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)
            try:
                committed = await admin.committed(name, ranges=True)
                if not committed:
                    await admin.describe_group(name)
                served = await admin.serves_claims(name)
            except KafkaError as error:
                raise group_failure(name, error) from None
        found = [
            (partition, each.offset, claim)
            for partition, each in committed.items()
            if in_scope(partition, scopes)
            for claim in each.ranges
        ]
        if output == "json":
            echo_json(
                [
                    {
                        "group": name,
                        "topic": topic,
                        "partition": partition,
                        "offset": offset,
                        "low": claim.low,
                        "high": claim.high,
                        "first": claim.first,
                        "last": claim.last,
                    }
                    for (topic, partition), offset, claim in found
                ]
            )
        elif found:
            rows = [
                (*partition, offset, slice_text(claim.low, claim.high), claim.first, claim.last)
                for partition, offset, claim in found
            ]
            echo_table(("TOPIC", "PARTITION", "OFFSET", "SLOTS", "FIRST", "LAST"), rows)
        elif served:
            click.echo(
                f"group {name!r} has done nothing beyond its offsets there: "
                f"`kraftpy group offsets show {name}`",
                err=True,
            )
        else:
            click.echo(
                f"the coordinator of group {name!r} keeps no ranges, offsets alone "
                f"(the feature kraftpy.cooperative): `kraftpy group offsets show {name}`",
                err=True,
            )

    run_client(run())


@click.command()
@click.argument("name", type=TEXT, metavar="GROUP")
@click.argument("topic", type=TEXT)
@click.argument("key", type=TEXT)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(0, MAX_PARTITIONS - 1),
    help="Where the key is, if its producers don't place keys as Kafka's do.",
)
@brokers_option
@timeout_option
@output_option
def owner(
    name: str,
    topic: str,
    key: str,
    partition: int | None,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Show which member of a group has the records of a key.

    \b
    kraftpy group owner kitchen orders 'table 4'

    Ends with exit code 1 when nobody has them.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)
            await partitions_in(cluster, [Scope(topic, () if partition is None else (partition,))])
            try:
                found = await admin.owner_of(name, topic, key.encode(), partition=partition)
            except KafkaError as error:
                raise group_failure(name, error) from None
        number, slot = found.partition[1], slot_of(found.hash)
        if output == "json":
            echo_json(
                {
                    "group": name,
                    "topic": topic,
                    "partition": number,
                    "hash": found.hash,
                    "slot": slot,
                    "member": found.owner and found.owner.id,
                    "client": found.owner and found.owner.client_id,
                    "host": found.owner and _host(found.owner),
                    "draining": found.last_owner and found.last_owner.id,
                }
            )
        elif found.owner is not None:
            row = (number, slot, found.owner.id, found.owner.client_id or "-", _host(found.owner))
            echo_table(("PARTITION", "SLOT", "MEMBER", "CLIENT", "HOST"), [row])
        if found.owner is None:
            raise Failure(
                f"nobody of group {name!r} has slot {slot} of {topic}-{number} now"
                + (f"; {found.last_owner.id} has given it up" if found.last_owner else "")
                + f". `kraftpy group describe {name} --keys` shows what its members have",
                EXIT_BROKER_ERROR,
            )

    run_client(run())
