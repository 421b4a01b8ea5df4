"""What goes wrong with members, too, and offsets that somebody resets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.core.groups import GroupMachine
from tests.simulation.claims import OFFSETS_PARTITION
from tests.simulation.faults import Faults
from tests.simulation.members import Claimer
from tests.simulation.replica import Name

if TYPE_CHECKING:
    from tests.simulation.cooperative_world import CooperativeWorld

RESET = "reset "
"""The metadata of an offset that somebody sets begins so."""


class CooperativeFaults(Faults):
    """What goes wrong with members, too, and offsets that somebody resets."""

    world: CooperativeWorld

    def __init__(self, world: CooperativeWorld) -> None:
        super().__init__(world)
        self.kinds += [self.crash_member, self.crash_member, self.pause_member, self.reset]
        self.kinds.append(self.hinder_claims)

    def heal(self) -> None:
        world = self.world
        world.late_until = max(broker.paused_until for broker in world.brokers.values())
        super().heal()
        self.world.hindered.clear()
        for each in self.world.claimers:
            each.paused_until = 0.0
            if not each.up:
                each.start()

    def crash_member(self) -> None:
        member = self.rng.choice(self.world.claimers)
        if member.up:
            self.world.note(f"member {member.number} dies")
            member.crash()
            self._later(self._come_again, member)

    def _come_again(self, member: Claimer) -> None:
        if not member.up:
            member.start()

    def hinder_claims(self) -> None:
        """A broker comes no further with the claims, and is to lead the offsets."""
        leader = self.world.brokers.get(self.world.partition(OFFSETS_PARTITION).leader)
        follower = self._broker()
        if leader is None or follower is None or leader is follower:
            return
        self.world.note(f"broker {follower.id} comes no further with the claims")
        self.world.hindered[follower.id] = self.world.schedule.now + 3_000.0
        self.world.schedule.after(1_500.0, self._kill_to_part, leader.id, leader.life)

    def _kill_to_part(self, id_: int, life: int) -> None:
        broker = self.world.brokers[id_]
        if self.active and broker.up and broker.life == life:
            broker.kill()
            self._later(self._restart, broker)

    def pause_member(self) -> None:
        member = self.rng.choice(self.world.claimers)
        for_ms = self.rng.uniform(50, 2500)
        self.world.note(f"member {member.number} stands still for {for_ms:.0f} ms")
        member.paused_until = max(member.paused_until, self.world.schedule.now + for_ms)

    def reset(self) -> None:
        """Somebody sets an offset of the group that has no members."""
        world = self.world
        name = self.rng.choice(world.data_names)
        offset = self.rng.randint(0, world.end_of(name))
        world.cooperative.resets += 1
        world.note(f"reset {name} to {offset}")
        world.resetter.reset(name, offset, f"{RESET}{world.cooperative.resets}")


class Resetter(Claimer):
    """Commits offsets from outside; `asking` is how many answers it waits for."""

    asking = 0

    def reset(self, name: Name, offset: int, metadata: str) -> None:
        place = self.group_id, name
        checks = self.world.cooperative

        asked: list[GroupMachine] = []

        def arrived(machine: GroupMachine) -> None:
            asked.append(machine)
            checks.begin_reset(place, machine)

        def answered(*_: object) -> None:
            self.asking -= 1

        self.asking += 1
        self.commit(
            name,
            offset,
            None,
            answered,
            lambda _: checks.end_reset(place, asked.pop()),
            metadata,
            arrived,
        )
