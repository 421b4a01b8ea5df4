"""Steps of the schedules that voters are put through."""

from __future__ import annotations

from kraftpy.quorum.packing import pack

from .raft_world import Member, World


def others(world: World, leader: Member) -> tuple[Member, Member]:
    first, second = (m for m in world.members.values() if m is not leader)
    return first, second


def snapshot(member: Member) -> None:
    """Have a voter write a snapshot now, twice, so that its journal is cut."""
    member.replica._start_snapshot()
    member.helper.finish()


def say(world: World, sender: Member, receiver: Member, message: list[object]) -> None:
    """A message out of the blue, as one that was long under way."""
    receiver.receive(sender.voter_id, world.unpacked(pack(message)))
