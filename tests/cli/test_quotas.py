"""`kraftpy quota`: what is set is what the broker has, and what it holds clients to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.testing import Broker

from .commands import failure, output


@pytest.fixture(scope="module")
def where() -> Iterator[str]:
    with Broker() as started:
        yield started.bootstrap


def listed(where: str, *args: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        output("quota", "list", *args, "-o", "json", bootstrap=where)
    )
    return found


def test_quotas_are_set_listed_and_removed(where: str) -> None:
    said = output("quota", "set", "--user", "alice", "producer_byte_rate=1048576",
                  "request_percentage=12.5", bootstrap=where)  # fmt: skip
    assert said.splitlines() == [
        "user alice: producer_byte_rate is 1048576",
        "user alice: request_percentage is 12.5",
    ]
    output("quota", "set", "--user", "alice", "--client-defaults", "consumer_byte_rate=5",
           bootstrap=where)  # fmt: skip
    output("quota", "set", "--ip", "::ffff:10.0.0.1", "connection_creation_rate=3",
           bootstrap=where)  # fmt: skip
    alone = {
        "user": "alice",
        "quotas": {"producer_byte_rate": 1048576.0, "request_percentage": 12.5},
    }
    both = {"client-id": None, "user": "alice", "quotas": {"consumer_byte_rate": 5.0}}
    address = {"ip": "10.0.0.1", "quotas": {"connection_creation_rate": 3.0}}
    assert listed(where) == [both, address, alone]
    assert listed(where, "--user", "alice") == [both, alone]
    assert listed(where, "--client-defaults") == [both]
    lines = output("quota", "list", "--user", "alice", bootstrap=where).splitlines()
    assert [line.split() for line in lines] == [
        ["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"],
        ["alice", "<default>", "consumer_byte_rate", "5"],
        ["alice", "producer_byte_rate", "1048576"],
        ["alice", "request_percentage", "12.5"],
    ]
    said = output("quota", "remove", "--user", "alice", "request_percentage", bootstrap=where)
    assert said == "user alice: request_percentage is removed\n"
    del alone["quotas"]["request_percentage"]  # type: ignore[attr-defined]
    assert listed(where, "--user", "alice") == [both, alone]
    output("quota", "remove", "--user", "alice", "--client-defaults", bootstrap=where)
    assert listed(where, "--user", "alice") == [alone]
    said = failure("quota", "remove", "--user", "alice", "consumer_byte_rate", code=1,
                   bootstrap=where)  # fmt: skip
    assert "user alice has no consumer_byte_rate" in said


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["set", "--user", "a", "producer_byte_rate=nan"], "must be a number above 0"),
        (["set", "--user", "a", "producer_byte_rate=0.5"], "whole number"),
        (["set", "--user", "a", "producer_byte_rate=much"], "'much' is no number"),
        (["set", "--user", "a", "retention.ms=5"], "there is no quota 'retention.ms'"),
        (["set", "--user", "a", "--ip", "10.0.0.1", "request_percentage=5"], "goes with no other"),
        (["set", "--ip", "localhost", "connection_creation_rate=5"], "is no ip address"),
        (["set", "request_percentage=5"], "say whose"),
        (["remove", "--user", "a", "--user-defaults"], "exclude each other"),
    ],
)
def test_trap_20_what_is_no_quota_is_wrong_usage(args: list[str], words: str) -> None:
    """Trap 20 of security, quotas: NaN and 0.5; no broker is asked."""
    assert words in failure("quota", *args, code=2)
