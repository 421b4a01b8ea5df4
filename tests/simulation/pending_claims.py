"""What must be true of claims in transactions: nothing counts before its transaction does.

* While a transaction is open, nobody is handed what it claims.
* When it's committed, all counts that the member was told is in it: claims of an aborted one never
  do. (That these were processed, only `Transacting` says, when it asks for the commit.)
* A tombstone of such a claim follows when others say the same, or when the offset has passed it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kraftpy.client.ledger import Claim
from kraftpy.core.groups.individual.records import ClaimRecord

if TYPE_CHECKING:
    from tests.simulation.cooperative_world import CooperativeInvariants, Place

_Key = tuple[tuple[int, int, int], tuple[int, int]]


class PendingClaims:
    """The claims of transactions, as committed."""

    def __init__(self, checks: CooperativeInvariants) -> None:
        self.committed = self.aborted = 0
        """Transactions that have claimed something."""
        self._checks = checks
        self._open: dict[int, dict[tuple[Place, _Key], int]] = defaultdict(dict)
        self._ended: dict[tuple[Place, _Key], int] = {}
        self._told: dict[int, list[tuple[Place, Claim]]] = defaultdict(list)

    def told(self, producer_id: int, place: Place, claims: Iterable[Claim]) -> None:
        """The coordinator says that these are in the producer's transaction."""
        self._told[producer_id] += [(place, each) for each in claims]

    def take(self, record: ClaimRecord) -> None:
        """A record of a transaction is committed."""
        assert record.transaction is not None
        place = record.group_id, (record.topic, record.partition)
        key = place, ((record.low, record.high, record.first), record.transaction)
        claims = self._open[record.transaction[0]]
        if record.state is not None:
            claims[key] = max(claims.get(key, -1), record.state.last)
        elif key in claims:
            self._checks.fail(f"a tombstone of {key} is committed, and its transaction is open")
        elif (last := self._ended.pop(key, None)) is not None:
            self._checks.check_passed(place, key[1][0], last)

    def end(self, producer_id: int, *, committed: bool) -> None:
        """A marker is committed."""
        claims, told = self._open.pop(producer_id, {}), self._told.pop(producer_id, [])
        if not committed:
            self.aborted += bool(claims)
            return
        self.committed += bool(claims)
        whole: dict[Place, list[Claim]] = defaultdict(list)
        for key, last in claims.items():
            place, ((low, high, first), _) = key
            whole[place].append(Claim(low, high, first, last))
            self._ended[key] = last
        for place, its in whole.items():
            self._checks.counts(place, its)
        for place in dict.fromkeys(place for place, _ in told):
            said = self._checks.values_of(place, [claim for each, claim in told if each == place])
            there = self._checks.values_of(place, whole[place])
            if lacks := said - there - self._checks.values_below_stable(place):
                self._checks.fail(f"a transaction's claims of {place} count, and not {lacks}")

    def check_handed_out(self, place: Place, hash_: int, offset: int) -> None:
        """Somebody is handed a record."""
        for claims in self._open.values():
            for (where, ((low, high, first), transaction)), last in claims.items():
                if where == place and low <= hash_ <= high and first <= offset <= last:
                    self._checks.fail(
                        f"offset {offset} of {place} is handed out while the transaction "
                        f"{transaction}, which has claimed it, is open"
                    )

    @property
    def are_over(self) -> bool:
        return not any(self._open.values())
