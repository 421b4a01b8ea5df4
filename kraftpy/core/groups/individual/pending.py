"""Claims that transactions have made: they count when their transaction does (KIP-98).

Rules:

* A claim is *pending* until a marker in the claims' log ends its producer's transaction. Nobody may
  take what it covers for done then, nor hand it out.
* When the transaction counts, its claims do, at once. They are written anew as claims like others
  (*ended* until then); when that is committed, or the stable offset has passed them, tombstones of
  the transaction's own records follow. A crash between leaves both, which says the same.
* A record's key has the transaction in it. One of several with the same key has the greatest last
  offset: what was answered never shrinks.
* Of very many that count, so many are written anew at a time (`TOGETHER`), and so many tombstones.
* Who resets a group's offset drops what is pending as well, by tombstones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final, overload

from kraftpy.core.groups.individual.coverage import Claim, ClaimKey, Coverage
from kraftpy.core.groups.individual.memory import PENDING_CLAIM_BYTES
from kraftpy.core.groups.individual.records import ClaimRecord, ClaimState, Transaction

TOGETHER: Final = 500
LogKey = tuple[ClaimKey, Transaction]
"""By what the log knows a transaction's claim."""


class TransactionalClaims(Sequence[ClaimRecord]):
    """The records of a write: claims that a producer makes in its transaction, no tombstones."""

    __slots__ = ("records", "transaction")

    def __init__(self, transaction: Transaction, records: Sequence[ClaimRecord]) -> None:
        self.transaction = transaction
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> ClaimRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ClaimRecord]: ...
    def __getitem__(self, index: int | slice) -> ClaimRecord | Sequence[ClaimRecord]:
        return self.records[index]

    def __iter__(self) -> Iterator[ClaimRecord]:
        return iter(self.records)


def claimed_in(
    transaction: Transaction, key: tuple[str, str, int], writes: Iterable[object]
) -> dict[ClaimKey, int]:
    """The last offsets of what these records of writes claim of a place in the transaction."""
    found: dict[ClaimKey, int] = {}
    for claims in writes:
        if isinstance(claims, TransactionalClaims) and claims.transaction == transaction:
            for record in claims:
                if record[:3] == key and record.state is not None:
                    last = found.get(record[3:6], -1)
                    found[record[3:6]] = max(last, record.state.last)
    return found


class PendingClaims:
    """What transactions have claimed of one place.

    `ended` are those of transactions that count; `spent` are keys that the log still has and that
    say nothing any more.
    """

    __slots__ = ("_covered", "_open", "_slices", "count", "ended", "spent")

    def __init__(self) -> None:
        self._open: dict[int, dict[LogKey, ClaimState]] = {}
        # Those of open transactions, if they are known.
        self._slices: set[tuple[int, int]] | None = set()
        # What is claimed, since somebody asked for it. What has gone may be in it for as long as
        # it is done all the same.
        self._covered: Coverage | None = None
        self.ended: dict[LogKey, ClaimState] = {}
        self.spent: dict[LogKey, None] = {}
        self.count = 0
        """How many claims there are, pending or ended."""

    def __bool__(self) -> bool:
        return bool(self.count or self.spent)

    @property
    def size_bytes(self) -> int:
        """What they take in memory."""
        return (self.count + len(self.spent)) * PENDING_CLAIM_BYTES

    def __iter__(self) -> Iterator[Claim]:
        """The claims of open transactions."""
        for claims in self._open.values():
            for (key, _), state in claims.items():
                yield Claim(*key, state.last)

    @property
    def slices(self) -> AbstractSet[tuple[int, int]]:
        """Of which hashes open transactions have claimed something."""
        if self._slices is None:
            self._slices = {key[:2] for claims in self._open.values() for key, _ in claims}
        return self._slices

    @property
    def covered(self) -> Coverage:
        """What is claimed, pending or ended; not to be changed."""
        if self._covered is None:
            claims = [(claim, -1) for claim in self]
            claims += [(Claim(*key, state.last), -1) for (key, _), state in self.ended.items()]
            self._covered = Coverage().joined(claims)
        return self._covered

    def forget_covered(self) -> None:
        """Something that was done may not be any more."""
        self._covered = None

    def passed(self, stable: int) -> None:
        """The stable offset is there: what lies below needn't be kept."""
        if self._covered is not None:
            self._covered.discard_below(stable)

    def log_keys(self) -> Iterator[LogKey]:
        """Those of all that the log has of transactions."""
        for claims in self._open.values():
            yield from claims
        yield from self.ended
        yield from self.spent

    @property
    def has_many(self) -> bool:
        """Whether it takes several writes until nothing is ended or spent."""
        return len(self.ended) + len(self.spent) > TOGETHER

    def next_ended(self) -> dict[LogKey, ClaimState]:
        """The first ones of those that are ended."""
        return dict(islice(self.ended.items(), TOGETHER))

    def next_spent(self) -> list[LogKey]:
        """The first keys that say nothing any more."""
        return list(islice(self.spent, TOGETHER))

    def get(self, key: LogKey) -> ClaimState | None:
        """An open transaction's claim."""
        return self._open.get(key[1][0], {}).get(key)

    def put(self, key: LogKey, state: ClaimState) -> None:
        """A transaction has claimed this."""
        claims = self._open.setdefault(key[1][0], {})
        known = claims.get(key)
        self.count += known is None
        if known is None or known.last < state.last:
            claims[key] = state
        if self._slices is not None:
            self._slices.add(key[0][:2])
        if self._covered is not None:
            self._covered.add(Claim(*key[0], state.last))

    def remove(self, key: LogKey) -> None:
        """Its tombstone is in the log."""
        self.spent.pop(key, None)
        self.count -= self.ended.pop(key, None) is not None
        claims = self._open.get(key[1][0])
        if claims is not None and claims.pop(key, None) is not None:
            self.count -= 1
            self._slices = self._covered = None
            if not claims:
                del self._open[key[1][0]]

    def end(self, producer_id: int, topic_id: bytes, *, committed: bool) -> None:
        """The producer's transaction has ended; what it claimed of another topic says nothing."""
        claims = self._open.pop(producer_id, {})
        self._slices = None
        if not committed:
            self.count -= len(claims)
            self._covered = None
            return
        for key, state in claims.items():
            if state.topic_id == topic_id:
                self.ended[key] = state
            else:
                self.spent[key] = None
                self.count -= 1
                self._covered = None

    def void(self, topic_id: bytes) -> None:
        """The topic has this id now: what was claimed of one before says nothing."""
        self._slices = self._covered = None
        for claims in (self.ended, *self._open.values()):
            for key in [key for key, state in claims.items() if state.topic_id != topic_id]:
                del claims[key]
                self.spent[key] = None
                self.count -= 1
        self._open = {producer_id: each for producer_id, each in self._open.items() if each}
