"""Claims and the stable offset, against a plain table of offsets and hashes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.client.ledger import Ledger
from kraftpy.core.groups.individual.coverage import WHOLE, Claim, Coverage
from kraftpy.protocol.key_hash import HASH_MAX

_PARTS = 8
_PART = (HASH_MAX + 1) // _PARTS
_END = 24


def part(first: int, last: int) -> tuple[int, int]:
    """The hashes of some eighths."""
    return first * _PART, (last + 1) * _PART - 1


_slices = st.tuples(st.integers(0, _PARTS - 1), st.integers(0, _PARTS - 1)).map(
    lambda pair: part(min(pair), max(pair))
)
_offsets = st.integers(0, _END)


@st.composite
def _claims(draw: st.DrawFn) -> Claim:
    first = draw(_offsets)
    return Claim(*draw(_slices), first, first + draw(st.integers(0, 9)))


def claimed(*claims: tuple[tuple[int, int], int, int]) -> Coverage:
    coverage = Coverage()
    for slice_, first, last in claims:
        coverage.add(Claim(*slice_, first, last))
    return coverage


def stable(claims: list[Claim], offset: int) -> int:
    """By looking at each offset and eighth."""
    while all(
        any(
            claim.low <= eighth * _PART <= claim.high and claim.first <= offset <= claim.last
            for claim in claims
        )
        for eighth in range(_PARTS)
    ):
        offset += 1
    return offset


def test_the_drafts_example_of_a_stable_offset_that_moves() -> None:
    """[43-44] beside [45-47] with 43 to be read next: on to 48, and both records may go."""
    coverage = claimed((WHOLE, 45, 47))
    assert coverage.stable_from(43) == 43
    coverage.add(Claim(*WHOLE, 43, 44))
    assert coverage.stable_from(43) == 48
    assert [first for _, _, first in coverage.discard_below(48)] == [43]
    assert (list(coverage), coverage.count, coverage.slices_count) == ([], 0, 0)


def test_it_waits_for_the_slowest_slice() -> None:
    coverage = claimed((part(0, 3), 0, 99), (part(4, 7), 0, 9))
    assert coverage.stable_from(0) == 10
    coverage.add(Claim(*part(4, 7), 11, 50))
    assert coverage.stable_from(0) == 10
    coverage.add(Claim(*part(4, 7), 10, 10))
    assert coverage.stable_from(0) == 51


def test_offsets_without_a_record_hold_nothing_up() -> None:
    """Markers, what was aborted, what compaction took: they have no key, and so no owner."""
    there = {0: 1, 1: 6, 2: 3, 4: 7, 7: 0, 9: 5}
    ledgers = []
    for first in (0, 4):
        low, high = part(first, first + 3)
        ledger = Ledger(explicit=True)
        ledger.add([(low, high + 1)], 0)
        lane = ledger.turn()
        readers = ledger.readers(lane)
        end = ledger.fetched(lane, 12, 12)
        mine = [o for o, eighth in there.items() if ledger.hand_out(eighth * _PART, o, readers)]
        ledger.advance(readers, end)
        for offset in mine:
            assert ledger.done(offset)
        ledgers.append(ledger)
    coverage = Coverage()
    for ledger in ledgers:
        for due in ledger.dues().accounts:
            for low, end in due.slices:
                for first, last in due.ranges:
                    coverage.add(Claim(low, end - 1, first, last))
        assert coverage.count <= 2
    assert coverage.stable_from(0) == 12


def test_a_hash_that_nobody_claims_holds_it() -> None:
    assert claimed((part(0, 6), 0, 99)).stable_from(0) == 0
    assert claimed((part(1, 7), 0, 99)).stable_from(0) == 0
    assert claimed((part(0, 2), 0, 99), (part(4, 7), 0, 99)).stable_from(0) == 0


def test_slices_of_two_generations_add_up() -> None:
    """Two members had half each, three have a third of what follows."""
    coverage = claimed((part(0, 3), 0, 49), (part(4, 7), 0, 59))
    coverage.add(Claim(*part(0, 1), 50, 80))
    coverage.add(Claim(*part(2, 4), 50, 70))
    coverage.add(Claim(*part(5, 7), 60, 90))
    assert coverage.stable_from(0) == 71


@settings(max_examples=300)
@given(st.lists(_claims(), max_size=14), _offsets)
def test_coverage_has_the_stable_offset_of_its_claims(claims: list[Claim], offset: int) -> None:
    coverage = Coverage()
    for claim in claims:
        coverage.add(claim)
    assert coverage.stable_from(offset) == stable(claims, offset)
    assert coverage.count == len(list(coverage))


@given(st.lists(_claims(), max_size=14), _offsets, _offsets)
def test_letting_go_below_changes_nothing_above(
    claims: list[Claim], offset: int, later: int
) -> None:
    coverage = Coverage()
    for claim in claims:
        coverage.add(claim)
    before = {(each.low, each.high, each.first) for each in coverage}
    gone = set(coverage.discard_below(offset))
    assert before - gone == {(each.low, each.high, each.first) for each in coverage}
    assert coverage.count == len(list(coverage))
    later = max(offset, later)
    assert coverage.stable_from(later) == stable(claims, later)


@given(st.lists(_claims(), max_size=14), _offsets, _offsets)
def test_nothing_is_claimed_from_where_the_log_was_cut(
    claims: list[Claim], cut: int, offset: int
) -> None:
    coverage = Coverage()
    for claim in claims:
        coverage.add(claim)
    before = {(each.low, each.high, each.first) for each in coverage}
    gone, shorter = coverage.discard_from(cut)
    left = [each._replace(last=min(each.last, cut - 1)) for each in claims if each.first < cut]
    assert coverage.stable_from(offset) == stable(left, offset)
    names = {(each.low, each.high, each.first) for each in coverage}
    assert before - {(each.low, each.high, each.first) for each in gone} == names
    assert set(shorter) <= set(coverage)
    assert coverage.count == len(list(coverage))


def _rows(coverage: Coverage) -> list[object]:
    return [*coverage.slices(), coverage.count]


@given(st.lists(_claims(), max_size=10), st.lists(_claims(), max_size=4), _offsets, _offsets)
def test_what_is_drafted_changes_the_draft_alone(
    claims: list[Claim], more: list[Claim], below: int, cut: int
) -> None:
    coverage = Coverage()
    for claim in claims:
        coverage.add(claim)
    before = _rows(coverage)
    draft, copy = coverage.draft(), coverage.copy()
    for claim in more:
        assert draft.add(claim, 3) == copy.add(claim, 3)
        assert draft.remove(claim[:3]) == copy.remove(claim[:3])
        draft.put(claim, 4)
        copy.put(claim, 4)
    assert sorted(draft.discard_below(below)) == sorted(copy.discard_below(below))
    assert draft.discard_from(cut) == copy.discard_from(cut)
    row = (50, 51, 1, b"", 0)
    assert draft.extend(*part(0, 3), [row]) == copy.extend(*part(0, 3), [row])
    assert _rows(draft) == _rows(copy)
    assert _rows(coverage) == before


@given(st.lists(_claims(), max_size=10), _claims(), _offsets)
def test_no_claim_passes_an_offset_that_none_may(
    claims: list[Claim], claim: Claim, offset: int
) -> None:
    coverage = Coverage()
    for each in claims:
        coverage.add(each)
    offset = coverage.stable_from(offset)
    may = coverage.may_pass(offset, claim.low, claim.high)
    coverage.add(claim)
    assert may or coverage.stable_from(offset) == offset
