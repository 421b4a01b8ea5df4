"""Sets of offsets, against Python's sets."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kraftpy.pipeline.ranges import OffsetRange, Span, Spans, common, merged, missing, union

SPAN = st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair)))
SPANS = st.lists(SPAN, max_size=8).map(lambda spans: union((), spans))


def offsets(spans: Spans) -> set[int]:
    return {offset for start, end in spans for offset in range(start, end)}


def is_normal(spans: Spans) -> bool:
    bounds = [bound for span in spans for bound in span]
    return all(low < high for low, high in itertools.pairwise(bounds))


@given(SPANS, st.lists(SPAN, max_size=4))
def test_a_union_has_the_offsets_of_both(spans: Spans, more: list[Span]) -> None:
    both = union(spans, more)
    assert offsets(both) == offsets(spans) | offsets(tuple(more))
    assert is_normal(both)


@given(SPANS, SPAN)
def test_what_is_common_and_what_is_missing_make_up_the_span(spans: Spans, span: Span) -> None:
    wanted = set(range(*span))
    assert offsets(common(spans, *span)) == offsets(spans) & wanted
    assert offsets(missing(spans, *span)) == wanted - offsets(spans)
    assert is_normal(missing(spans, *span))


RANGES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), SPAN), max_size=8)


@given(RANGES)
def test_ranges_are_merged_by_partition(found: list[tuple[str, int, Span]]) -> None:
    together = merged(OffsetRange(topic, number, *span) for topic, number, span in found)
    for name in itertools.product("ab", (0, 1)):
        spans = tuple((one.start, one.end) for one in together if one[:2] == name)
        assert spans == union((), [span for *here, span in found if tuple(here) == name])
