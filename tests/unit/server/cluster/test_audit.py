"""The audit log: denials at once, repeats in one line, and no more than is told apart."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.core.config import BrokerConfig
from kraftpy.core.security.acl_table import AclTable
from kraftpy.core.security.acls import Operation, Resource
from kraftpy.core.security.authorizer import Authorizer, View
from kraftpy.core.security.principals import Principal
from kraftpy.server.cluster import audit
from kraftpy.server.cluster.audit import AuditLog, authorizer_of


class Loop:
    """Timers that the test lets go off."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []

    def call_later(self, _delay_s: float, call: Callable[[], None]) -> None:
        self.timers.append(call)


def view(name: str = "alice") -> View:
    return Authorizer(AclTable()).view(Principal("User", name), "10.0.0.1")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []

    def emit(logger: logging.Logger, level: int, event: str, **fields: Any) -> None:
        assert (logger.name, level, event) == (
            "kafka.authorizer.logger",
            logging.INFO,
            "access-denied",
        )
        lines.append(fields)

    monkeypatch.setattr(audit, "emit", emit)
    return lines


def test_repeats_are_one_line(told: list[dict[str, Any]]) -> None:
    loop: Any = Loop()
    log = AuditLog(loop)
    for _ in range(50):
        log.denied(view(), Operation.READ, Resource.TOPIC, "t")
    log.denied(view(), Operation.WRITE, Resource.TOPIC, "t")
    assert [each["times"] for each in told] == [1, 1]
    assert told[0] == {
        "principal": "User:alice",
        "host": "10.0.0.1",
        "operation": "READ",
        "resource": "TOPIC",
        "name": "t",
        "times": 1,
    }
    (timer,) = loop.timers
    timer()
    assert [each["times"] for each in told[2:]] == [49]
    log.denied(view(), Operation.READ, Resource.TOPIC, "t")
    assert told[-1]["times"] == 1
    assert log.denials == 52


def test_so_many_are_told_apart(
    told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "KEPT_MAX", 3)
    loop: Any = Loop()
    log = AuditLog(loop)
    for number in range(10):
        log.denied(view(), Operation.READ, Resource.TOPIC, f"t{number}")
    assert [each["name"] for each in told] == ["t0", "t1", "t2"]
    loop.timers[0]()
    assert (told[-1]["principal"], told[-1]["times"]) == ("(others)", 7)


def test_there_is_an_authorizer_if_the_configuration_says_so() -> None:
    acls = AclTable()
    assert authorizer_of(BrokerConfig.from_properties({}), acls) is None
    name = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    properties = {"authorizer.class.name": name, "super.users": "User:admin; User:CN=a,O=b"}
    found = authorizer_of(BrokerConfig.from_properties(properties), acls)
    assert found is not None
    assert found.super_users == {Principal("User", "admin"), Principal("User", "CN=a,O=b")}
    assert not found.allows_without_acls
