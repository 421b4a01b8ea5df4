"""Topics that a consumer wants by their names."""

from __future__ import annotations

import re

import pytest

from kraftpy.client.topic_filter import TopicFilter


def test_the_whole_name_has_to_match_and_what_is_excluded_goes_first() -> None:
    both = TopicFilter(include="orders-.*", exclude=re.compile(".*-TEST", re.IGNORECASE))
    names = ["orders-eu", "orders-eu-test", "orders-test-eu", "my-orders-eu", "orders-eu-Test"]
    assert [name for name in names if both.allows(name)] == ["orders-eu", "orders-test-eu"]
    only = TopicFilter(exclude="orders-.*")
    assert [name for name in names if only.allows(name)] == ["my-orders-eu"]
    assert repr(only) == "TopicFilter(exclude='orders-.*')"


def test_what_is_no_filter_is_refused_with_what_to_type() -> None:
    with pytest.raises(ValueError, match=r'include=REGEX, exclude=REGEX or both; include="\.\*"'):
        TopicFilter()
    with pytest.raises(ValueError, match=r"exclude='\(' is no regular expression: missing \)"):
        TopicFilter(include="a", exclude="(")
