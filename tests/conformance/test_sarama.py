"""sarama, the Go client: its groups, and what becomes of requests that a broker doesn't know.

It gives a connection up on which a request isn't answered.
"""

from __future__ import annotations

import uuid

from tests.conformance.foreign import said_by


def test_what_is_not_there_yet_is_answered(bootstrap: str) -> None:
    said = said_by("sarama", bootstrap, timeout_s=60)
    disabled = "kafka server: Security features are disabled"
    assert disabled in said["DescribeAcls"]
    assert disabled in said["CreateAcls"]
    assert said["DeleteAcls"] == "nothing"  # it keeps the error to itself
    assert said["DescribeClientQuotas"] == "nothing"
    assert said["DescribeUserScramCredentials"] not in ("nothing", "something")
    assert "EOF" not in said["DescribeUserScramCredentials"]
    assert said["Connected"] == "something"


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PER_CODEC = 40
PARTITIONS = 4


def test_members_of_a_group_share_a_topic_and_one_that_comes_later_goes_on(bootstrap: str) -> None:
    name = f"sarama-{uuid.uuid4().hex[:8]}"
    said = said_by("sarama", bootstrap, name, name, timeout_s=120)
    sent = sorted(f"{codec} {number}" for codec in CODECS for number in range(PER_CODEC))
    assert sorted(said["First"]["first"] + said["First"]["second"]) == sent
    first, second = (said["Claims"][name] for name in ("first", "second"))
    assert len(first) == len(second) == PARTITIONS // 2
    assert sorted(first + second) == list(range(PARTITIONS))
    assert sorted(said["Left"]) == [f"left {number}" for number in range(PARTITIONS)]
    assert said["Committed"] == len(sent) + PARTITIONS
    assert said["Resumed"] == ["resumed"]  # and nothing of what was committed before
    assert said["States"] == ["Stable", "Empty"]
