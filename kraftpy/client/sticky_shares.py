"""`kraftpy-cooperative-sticky`: even and sticky by slot, and each slot given up before it is given.

Rules:
* Of a topic in reverse each sharer has as many of its slots as any other, or one more. Who has too
  many gives from the top of its last range, so that nothing else moves.
* If a member came to more than 32 ranges of the topic, all of it is cut anew, in equal pieces.
* A topic's whole partitions are placed as `sticky` does; a partition in slices belongs to whoever
  has most of it.
* Draining is by slot: a slot is given to a member only when no other lists it as its own. Its owner
  learns that it is to go by what it is given, and joins again without it. All other slots stay
  where they are, and are read on meanwhile.
* Of two who list a slot, the one of the newer generation has it (KIP-341), but neither is given it
  before the other has joined without.
* Members that don't share are given whole partitions alone.

A stock leader sees no slices, so `cooperative-sticky` can't do this: it would give away a whole
partition of which several members have parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from kraftpy.client.assignor import Assignment, SharedAssignment, Subscription, Topics, subscribers
from kraftpy.client.offsets import Partition
from kraftpy.client.shares import off_line, on_line
from kraftpy.client.sharing import SharingAssignor, crowded_topics, cut, sharing_of
from kraftpy.client.spans import Spans, intersect, join, size, split, subtract
from kraftpy.client.sticky import place
from kraftpy.protocol.key_hash import SLOTS
from kraftpy.protocol.key_shares import ALL_SLOTS, Shares

MOST_RANGES = 32


class StickySharesAssignor(SharingAssignor):
    """Whole partitions and slices, with few moves, while what stays is read on."""

    name = "kraftpy-cooperative-sticky"
    cooperative = True

    def assign(self, topics: Topics, members: Mapping[str, Subscription]) -> Assignment:
        shares = self.share(topics, members, ())
        return {member: sorted(share) for member, share in shares.items()}

    def share(
        self, topics: Topics, members: Mapping[str, Subscription], shareable: Collection[str]
    ) -> SharedAssignment:
        sharing = {member: sharing_of(subscription) for member, subscription in members.items()}
        generations = {member: members[member].generation for member in members}
        crowded = crowded_topics(topics, members, shareable)
        lines: dict[str, dict[str, Spans]] = {}
        owners: dict[Partition, str] = {}
        targets: dict[str, Shares] = {member: {} for member in members}
        for topic, _ in subscribers(topics, members):
            numbers = sorted(topics[topic])
            listed = {
                member: spans
                for member in members
                if (spans := on_line(sharing[member].owned, topic, numbers))
            }
            lines[topic] = listed
            owned = undisputed(listed, generations)
            if topic in crowded:
                order = list(crowded[topic])
                for member, share in _deal(topic, numbers, order, owned).items():
                    targets[member] |= share
            else:
                owners |= _main_owners(topic, numbers, owned)
        whole = [(t, n) for t in lines if t not in crowded for n in topics[t]]
        subscriptions = {member: members[member].topics for member in members}
        for member, partitions in place(whole, subscriptions, owners).items():
            targets[member] |= dict.fromkeys(partitions, ALL_SLOTS)
        return {
            member: _free(target, lines, topics, member, sharing[member].allow_key_share)
            for member, target in targets.items()
        }


def _deal(
    topic: str, numbers: Sequence[int], sharers: Sequence[str], owned: Mapping[str, Spans]
) -> SharedAssignment:
    spans = stick(sharers, owned, len(numbers) * SLOTS)
    shares = {member: off_line(spans[member], topic, numbers) for member in sharers}
    if any(sum(map(len, share.values())) > MOST_RANGES for share in shares.values()):
        return cut(topic, numbers, sharers)
    return shares


def stick(members: Sequence[str], owned: Mapping[str, Spans], total: int) -> dict[str, Spans]:
    """A line of so many slots for members in order, who keep of what they have what they may."""
    share, remainder = divmod(total, len(members))
    sizes = {member: size(owned.get(member, ())) for member in members}
    # Who has more keeps it; what is over then goes to those who are given something anyway.
    in_turn = sorted(members, key=lambda member: (sizes[member] <= share, sizes[member]))
    quota = {member: share + (i < remainder) for i, member in enumerate(in_turn)}
    kept = {member: split(owned.get(member, []), quota[member])[0] for member in members}
    free = subtract([(0, total)], join(piece for spans in kept.values() for piece in spans))
    for member in members:
        taken, free = split(free, quota[member] - size(kept[member]))
        kept[member] = join([*kept[member], *taken])
    return kept


def undisputed(listed: Mapping[str, Spans], generations: Mapping[str, int]) -> dict[str, Spans]:
    """What each member has of a line: of two who list a slot, the newer one; of equals nobody."""
    owned: dict[str, Spans] = {}
    newer: Spans = []
    for generation in sorted({generations[member] for member in listed}, reverse=True):
        group = [member for member in listed if generations[member] == generation]
        doubtful = join([*newer, *_listed_twice(listed[member] for member in group)])
        for member in group:
            owned[member] = subtract(listed[member], doubtful)
        newer = join([*newer, *(piece for member in group for piece in listed[member])])
    return owned


def _listed_twice(lists: Iterable[Spans]) -> Spans:
    """What is in more than one of these."""
    twice: Spans = []
    covered = 0
    for begin, end in sorted(piece for spans in lists for piece in spans):
        if begin < covered:
            twice.append((begin, min(end, covered)))
        covered = max(covered, end)
    return join(twice)


def _main_owners(
    topic: str, numbers: Sequence[int], owned: Mapping[str, Spans]
) -> dict[Partition, str]:
    """Who has most of each partition."""
    owners = {}
    for i, number in enumerate(numbers):
        partition = [(i * SLOTS, (i + 1) * SLOTS)]
        sizes = {member: size(intersect(owned[member], partition)) for member in sorted(owned)}
        most = max(sizes, key=sizes.__getitem__, default=None)
        if most is not None and sizes[most]:
            owners[topic, number] = most
    return owners


def _free(
    target: Shares,
    lines: Mapping[str, Mapping[str, Spans]],
    topics: Topics,
    member: str,
    shares: bool,
) -> Shares:
    """What of a member's target no other member lists."""
    free: Shares = {}
    for topic in sorted({topic for topic, _ in target}):
        numbers = sorted(topics[topic])
        others = join(
            piece for other, spans in lines[topic].items() if other != member for piece in spans
        )
        spans = subtract(on_line(target, topic, numbers), others)
        for name, slots in off_line(spans, topic, numbers).items():
            if shares or slots == ALL_SLOTS:
                free[name] = slots
    return free
