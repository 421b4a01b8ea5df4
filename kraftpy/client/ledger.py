"""What of a partition's slices was handed out, what of that is done, and what is claimed.

Rules:
* A *claim* says: of the records with hashes low to high and offsets first to last, all that exist
  are done. It covers what isn't there, too, so holes need no care. One that is answered is never
  sent again, and what it covers is never handed out: commits amend the gaps between claims.
* In order, what was handed out is done. Out of order, it is done when `done` says so.
* A *hole* has no record of the slices that was handed out and isn't claimed, so that it may be
  claimed though the user commits nothing. Only the one is looked for that begins where all below is
  claimed: it makes no range more, and lets the group's offset pass. What was passed over without
  having been looked at may have records.
* An *account* is some slices of which the same is known. Slices that were taken over lie elsewhere
  than those that were kept, often far behind.
* A *lane* is the slices that are to be fetched from one offset on. Lanes are fetched in turn. One
  ends where the next one begins, and then they are one: no record is fetched twice.
* A record is looked at again when it is handed out: its slice may have been revoked meanwhile, and
  a broker may send more than it was asked for.

Source: seed 001, "Offset Fetch", with claims in the place of its offset ranges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from kraftpy.client.spans import (
    INFINITY,
    Spans,
    contains,
    join,
    subtract,
    uncovered_from,
)
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.key_hash import HASH_MAX

WHOLE: Spans = [(0, HASH_MAX + 1)]
"""All hashes."""


# Of so many records it's known where they lie that aren't committed; behind them any may be one.
_UNCOMMITTED_MAX = 2_000


class Claim(NamedTuple):
    """What a group has done of a slice; both ends are in it."""

    low: int
    high: int
    first: int
    last: int


class Lane(NamedTuple):
    """What is fetched next: records of these slices, from an offset on and not beyond another."""

    slices: Spans
    position: int
    until: int | None


class Due(NamedTuple):
    """What is done of some slices and not claimed: first and last offsets."""

    slices: Spans
    ranges: list[tuple[int, int]]


class Dues(NamedTuple):
    """What is to be claimed of a partition; `era` tells claims from before a `seek`."""

    era: int
    accounts: list[Due]


class _Account:
    __slots__ = (
        "answered",
        "base",
        "doubtful",
        "fetched",
        "next",
        "open",
        "slices",
        "uncommitted",
    )

    def __init__(self, slices: Spans, base: int, answered: Spans) -> None:
        self.slices = slices
        self.base = base
        """All below is claimed, or was so by others."""
        self.answered = answered
        """What is claimed above the base."""
        self.next = base
        """All below is handed out, or needn't be."""
        self.fetched = base
        """What is fetched next; not below `next`."""
        self.open: dict[int, int] = {}
        """Offsets and hashes of what was handed out and isn't done."""
        self.uncommitted: dict[int, int] = {}
        """With holes: those of what was handed out and isn't claimed."""
        self.doubtful: Spans = []
        """Where else there may be such records."""

    def handed_out(self, offset: int, hash_: int) -> None:
        if len(self.uncommitted) < _UNCOMMITTED_MAX:
            self.uncommitted[offset] = hash_
        else:
            begin = self.doubtful[-1][0] if self.doubtful else offset
            self.doubt(begin, offset + 1)

    def doubt(self, begin: int, end: int) -> None:
        """Somebody's records may lie here, and nobody has said what became of them."""
        self.doubtful = join([*self.doubtful, (begin, end)])

    def forget(self, begin: int, end: int) -> None:
        """Nothing that was handed out lies here any more."""
        for offsets in (self.open, self.uncommitted):
            for offset in [each for each in offsets if begin <= each < end]:
                del offsets[offset]
        self.doubtful = subtract(self.doubtful, [(begin, end)])

    def claimed(self, ranges: Iterable[tuple[int, int]]) -> None:
        spans = join([*self.answered, *((first, last + 1) for first, last in ranges)])
        self.passed(uncovered_from(spans, self.base), spans)

    def passed(self, base: int, spans: Spans) -> None:
        """All below is done, for the group."""
        self.base = base
        self.answered = [span for span in spans if span[1] > base]
        self.open, self.uncommitted = (
            {
                offset: hash_
                for offset, hash_ in offsets.items()
                if offset >= base and not contains(self.answered, offset)
            }
            for offsets in (self.open, self.uncommitted)
        )
        if self.doubtful:
            self.doubtful = subtract(self.doubtful, join([(0, base), *self.answered]))

    def seek(self, offset: int, *, holes: bool) -> None:
        """Goes on from an offset: what is passed over is done, as with commits."""
        if offset < self.next:
            self.forget(offset, INFINITY)
            self.passed(min(self.base, offset), [])
        elif holes:
            self.doubt(self.next, offset)
        self.next = self.fetched = offset

    def hole(self) -> list[tuple[int, int]]:
        begins = (begin for begin, _ in self.doubtful)
        end = min((self.next, *self.uncommitted, *begins))
        if end <= self.base:
            return []
        return [(begin, end - 1) for begin, end in subtract([(self.base, end)], self.answered)]

    def due(self) -> list[tuple[int, int]]:
        if self.next <= self.base:
            return []
        done = [(self.base, self.next)]
        if self.open:
            done = subtract(done, join((offset, offset + 1) for offset in self.open))
        return [(begin, end - 1) for begin, end in subtract(done, self.answered)]

    @property
    def settled(self) -> bool:
        """Whether nothing tells it from another one that is as far."""
        return self.base == self.next == self.fetched and not self.answered and not self.open


class Ledger:
    """The accounts of one partition; with `holes` it's known what isn't committed."""

    def __init__(self, *, explicit: bool = False, holes: bool = False) -> None:
        self._explicit = explicit
        self._holes = holes
        self._accounts: list[_Account] = []
        self._lows: list[int] = []
        self._by_low: list[tuple[int, _Account]] = []
        self._turn = 0
        self._era = 0
        self._high_watermark = INFINITY
        self.full = False
        """Whether the group has as many claims as it may: then only holes are worth filling."""

    # -- slices

    @property
    def slices(self) -> Spans:
        """The slices that there are accounts of."""
        return join(piece for account in self._accounts for piece in account.slices)

    @property
    def in_part(self) -> bool:
        """Whether others read the partition, too."""
        return self.slices != WHOLE

    def add(
        self,
        slices: Spans,
        stable: int,
        claims: Iterable[Claim] = (),
        *,
        sought: int | None = None,
    ) -> None:
        """Takes slices in, of which the group has claimed so much above the stable offset.

        Those go on from what was `sought`, if that was before they came.
        """
        claims = [claim for claim in claims if claim.last >= stable]
        bounds = sorted(
            {bound for span in slices for bound in span}
            | {bound for claim in claims for bound in (claim.low, claim.high + 1)}
        )
        alike: dict[tuple[tuple[int, int], ...], Spans] = {}
        for piece in pairwise(bounds):
            if not contains(slices, piece[0]):
                continue
            claimed = join(
                (max(claim.first, stable), claim.last + 1)
                for claim in claims
                if claim.low <= piece[0] <= claim.high
            )
            alike.setdefault(tuple(claimed), []).append(piece)
        for spans, pieces in alike.items():
            account = _Account(join(pieces), stable, [])
            account.passed(uncovered_from(list(spans), stable), list(spans))
            account.next = account.fetched = account.base
            if sought is not None:
                account.seek(sought, holes=self._holes)
            self._accounts.append(account)
        self._era += sought is not None
        self._index()

    def remove(self, slices: Spans) -> None:
        """Has these slices no more; what isn't done of them is left to others."""
        for account in self._accounts:
            account.slices = subtract(account.slices, slices)
            for offsets in (account.open, account.uncommitted):
                others = [o for o, hash_ in offsets.items() if not contains(account.slices, hash_)]
                for offset in others:
                    del offsets[offset]
        self._accounts = [account for account in self._accounts if account.slices]
        self._index()

    def _index(self) -> None:
        """Makes one of accounts that are alike, and finds accounts by hash."""
        alike: dict[object, _Account] = {}
        for account in self._accounts:
            key = account.next if account.settled else account
            other = alike.setdefault(key, account)
            if other is not account:
                other.slices = join([*other.slices, *account.slices])
        self._accounts = list(alike.values())
        entries = sorted(
            (low, end, place)
            for place, account in enumerate(self._accounts)
            for low, end in account.slices
        )
        self._lows = [low for low, _, _ in entries]
        self._by_low = [(end, self._accounts[place]) for _, end, place in entries]

    # -- fetching

    def turn(self) -> Lane:
        """The lane whose turn it is to be fetched; those at the log's end have none."""
        positions = sorted({account.fetched for account in self._accounts})
        waiting = [each for each in positions if each < self._high_watermark] or positions[:1]
        self._turn += 1
        position = waiting[self._turn % len(waiting)]
        slices = join(
            piece
            for account in self._accounts
            if account.fetched == position
            for piece in account.slices
        )
        above = bisect_right(positions, position)
        return Lane(slices, position, positions[above] if above < len(positions) else None)

    def fetched(self, lane: Lane, end: int, high_watermark: int) -> int:
        """Notes how far a lane was fetched, and returns it: not beyond where the next lane begins.

        That is where it began, if nobody wants that any more.
        """
        self._high_watermark = high_watermark
        if lane.until is not None:
            end = min(end, lane.until)
        moved = False
        for account in self._accounts:
            if account.fetched == lane.position and not subtract(account.slices, lane.slices):
                account.fetched = end
                moved = True
        return end if moved else lane.position

    def rewind(self) -> None:
        """What was fetched ahead is gone."""
        for account in self._accounts:
            account.fetched = account.next

    def skip_to(self, offset: int, log_start: int) -> None:
        """What is below the log's start isn't there any more, so it counts as done.

        Who would read that goes on from an offset; who is farther lacks nothing, and stays.
        """
        for account in self._accounts:
            account.forget(0, log_start)
            if account.fetched < log_start:
                account.forget(0, offset)
                account.next = account.fetched = offset

    def fall_back(self, offset: int) -> None:
        """The log was cut, and is read again from an offset on that is below some position."""
        self._era += 1
        for account in self._accounts:
            if account.fetched > offset:
                account.fetched = offset
                account.next = min(account.next, offset)
                account.forget(offset, INFINITY)
                account.passed(min(account.base, offset), subtract(account.answered, _from(offset)))

    def not_done_from(self, offset: int) -> None:
        """In order: what was handed out from here on isn't done, and comes again."""
        if not self._explicit:
            for account in self._accounts:
                account.next = account.fetched = min(account.next, offset)

    def advance_to(self, position: int) -> None:
        """All below was handed out already, while there was no ledger."""
        for account in self._accounts:
            if self._holes:
                account.doubt(account.next, position)
            account.next = account.fetched = position

    def seek(self, offset: int) -> None:
        """Goes on from an offset with all slices: what is passed over is done, as with commits.

        What lies below and was handed out isn't passed over: out of order, it's still to be done.
        """
        self._era += 1
        for account in self._accounts:
            account.seek(offset, holes=self._holes)

    # -- handing out

    @property
    def position(self) -> int:
        """The lowest offset of which something may be handed out."""
        return min(account.next for account in self._accounts)

    def readers(self, lane: Lane) -> set[_Account]:
        """Whose records those of a lane are: accounts that have had all below where it began."""
        return {
            account
            for account in self._accounts
            if account.next >= lane.position and not subtract(account.slices, lane.slices)
        }

    def hand_out(self, hash_: int, offset: int, readers: set[_Account]) -> bool:
        """Whether a record is to be handed out now; out of order, it is open from then on."""
        at = bisect_right(self._lows, hash_) - 1
        if at < 0 or hash_ >= self._by_low[at][0]:
            return False
        account = self._by_low[at][1]
        if offset < account.next or account not in readers:
            return False
        if account.answered and contains(account.answered, offset):
            return False
        if self._explicit:
            account.open[offset] = hash_
        if self._holes:
            account.handed_out(offset, hash_)
        return True

    def take_back(self, offset: int, readers: Any) -> None:
        """The record that was to be handed out last wasn't, and isn't anybody's to do."""
        self.done(offset)

    def advance(self, readers: set[_Account], end: int) -> None:
        """All below was handed out that is to be."""
        for account in readers:
            if account.next < end:
                account.next = end
                account.fetched = max(account.fetched, end)

    # -- claims

    def done(self, offset: int) -> bool:
        """Notes that a record is done; False if nobody here has it to do."""
        return any(account.open.pop(offset, None) is not None for account in self._accounts)

    def dues(self) -> Dues:
        """What is to be claimed now."""
        found = [Due(list(account.slices), account.due()) for account in self._accounts]
        return Dues(self._era, [due for due in found if due.ranges])

    def holes(self) -> Dues:
        """What may be claimed though the user has committed nothing of it."""
        found = [Due(list(account.slices), account.hole()) for account in self._accounts]
        return Dues(self._era, [due for due in found if due.ranges])

    def dues_below(self, offset: int) -> Dues:
        """What is to be claimed so that all below an offset is done."""
        found = []
        for account in self._accounts:
            spans = subtract([(account.base, max(offset, account.base))], account.answered)
            ranges = [(begin, end - 1) for begin, end in spans if begin < end]
            found.append(Due(list(account.slices), ranges))
        return Dues(self._era, [due for due in found if due.ranges])

    def is_lowest(self, dues: Dues) -> bool:
        """Whether nothing of these slices lies below what is to be claimed of any of them."""
        first = min(due.ranges[0][0] for due in dues.accounts)
        return all(account.base >= first for account in self._accounts)

    @property
    def done_below(self) -> int:
        """The lowest offset that was handed out and isn't done, or is to be handed out."""
        return min(min(account.open, default=account.next) for account in self._accounts)

    def reached(self, stable: int) -> None:
        """The group has all below this offset."""
        self.answered(Dues(self._era, []), stable)

    def answered(self, dues: Dues, stable: int) -> None:
        """The group has these claims, and all below the stable offset."""
        if dues.era != self._era:
            return
        for account in self._accounts:
            for due in dues.accounts:
                if not subtract(account.slices, due.slices):
                    account.claimed(due.ranges)
            if stable > account.base:
                account.passed(
                    uncovered_from(account.answered, stable),
                    account.answered,
                )
                if not self._era:
                    account.next = max(account.next, account.base)
                    account.fetched = max(account.fetched, account.base)
        self._index()


def _from(offset: int) -> Spans:
    return [(offset, INFINITY)]


def slices_of(ranges: Sequence[tuple[int, int]]) -> Spans:
    """Slices as users write them, first and last hash; none are all. ValueError for nonsense."""
    for low, high in ranges:
        if not 0 <= low <= high <= HASH_MAX:
            raise ValueError(f"a slice is two hashes from 0 to {HASH_MAX}, not ({low}, {high})")
    spans = join((low, high + 1) for low, high in ranges)
    if sum(high + 1 - low for low, high in ranges) != sum(end - begin for begin, end in spans):
        raise ValueError("slices of one partition overlap")
    return spans or list(WHOLE)


def as_ranges(spans: Spans) -> list[tuple[int, int]]:
    """Slices as users read them: [] for all hashes."""
    return [] if spans == WHOLE else [(begin, end - 1) for begin, end in spans]
