"""`kraftpy acl`, and `kraftpy user` by way of a broker: what is said is what the broker does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.testing import Broker
from tests.processes import free_port

from .commands import failure, output, run_command

PASSWORD = "marker-password-8"


@pytest.fixture(scope="module")
def logins() -> str:
    """The address of the listener that asks for a login."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def broker(logins: str) -> Iterator[Broker]:
    controller = f"127.0.0.1:{free_port()}"
    with Broker(
        listeners=f"PLAINTEXT://127.0.0.1:0,LOGINS://{logins},CONTROLLER://{controller}",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,LOGINS:SASL_PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        controller_quorum_voters=f"1@{controller}",
        sasl_enabled_mechanisms="SCRAM-SHA-256,SCRAM-SHA-512",
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS;User:admin",
    ) as started:
        yield started


@pytest.fixture
def acls(broker: Broker) -> Iterator[str]:
    """The broker's address; its ACLs go behind the test."""
    yield broker.bootstrap
    run_command("acl", "remove", "--resource-pattern-type", "any", "--permission", "allow",
                bootstrap=broker.bootstrap)  # fmt: skip
    run_command("acl", "remove", "--resource-pattern-type", "any", "--permission", "deny",
                bootstrap=broker.bootstrap)  # fmt: skip


def found(where: str, *args: str) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = json.loads(output(*args, "-o", "json", bootstrap=where))
    return answer


def test_what_is_added_is_listed_and_removed(acls: str) -> None:
    allow = ("--allow-principal", "User:alice", "--operation", "DescribeConfigs")
    added = found(acls, "acl", "add", *allow, "--topic", "orders")
    assert added == [
        {
            "permission": "ALLOW",
            "principal": "User:alice",
            "host": "*",
            "operation": "DESCRIBE_CONFIGS",
            "resource": "TOPIC",
            "name": "orders",
            "pattern": "LITERAL",
        }
    ]
    deny = ("--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "write")
    prefix = ("--resource-pattern-type", "prefixed", "--topic", "or")
    output("acl", "add", *deny, *prefix, bootstrap=acls)
    of_orders = found(acls, "acl", "list", "--topic", "orders")
    assert [each["principal"] for each in of_orders] == ["User:bob", "User:alice"]
    assert found(acls, "acl", "list", "--topic", "other") == []
    assert found(acls, "acl", "list", "--principal", "User:alice") == added
    literal = ("acl", "remove", "--topic", "orders")
    assert found(acls, *literal, "--dry-run") == added
    assert len(found(acls, "acl", "list")) == 2
    assert found(acls, *literal) == added
    (left,) = found(acls, "acl", "list")
    assert (left["principal"], left["host"], left["pattern"]) == (
        "User:bob",
        "10.0.0.1",
        "PREFIXED",
    )
    table = output("acl", "list", bootstrap=acls).splitlines()
    assert table[0].split() == [
        "PERMISSION", "PRINCIPAL", "HOST", "OPERATION", "RESOURCE", "NAME", "PATTERN",
    ]  # fmt: skip
    assert table[1].split()[:4] == ["DENY", "User:bob", "10.0.0.1", "WRITE"]


def test_what_clients_need(acls: str) -> None:
    who = ("--allow-principal", "User:carol")
    made = found(acls, "acl", "add", *who, "--producer", "--topic", "t", "--transactional-id", "x")
    assert {(each["resource"], each["operation"]) for each in made} == {
        ("TOPIC", "WRITE"), ("TOPIC", "DESCRIBE"), ("TOPIC", "CREATE"),
        ("TRANSACTIONAL_ID", "WRITE"), ("TRANSACTIONAL_ID", "DESCRIBE"),
    }  # fmt: skip
    made = found(acls, "acl", "add", *who, "--consumer", "--topic", "t", "--group", "g")
    assert {(each["resource"], each["operation"]) for each in made} == {
        ("TOPIC", "READ"), ("TOPIC", "DESCRIBE"), ("GROUP", "READ"),
    }  # fmt: skip


def test_everything_that_kafka_acls_takes_is_taken(acls: str) -> None:
    given = ("--allow-principal", "User:dora", "--operation")
    for operation, *resource in (
        ("All", "--topic", "t", "--group", "g", "--cluster"),
        ("TwoPhaseCommit", "--transactional-id", "x"),
        ("CreateTokens", "--user-principal", "User:a"),
        ("Describe", "--topic", "t", "--group", "g", "--cluster", "--delegation-token", "id"),
    ):
        made = found(acls, "acl", "add", *given, operation, *resource)
        assert len(made) == sum(each.startswith("--") for each in resource)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("add", "--operation", "Read", "--topic", "t"), "nobody is named"),
        (("add", "--allow-principal", "User:a", "--operation", "Read"), "no resource is named"),
        (("add", "--allow-principal", "User:a", "--topic", "t"), "nothing is named"),
        (
            ("add", "--allow-principal", "a", "--operation", "Read", "--topic", "t"),
            "written Type:name",
        ),
        (
            ("add", "--allow-principal", "User:a", "--operation", "Raed", "--topic", "t"),
            "is none of All, Read, Write",
        ),
        (
            ("add", "--allow-principal", "User:a", "--allow-host", "h", "--operation", "Read",
             "--topic", "t"),
            "names of hosts would never match",
        ),
        (
            ("add", "--allow-principal", "User:a", "--operation", "Read", "--cluster"),
            "Read of CLUSTER would never match: there are All, Create, Alter, Describe, Cluster",
        ),
        (
            ("add", "--deny-principal", "User:a", "--operation", "Write", "--topic", "t",
             "--group", "g"),
            "Write of GROUP would never match: there are All, Read, Delete, Describe",
        ),
        (("remove",), "would remove all ACLs"),
        (("check", "--principal", "alice", "--topic", "t"), "written Type:name"),
        (("check", "--principal", "User:alice"), "no resource is named"),
    ],
)  # fmt: skip
def test_wrong_usage(broker: Broker, args: tuple[str, ...], said: str) -> None:
    assert said in failure("acl", *args, code=2, bootstrap=broker.bootstrap)


def test_nothing_is_found_to_remove(broker: Broker) -> None:
    said = failure("acl", "remove", "--topic", "t", code=1, bootstrap=broker.bootstrap)
    assert "no ACL is found by that" in said


def test_check_names_the_acl_that_decides(acls: str) -> None:
    alice = ("--allow-principal", "User:alice")
    prefix = ("--resource-pattern-type", "prefixed")
    output("acl", "add", *alice, "--operation", "All", "--topic", "or", *prefix, bootstrap=acls)
    deny = ("--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--operation", "Write")
    output("acl", "add", *deny, "--topic", "orders", bootstrap=acls)
    check = ("acl", "check", "--topic", "orders", "--operation", "Write")
    (decided,) = found(acls, *check, "--principal", "User:alice")
    assert decided["allowed"]
    assert (decided["acl"]["name"], decided["acl"]["pattern"]) == ("or", "PREFIXED")
    done = run_command(
        *check, "--principal", "User:alice", "--host", "::ffff:10.0.0.1", bootstrap=acls
    )
    assert done.returncode == 1
    assert done.stdout.decode().splitlines()[1].split(maxsplit=4) == [
        "TOPIC", "orders", "WRITE", "DENIED", "DENY WRITE on TOPIC orders to User:* from 10.0.0.1",
    ]  # fmt: skip
    done = run_command(*check, "--principal", "User:bob", "-o", "json", bootstrap=acls)
    assert done.returncode == 1
    (decided,) = json.loads(done.stdout)
    assert (decided["allowed"], decided["acl"]) == (False, None)
    assert decided["because"] == "there are ACLs of the resource, none that allows it"
    (decided,) = found(acls, *check, "--principal", "User:admin")
    assert decided["because"] == "a super user may do everything"
    every = found(acls, "acl", "check", "--topic", "orders", "--principal", "User:alice")
    assert len(every) == 8
    assert all(each["allowed"] for each in every)


def test_users_by_way_of_a_broker(broker: Broker, logins: str) -> None:
    where = broker.bootstrap
    line = f"{PASSWORD}\n".encode()
    said = output("user", "add", "alice", bootstrap=where, stdin=line)
    assert said == "alice may log in by SCRAM-SHA-256, SCRAM-SHA-512\n"
    bob = ("user", "add", "bob", "--mechanism", "SCRAM-SHA-512", "--iterations", "8192")
    output(*bob, bootstrap=where, stdin=line)
    assert found(where, "user", "list") == [
        {"user": "alice", "mechanisms": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}},
        {"user": "bob", "mechanisms": {"SCRAM-SHA-512": 8192}},
    ]
    rows = output("user", "list", bootstrap=where).splitlines()
    assert rows[0].split() == ["USER", "MECHANISM", "ITERATIONS"]
    assert rows[3].split() == ["bob", "SCRAM-SHA-512", "8192"]
    login = ["topic", "list", "-b", logins, "-X", "security.protocol=SASL_PLAINTEXT"]
    login += ["-X", "sasl.username=bob", "-X", "sasl.mechanism=SCRAM-SHA-512"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KRAFTPY_SASL_PASSWORD", PASSWORD)
        output(*login)
        given = login[2:]
        (row,) = json.loads(output("cluster", "brokers", "-o", "json", *given))
        assert (row["state"], row["leads"], row["replicas"], row["bytes"]) == ("up", *3 * [None])
        assert output("cluster", "brokers", *given).split()[-3:] == ["-", "-", "-"]
        said = failure("topic", "create", "orders", *given, code=1)
        assert "TOPIC_AUTHORIZATION_FAILED" in said
        assert "`kraftpy acl check --principal User:NAME --topic orders`" in said
        output("user", "remove", "alice", "--mechanism", "SCRAM-SHA-512", bootstrap=where)
        said = failure("user", "remove", "bob", "nobody", code=1, bootstrap=where)
        assert "user 'nobody' has no such credentials" in said
        assert found(where, "user", "list") == [
            {"user": "alice", "mechanisms": {"SCRAM-SHA-256": 4096}}
        ]
        assert "Look at sasl.username" in failure(*login, code=1)
    said = failure("user", "add", "__broker_1", code=1, bootstrap=where, stdin=line)
    assert "UNACCEPTABLE_CREDENTIAL" in said
    assert PASSWORD not in broker.log_path.read_text()


def test_without_an_authorizer_there_are_no_acls(started: Broker) -> None:
    assert "everybody may do everything" in failure(
        "acl", "list", code=1, bootstrap=started.bootstrap
    )


@pytest.fixture
def started() -> Iterator[Broker]:
    with Broker() as plain:
        yield plain
