"""The programs of docs/admin.md run as they stand there, but for address, password and authority.

One broker serves those that don't log in, another those that do. Partitions move between two more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kraftpy import client
from kraftpy.testing import Broker, Cluster
from tests import admin_methods

from .pages import DOCS, printed_by, programs_of

PROGRAMS = programs_of("admin.md")
TOPICS, OFFSETS, GROUPS, SHARE_GROUPS, CLUSTER, TRANSACTIONS, ACCESS, TOKENS = PROGRAMS


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(secure=True, delegation_token_secret_key="marker-key-of-tokens") as broker:
        yield broker


def printed_by_admin(program: str, broker: Broker) -> list[str]:
    """What it prints on a broker where it has to log in."""
    assert broker.secured is not None
    settings = broker.secured.settings()
    for shown, meant in {"ca.pem": "ssl.ca.location", "PASSWORD": "sasl.password"}.items():
        assert f'"{shown}"' in program
        program = program.replace(f'"{shown}"', repr(settings[meant]))
    return printed_by(program, broker.bootstrap)


def test_topics_and_settings(broker: Broker) -> None:
    assert printed_by(TOPICS, broker.bootstrap) == [
        *(f"bills-{number} has a leader: True" for number in range(3)),
        "cleanup.policy compact",
        "{'bills': {'cleanup.policy': 'compact', 'retention.ms': '604800000'}}",
        "message.max.bytes 2000000",
    ]


def test_records_and_the_offsets_of_partitions(broker: Broker) -> None:
    assert printed_by(OFFSETS, broker.bootstrap) == [
        "since then {('tables', 0): 0}",
        "to {('tables', 0): 4}",
        "now from {('tables', 0): 3}",
        "from {('tables', 0): 3}",
        "bytes True",
    ]


def test_groups(broker: Broker) -> None:
    assert printed_by(GROUPS, broker.bootstrap) == [
        "refused {}",
        "refused ['UNEXPECTED_OFFSET']",
        "('payments', 0) 0 begun",
        "Stable ('payments',) (('payments', 0),)",
        "audit classic Empty",
        "forgotten {('payments', 0): None}",
    ]


def test_share_groups(broker: Broker) -> None:
    assert printed_by(SHARE_GROUPS, broker.bootstrap) == [
        "refused {}",
        "('parcels', 0) begins at 1 and lags by 2",
        "share Empty 0",
        "forgotten {'parcels': None}",
    ]


def test_the_cluster() -> None:
    with Cluster(2, links=False) as cluster:
        printed = printed_by(CLUSTER, cluster.bootstrap)
    assert printed == [
        "broker 1 serves",
        "broker 2 serves",
        "voters [1]",
        "elected {PartitionName(topic='stock', partition=0): None}",
        "stock-0 on (2, 1), led by 2",
    ]


def test_transactions(broker: Broker) -> None:
    assert printed_by(TRANSACTIONS, broker.bootstrap) == [
        "billing-1 Ongoing",
        "open in (('ledger', 0),)",
        "begins at 0",
        "PRODUCER_FENCED",
    ]


def test_users_acls_and_quotas(secured: Broker) -> None:
    assert printed_by_admin(ACCESS, secured) == [
        "{'bob': {'SCRAM-SHA-512': 4096}}",
        "ALLOW READ on TOPIC prefix orders- to User:bob from *",
        "ALLOW DESCRIBE on TOPIC prefix orders- to User:bob from *",
        "[((('user', 'bob'),), {'producer_byte_rate': 1048576.0})]",
        "2 ACLs deleted",
    ]


def test_delegation_tokens(secured: Broker) -> None:
    assert printed_by_admin(TOKENS, secured) == [
        "User:alice ('User:admin',) [hidden]",
        "renewed until then: True",
        "['User:alice']",
        "alice may not: CLUSTER_AUTHORIZATION_FAILED",
    ]


def test_every_class_is_exported_and_every_method_is_told_of() -> None:
    """Each in a program or in what is said beside it; the tables say of each one sentence more."""
    told, _, tables = (DOCS / "admin.md").read_text().partition("## All methods")
    assert "### SecurityAdmin" in tables
    for kind in admin_methods.classes():
        assert kind.__name__ in client.__all__
        assert f"| `{kind.__name__}` |" in told
        names = admin_methods.methods(kind)
        assert [name for name in names if f"{name}(" not in told and f"`{name}`" not in told] == []
