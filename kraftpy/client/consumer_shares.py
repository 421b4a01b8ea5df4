"""Which parts of its partitions a consumer has, and the ledgers of those that need one.

Rules:
* A partition has a ledger when it is this consumer's in part, when records are done out of order,
  and when the group has claims on it. All others are read and committed as ever, by one offset.
* Slices that come are read from where the group's claims say, which are asked for when their last
  owner has given them up. Slices that stay are read on meanwhile.
* The first offset of a partition in parts, or that may be cut while it's read, or whose records are
  done out of order, is committed before anything is fetched, if nobody else has: without it nothing
  can be claimed. Who comes second goes on from that, so that no gap is between two members that
  begin at the log's end.
* Without auto commit, what the user hasn't committed isn't claimed. But where none of the records
  of this consumer's slices lies, nobody would ever commit: up to the first of them it is claimed.
  So a ledger that begins with what has been read has to learn what of that the group has.
* A member that is leased batches has ledgers of those (`leases`), and whole partitions.
* Without claims at the group's broker, what is done out of order of a whole partition is committed
  up to the first record that isn't done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from kraftpy.client.claims import Progress, read_progress
from kraftpy.client.commits import Claiming, Done, compare_and_commit
from kraftpy.client.coordinator import Coordinator, Generation
from kraftpy.client.leases import LeaseLedger
from kraftpy.client.ledger import WHOLE, Ledger, as_ranges
from kraftpy.client.offsets import Offset, Partition, with_metadata
from kraftpy.client.shares import hashes_of_slots, slots_of_hashes
from kraftpy.client.spans import Spans, subtract
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.key_shares import Shares

Ranges = dict[Partition, list[tuple[int, int]]]
"""Slices as users see them: first and last hashes, [] for a whole partition."""


class ConsumerShares:
    """The slices of one consumer."""

    def __init__(
        self,
        coordinator: Coordinator | None,
        *,
        explicit: bool,
        auto_commit: bool,
        leasing: bool = False,
        may_be_cut: bool = False,
    ) -> None:
        self.ledgers: dict[Partition, Ledger] = {}
        self._slices: dict[Partition, Spans] = {}
        self._coordinator = coordinator
        self._explicit = explicit
        self._holes = coordinator is not None and not auto_commit
        self._leasing = leasing
        self._may_be_cut = may_be_cut
        self._lost: dict[Partition, int] = {}
        self._sought: dict[Partition, int] = {}
        """Where slices go on once it's known what the group has of them."""
        self.one_by_one = False
        """Whether it's told of each record that it's done, though not out of order."""
        self._in_part: set[Partition] = set()
        self.unlocated: set[Partition] = set()
        """Partitions with a ledger of which some slice has no place to go on from yet."""

    # -- which

    @property
    def ranges(self) -> Ranges:
        """The slices of each partition."""
        return {name: as_ranges(slices) for name, slices in sorted(self._slices.items())}

    @property
    def slots(self) -> Shares:
        """The same as slots, for partitions that a group has dealt out."""
        return {name: slots_of_hashes(slices) for name, slices in self._slices.items()}

    @property
    def in_part(self) -> bool:
        """Whether some partition is also read by others."""
        return bool(self._in_part)

    @property
    def spans(self) -> dict[Partition, Spans]:
        """The slices of each partition, for `change`."""
        return dict(self._slices)

    def change(self, name: Partition, slices: Spans, read: tuple[int, int] | None) -> bool:
        """From now on these are the slices of a partition.

        `read` is from where on and how far it was read while it had no ledger. Whether nothing that
        was fetched of it counts any more is returned.
        """
        self._slices[name] = slices
        (self._in_part.discard if slices == WHOLE else self._in_part.add)(name)
        ledger = self.ledgers.get(name)
        if ledger is not None:
            ledger.remove(subtract(ledger.slices, slices))
            self.unlocated.discard(name)
            if not ledger.slices:
                del self.ledgers[name]
                return True
            if subtract(slices, ledger.slices):
                self.unlocated.add(name)
            return False
        if read is None or slices == WHOLE or name in self._sought:
            return False
        self.ledgers[name] = ledger = self._ledger()
        ledger.add(slices, min(read))
        ledger.advance_to(read[1])
        if self._holes:
            self.unlocated.add(name)
        return True

    def forget(self, name: Partition) -> None:
        """The partition isn't this consumer's any more."""
        self._slices.pop(name, None)
        self._in_part.discard(name)
        self.ledgers.pop(name, None)
        self._sought.pop(name, None)
        self.unlocated.discard(name)

    def lacks_ledger(self, name: Partition) -> bool:
        """Whether nothing of a partition may be read or committed before there is a ledger."""
        needs = self._explicit or self._leasing or self._slices.get(name, WHOLE) != WHOLE
        return needs and name not in self.ledgers

    def seek(self, name: Partition, offset: int) -> None:
        """Goes on from an offset with all slices, also with those that have no place yet."""
        ledger = self.ledgers.get(name)
        if ledger is not None:
            ledger.seek(offset)
        if self.lacks_ledger(name) or (ledger is not None and self._wanted(name)):
            self._sought[name] = offset
            self.unlocated.add(name)

    def refuse_leasing(self, method: str) -> None:
        """Raises ValueError if leaders lease batches, for a method that says what to read."""
        if self._leasing:
            raise ValueError(
                f"{method}() isn't for members with the assignor kraftpy-cooperative-fetch: they "
                "read what leaders deal out"
            )

    def lose_place(self) -> list[Partition]:
        """Forgets where it is in partitions whose leader can't go on from there; which ones."""
        lost = [
            name
            for name, ledger in self.ledgers.items()
            if isinstance(ledger, LeaseLedger) and ledger.homeless
        ]
        for name in lost:
            self._lost[name] = self.ledgers.pop(name).done_below
        return lost

    # -- from where on

    async def locate(
        self,
        partitions: Iterable[Partition],
        generation: Generation,
        reset: Callable[[list[Partition]], Awaitable[dict[Partition, int]]],
    ) -> dict[Partition, Progress]:
        """Where the group stands, or else where `reset` says.

        Raises KafkaError of the group and of reading, and `ConnectionError`.
        """
        wanted = sorted(partitions)
        found: dict[Partition, Progress] = {}
        if self._coordinator is not None:
            found = await read_progress(self._coordinator, wanted, member_id=generation.member_id)
        unknown = [name for name in wanted if name not in found or found[name].stable < 0]
        others = [name for name in unknown if self._wanted(name)]
        offsets = {name: self._sought[name] for name in others if name in self._sought}
        offsets |= await reset([name for name in others if name not in offsets])
        if self._coordinator is not None and self._coordinator.takes_claims:
            for name in others:
                if self._may_be_cut or self.lacks_ledger(name) or name in self.ledgers:
                    found[name] = await _first(self._coordinator, name, offsets[name], generation)
        for name in unknown:
            claims = found[name].claims if name in found else []
            if name not in found or found[name].stable < 0:
                found[name] = Progress(offsets.get(name, -1), claims)
        return found

    def _wanted(self, name: Partition) -> Spans:
        """The slices of a partition that have no place to go on from."""
        slices, ledger = self._slices.get(name, WHOLE), self.ledgers.get(name)
        return slices if ledger is None else subtract(slices, ledger.slices)

    def begin(self, name: Partition, progress: Progress) -> Ledger | None:
        """Takes in where slices begin; the partition's ledger, if it needs one."""
        slices, wanted = self._slices[name], self._wanted(name)
        ledger, sought = self.ledgers.get(name), self._sought.pop(name, None)
        self.unlocated.discard(name)
        if ledger is None:
            if not (slices != WHOLE or self._explicit or self._leasing or progress.claims):
                return None
            if self._lost.pop(name, -1) == progress.stable:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"the group stands at {progress.stable} of {name[0]}-{name[1]}, whose log was "
                    "cut below: stop its members, and set it back by `kraftpy group seek`",
                )
            ledger = self.ledgers[name] = self._ledger()
        ledger.add(wanted, *progress, sought=sought)
        if self._holes:
            ledger.reached(progress.stable)
        return ledger

    def _ledger(self) -> Ledger:
        kind = LeaseLedger if self._leasing else Ledger
        return kind(explicit=self._explicit or self.one_by_one, holes=self._holes)

    # -- what is done

    def done_of(self, positions: Mapping[Partition, int], names: Iterable[Partition]) -> Done:
        """What is to be committed of these partitions."""
        done: dict[Partition, Offset | Claiming] = {}
        claiming = self._coordinator is not None and self._coordinator.takes_claims
        for name in names:
            ledger = self.ledgers.get(name)
            if ledger is not None and (claiming or ledger.in_part):
                done[name] = Claiming(ledger, ledger.dues())
            elif ledger is not None:
                done[name] = ledger.done_below
            elif name in positions and not self.lacks_ledger(name):
                done[name] = positions[name]
        return done

    def holes_of(self, names: Iterable[Partition]) -> dict[Partition, Claiming]:
        """What may be claimed of these partitions though the user has committed nothing of it."""
        if self._coordinator is None or not self._coordinator.takes_claims:
            return {}
        ledgers = {name: self.ledgers[name] for name in names if name in self.ledgers}
        found = {name: Claiming(ledger, ledger.holes()) for name, ledger in ledgers.items()}
        return {name: each for name, each in found.items() if each.dues.accounts}

    def done_by(self, offsets: Mapping[Partition, Offset]) -> Done:
        """What a user says is done: all below these offsets, of the slices that are there.

        A claim has no place for a text: that of a slice isn't kept.
        """
        done: dict[Partition, Offset | Claiming] = dict(offsets)
        for name, offset in offsets.items():
            ledger = self.ledgers.get(name)
            if ledger is None and self._slices.get(name, WHOLE) != WHOLE:
                ledger = self._ledger()  # It isn't known yet what of this is claimed already.
                ledger.add(self._slices[name], 0)
            if ledger is not None and ledger.in_part:
                done[name] = Claiming(ledger, ledger.dues_below(with_metadata(offset).offset))
        return done


async def _first(
    coordinator: Coordinator, name: Partition, offset: int, generation: Generation
) -> Progress:
    """Commits the first offset of a partition, or finds that somebody else has."""
    found: list[Progress] = []

    async def attempt(timeout_ms: int) -> None:
        if not await compare_and_commit(
            coordinator, name, -1, offset, generation=generation, timeout_ms=timeout_ms
        ):
            progress = await read_progress(coordinator, [name], timeout_ms=timeout_ms)
            found[:] = progress.values()
            if not found or found[0].stable < 0:  # Somebody's commit is under way.
                raise KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT)

    await coordinator.retrying(attempt, None)
    return found[0] if found else Progress(offset, [])


def shares_as_ranges(shares: Shares) -> Ranges:
    """Slots as users see them."""
    return {name: as_ranges(hashes_of_slots(slots)) for name, slots in sorted(shares.items())}
