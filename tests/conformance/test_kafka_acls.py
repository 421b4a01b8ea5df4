"""kafka-acls: what it adds, lists and removes, on Apache Kafka and here alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftpy.testing import Broker
from tests.apache_kafka import ApacheKafka, run_tool

SETTINGS = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
}


@pytest.fixture(params=["Apache Kafka", "kraftpy"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "kraftpy":
        with Broker(**SETTINGS) as broker:
            yield broker.bootstrap
    else:
        kafka = ApacheKafka(tmp_path, **SETTINGS)
        try:
            kafka.start()
            yield kafka.bootstrap
        finally:
            kafka.stop()


def listed(text: str) -> dict[str, set[str]]:
    """The entries by resource."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        head = re.match(r"Current ACLs for resource `ResourcePattern\((.*)\)`", line)
        if head is not None:
            found[head[1]] = current = set()
        elif line.strip().startswith("("):
            current.add(line.strip())
    return found


@pytest.mark.timeout(600)  # nine JVMs, one after another
def test_acls_are_added_listed_and_removed(servers: str) -> None:
    def acls(*args: str) -> str:
        return run_tool("kafka-acls", "--bootstrap-server", servers, *args)

    added = acls(
        "--add", "--allow-principal", "User:alice", "--consumer", "--topic", "t", "--group", "g"
    )
    assert "Adding ACLs for resource" in added
    acls(
        *("--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1"),
        *("--operation", "Write", "--topic", "pre", "--resource-pattern-type", "prefixed"),
    )
    acls("--add", "--allow-principal", "User:*", "--operation", "Describe", "--cluster")
    allow = "(principal=User:alice, host=*, operation={}, permissionType=ALLOW)"
    topic = "resourceType=TOPIC, name=t, patternType=LITERAL"
    group = "resourceType=GROUP, name=g, patternType=LITERAL"
    prefixed = "resourceType=TOPIC, name=pre, patternType=PREFIXED"
    cluster = "resourceType=CLUSTER, name=kafka-cluster, patternType=LITERAL"
    everything = {
        topic: {allow.format("READ"), allow.format("DESCRIBE")},
        group: {allow.format("READ")},
        prefixed: {"(principal=User:bob, host=10.0.0.1, operation=WRITE, permissionType=DENY)"},
        cluster: {"(principal=User:*, host=*, operation=DESCRIBE, permissionType=ALLOW)"},
    }
    assert listed(acls("--list")) == everything
    match = acls("--list", "--topic", "prefixes", "--resource-pattern-type", "match")
    assert listed(match) == {prefixed: everything[prefixed]}
    assert set(listed(acls("--list", "--principal", "User:alice"))) == {topic, group}
    acls("--remove", "--force", "--topic", "t")
    acls(
        *("--remove", "--force", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1"),
        *("--operation", "Write", "--topic", "pre", "--resource-pattern-type", "prefixed"),
    )
    del everything[topic], everything[prefixed]
    assert listed(acls("--list")) == everything
    with pytest.raises(RuntimeError):
        acls("--add", "--allow-principal", "nobody", "--operation", "Read", "--topic", "t")
