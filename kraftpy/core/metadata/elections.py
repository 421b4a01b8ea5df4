"""The rules of one partition: who leads it, who is in sync, who may lead once it is back.

An event (a broker left, the leader proposes another ISR, an administrator moves replicas) says what
it wants in a `Wish`; `settled` makes of it the state that follows, or finds that none does. Rules:

* A partition's ISR has brokers that are active, that is registered, not fenced and not shutting
  down. One exception: who leads and shuts down stays while nobody else can take over.
* Election: the leader stays while it can. Else the first replica of the ISR; else the first of the
  ELR; else the last known leader, if both are empty (KIP-966: it may have lost its last records,
  but nobody has more); else, if an unclean election is permitted, the first replica that is there.
  A leader elected outside the ISR is alone in the new one; the last two cases empty the ELR.
* The ELR (KIP-966) has those who left an ISR that fell under the effective min.insync.replicas,
  which is never more than there are replicas. They have all committed records, since the high
  watermark stands still meanwhile. It is empty once the ISR is that large again. Whoever stopped
  uncleanly is taken out.
* Without a leader the ISR is empty, and `last_known_elr` names who led last, as long as that is a
  replica: one that was removed and comes again has nothing.
* A reassignment is complete when all of its target replicas are in the ISR, also where an election
  has made it the ISR: no proposal need ever follow that would show it again.
* Every change raises the partition epoch once. A change of leader raises the leader epoch, and so
  does taking replicas away, so that they can't count with what they fetch from now on, and having
  one begin anew, so that it can't count with what it had.
* ISR and ELR stand in the order of the replicas.
* A twin is led by whom its topic's partition is led by, once that one is in sync (`twins`).
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.core.metadata.records import (
    LOST_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    Broker,
    PartitionState,
    TopicRules,
)
from kraftpy.frozen import NamedTuple

NOBODY = -1


class Electorate(NamedTuple):
    """The brokers at the time of an event. `closing` ones shut down and may lead a while longer.

    `removed_are_forgotten`: the metadata has the level at which nobody is the last known leader who
    isn't a replica; below it, voters of earlier releases go on with them.
    """

    brokers: Mapping[int, Broker]
    active: frozenset[int]
    closing: frozenset[int]
    removed_are_forgotten: bool


class Assignment(NamedTuple):
    """Where replicas are, and which of them a reassignment adds and removes."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas as they were before the reassignment."""
        return tuple(each for each in self.replicas if each not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas as they are to become."""
        return tuple(each for each in self.replicas if each not in self.removing)


class Wish(NamedTuple):
    """What an event asks of a partition; nothing of all that is asked for by default.

    `lost` is a broker that may no longer have all it had (KIP-966: it stopped uncleanly), and with
    `lost_directory` has nothing. `anew`: it will, in this life. `steps_down` is a broker that isn't
    to lead. `preferred` asks for the first replica as leader, `leader` for this one; `unclean`
    permits an unclean election whatever the configuration says.
    """

    isr: tuple[int, ...] | None = None
    assignment: Assignment | None = None
    lost: int = NOBODY
    lost_directory: bool = False
    anew: bool = False
    steps_down: int = NOBODY
    preferred: bool = False
    leader: int = NOBODY
    unclean: bool = False


NO_WISH = Wish()


def settled(
    old: PartitionState, electorate: Electorate, rules: TopicRules, wish: Wish = NO_WISH
) -> PartitionState:
    """The state that follows; `old` itself if nothing changes."""
    isr = old.isr if wish.isr is None else wish.isr
    assignment = wish.assignment or Assignment(old.replicas, old.adding, old.removing)
    if _is_reached(assignment, isr):
        assignment = Assignment(assignment.target)
    replicas = assignment.replicas
    if replicas != old.replicas or isr != old.isr:
        isr = tuple([each for each in replicas if each in isr])
        if len(isr) == len(replicas):
            isr = replicas  # One tuple less to keep, for most partitions.
    leader, isr, elr, last_known = _seats(old, electorate, rules, wish, replicas, isr)
    if _is_reached(assignment, isr):  # Only now: who was elected is the whole target.
        assignment = Assignment(assignment.target)
        replicas = isr = assignment.replicas
        leader, isr, elr, last_known = _seats(old, electorate, rules, wish, replicas, isr)
    directories = _directories(old, electorate, wish, replicas, isr)
    if (
        isr == old.isr
        and leader == old.leader
        and elr == old.elr
        and replicas == old.replicas
        and last_known == old.last_known_elr
        and assignment[1:] == (old.adding, old.removing)
        and directories == old.directories
        and not wish.anew
    ):
        return old
    left = replicas is not old.replicas and not set(old.replicas) <= set(replicas)
    return PartitionState(
        leader=leader,
        leader_epoch=old.leader_epoch + (leader != old.leader or left or wish.anew),
        partition_epoch=old.partition_epoch + 1,
        replicas=replicas,
        isr=isr,
        directories=directories,
        elr=elr,
        last_known_elr=last_known,
        adding=assignment.adding,
        removing=assignment.removing,
    )


def _is_reached(assignment: Assignment, isr: tuple[int, ...]) -> bool:
    """Whether a reassignment is on, and all of its target replicas are in sync."""
    if not assignment.adding and not assignment.removing:
        return False
    return set(assignment.target) <= set(isr)


def _seats(
    old: PartitionState,
    electorate: Electorate,
    rules: TopicRules,
    wish: Wish,
    replicas: tuple[int, ...],
    in_sync: tuple[int, ...],
) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Leader, ISR, ELR and last known leader, if `in_sync` are those replicas that are."""
    needed = min(rules.min_isr, len(replicas))
    elr = _eligible(old, wish, replicas, in_sync, in_sync, needed)
    leader = _elected(old, electorate, rules, wish, replicas, in_sync, elr)
    if leader == NO_LEADER:
        last_known = old.last_known_elr if old.leader == NO_LEADER else (old.leader,)
        last_known = _remaining(last_known, old, electorate, replicas)
        return leader, (), _eligible(old, wish, replicas, in_sync, (), needed), last_known
    if leader in in_sync:
        isr = in_sync
        if leader != old.leader and old.leader in electorate.closing:
            isr = tuple(each for each in isr if each != old.leader)
    else:
        isr = (leader,)
        if leader not in elr:
            return leader, isr, (), ()
    if isr is not in_sync:
        elr = _eligible(old, wish, replicas, in_sync, isr, needed)
    return leader, isr, elr, ()


def _remaining(
    last_known: tuple[int, ...],
    old: PartitionState,
    electorate: Electorate,
    replicas: tuple[int, ...],
) -> tuple[int, ...]:
    """Those of `last_known` who are replicas before and after the event."""
    if not electorate.removed_are_forgotten:
        return last_known
    return tuple([each for each in last_known if each in old.replicas and each in replicas])


def _eligible(
    old: PartitionState,
    wish: Wish,
    replicas: tuple[int, ...],
    in_sync: tuple[int, ...],
    isr: tuple[int, ...],
    needed: int,
) -> tuple[int, ...]:
    """The ELR beside `isr`, of those who were in it before the event or `in_sync` without it."""
    if len(isr) >= needed:
        return ()
    return tuple(
        [
            each
            for each in replicas
            if (each in old.isr or each in old.elr or each in in_sync)
            and each not in isr
            and each != wish.lost
        ]
    )


def _elected(
    old: PartitionState,
    electorate: Electorate,
    rules: TopicRules,
    wish: Wish,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    eligible: tuple[int, ...],
) -> int:
    active = electorate.active - {wish.steps_down}
    if wish.leader in isr and wish.leader in active:
        return wish.leader
    if wish.preferred and replicas[0] in isr and replicas[0] in active:
        return replicas[0]
    if old.leader in isr and old.leader in active:
        return old.leader
    for candidates in (isr, eligible):
        for replica in candidates:
            if replica in active:
                return replica
    if old.leader in isr and old.leader in electorate.closing:
        return old.leader
    if not isr and not eligible:
        for replica in _remaining(old.last_known_elr, old, electorate, replicas):
            if replica in active and _has_data(old, replica) and replica in replicas:
                return replica
    if rules.unclean or wish.unclean:
        for replica in replicas:
            if replica in active:
                return replica
    return NO_LEADER


def _has_data(partition: PartitionState, replica: int) -> bool:
    """Whether the replica's log can still be where it was."""
    where = dict(zip(partition.replicas, partition.directories, strict=False))
    return where.get(replica) != LOST_DIRECTORY


def _directories(
    old: PartitionState,
    electorate: Electorate,
    wish: Wish,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
) -> tuple[bytes, ...]:
    """The replicas' directories: new ones are chosen, and lost ones once they are in sync again."""
    if (
        replicas == old.replicas
        and LOST_DIRECTORY not in old.directories
        and not wish.lost_directory
    ):
        return old.directories
    known = dict(zip(old.replicas, old.directories, strict=False))
    chosen = []
    for replica in replicas:
        directory = known.get(replica)
        if wish.lost_directory and replica == wish.lost:
            directory = LOST_DIRECTORY
        elif directory is None or (directory == LOST_DIRECTORY and replica in isr):
            directory = directory_of(electorate.brokers.get(replica))
        chosen.append(directory)
    return tuple(chosen)


def directory_of(broker: Broker | None) -> bytes:
    """Where a broker puts a new replica, as far as one can know."""
    if broker is None or len(broker.directories) != 1:
        return UNASSIGNED_DIRECTORY
    return broker.directories[0]
