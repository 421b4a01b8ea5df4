"""`kraftpy group`: consumer groups, of the classic and of the consumer protocol (KIP-848) alike.

Share groups (KIP-932) are listed and deleted as well.

What describes groups is in `group_describe` and `group_keys`, what changes their offsets in
`group_seek` and `group_offsets`.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    TEXT,
    change_each,
    echo_json,
    echo_table,
    group_failure,
    output_option,
    run_client,
    timeout_option,
)
from kraftpy.cli.group_describe import describe
from kraftpy.cli.group_keys import owner, ranges
from kraftpy.cli.group_offsets import offsets
from kraftpy.cli.group_seek import seek
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.group_info import CLASSIC, CONSUMER, SHARE

_STATES = (
    "Stable",
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Dead",
)


@click.group()
def command() -> None:
    """List, describe and delete consumer groups, and move them to other offsets."""


command.add_command(describe)
command.add_command(ranges)
command.add_command(owner)
command.add_command(seek)
command.add_command(offsets)


@command.command(name="list")
@click.option(
    "-s",
    "--state",
    "states",
    type=click.Choice(_STATES, case_sensitive=False),
    multiple=True,
    help="Only groups in this state. Repeatable.",
)
@click.option(
    "--type",
    "types",
    type=click.Choice([CLASSIC, CONSUMER, SHARE], case_sensitive=False),
    multiple=True,
    help="Only groups of this protocol. Repeatable.",
)
@brokers_option
@timeout_option
@output_option
def list_groups(
    states: Sequence[str], types: Sequence[str], brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """List groups.

    TYPE is the protocol that the group rebalances by: classic, or consumer (KIP-848); or share, of
    groups whose members share the records of partitions (KIP-932).
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)
            listed = await admin.list_groups(states=states, types=types)
        if output == "json":
            echo_json(
                [
                    {
                        "group": group.id,
                        "type": group.type,
                        "state": group.state,
                        "protocol_type": group.protocol_type,
                        "coordinator": group.coordinator,
                    }
                    for group in listed
                ]
            )
        elif listed:
            rows = [(group.id, group.type, group.state, group.coordinator) for group in listed]
            echo_table(("GROUP", "TYPE", "STATE", "COORDINATOR"), rows)
        else:
            click.echo("no such groups" if states or types else "no groups yet", err=True)

    run_client(run())


@command.command()
@click.argument("names", type=TEXT, nargs=-1, required=True, metavar="GROUP...")
@brokers_option
@timeout_option
@output_option
def delete(names: Sequence[str], brokers: Brokers, timeout_ms: int, output: str) -> None:
    """Delete groups that have no members, with all their offsets, without asking.

    Of share groups, too.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)

            async def delete_one(name: str) -> str:
                await admin.delete_group(name)
                return "deleted"

            await change_each("group", names, delete_one, group_failure, output)

    run_client(run())
