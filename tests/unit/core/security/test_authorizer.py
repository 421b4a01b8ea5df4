"""Who may do what: against a naive oracle, and the cases that are easy to get wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.core.security import authorizer as module
from kraftpy.core.security.acl_table import EVERYTHING, AclTable
from kraftpy.core.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
    address,
    new_acl,
    principals_in,
)
from kraftpy.core.security.authorizer import Authorizer, View
from kraftpy.core.security.principals import Principal
from kraftpy.protocol.errors import KafkaError
from tests.unit.core.security import acl_oracle

ALICE = Principal("User", "alice")
BOB = Principal("User", "bob")
HOST = "10.0.0.1"


def acl(
    operation: Operation,
    name: str = "a",
    *,
    pattern: Pattern = Pattern.LITERAL,
    permission: Permission = Permission.ALLOW,
    principal: str = "User:alice",
    host: str = "*",
    resource_type: Resource = Resource.TOPIC,
) -> Acl:
    return new_acl(Acl(resource_type, name, pattern, principal, host, operation, permission))


def table(*acls: Acl) -> AclTable:
    filled = AclTable()
    for each in acls:
        filled.add(each)
    return filled


def view(*acls: Acl, default: bool = False, supers: tuple[Principal, ...] = ()) -> View:
    rights = Authorizer(table(*acls), super_users=supers, allows_without_acls=default)
    return rights.view(ALICE, HOST)


# -- the oracle

NAMES = ("a", "ab", "abc", "b", "*")
OPERATIONS = [each for each in Operation if each > Operation.ALL]
ACLS = st.builds(
    Acl,
    st.sampled_from((int(Resource.TOPIC), int(Resource.GROUP))),
    st.sampled_from(NAMES),
    st.sampled_from((int(Pattern.LITERAL), int(Pattern.PREFIXED))),
    st.sampled_from(("User:alice", "User:*", "User:bob", "Other:alice")),
    st.sampled_from(("*", HOST, "10.0.0.2")),
    st.sampled_from([int(each) for each in Operation if each != Operation.ANY]),
    st.sampled_from((int(Permission.DENY), int(Permission.ALLOW))),
)
CHANGES = st.lists(st.tuples(st.booleans(), ACLS), max_size=30)


@settings(max_examples=400)
@given(changes=CHANGES, default=st.booleans(), is_super=st.booleans())
def test_every_decision_is_that_of_the_oracle(
    changes: list[tuple[bool, Acl]], default: bool, is_super: bool
) -> None:
    supers = (BOB, ALICE) if is_super else (BOB,)
    acls = AclTable()
    there: set[Acl] = set()
    rights = Authorizer(acls, super_users=supers, allows_without_acls=default)
    mine = rights.view(ALICE, HOST)
    for number, (adds, each) in enumerate(changes):
        if adds and each not in there:
            acls.add(each)
            there.add(each)
        elif not adds and each in there:
            acls.remove(each)
            there.remove(each)
        else:
            continue
        acls.version = number + 1
        mine.mask(Resource.TOPIC, "ab")  # remembered, and to be forgotten
    assert set(acls) == there
    for name in ("a", "ab", "abc", "abcd", "b", "c", "*", "*x"):
        for operation in OPERATIONS:
            expected = acl_oracle.allowed(
                there, supers, default, ALICE, HOST, operation, Resource.TOPIC, name
            )
            assert mine.may(operation, Resource.TOPIC, name) == expected, (operation, name)
            explained = mine.explain(operation, Resource.TOPIC, name)
            assert explained.allowed == expected
            if explained.acl is not None:
                assert (explained.acl.permission == Permission.ALLOW) == expected


@given(acls=st.sets(ACLS, max_size=30), wanted=st.sampled_from(NAMES), match=st.booleans())
def test_a_filter_finds_what_a_look_at_each_finds(acls: set[Acl], wanted: str, match: bool) -> None:
    filled = table(*acls)
    by = AclFilter(Resource.TOPIC, wanted, Pattern.MATCH if match else Pattern.ANY)
    applies = [
        each
        for each in acls
        if each.resource_type == Resource.TOPIC
        and (
            each.name == wanted
            or (
                match
                and (
                    each.name == "*"
                    if each.pattern == Pattern.LITERAL
                    else wanted.startswith(each.name)
                )
            )
        )
    ]
    assert filled.found(by) == sorted(applies)
    assert filled.found(AclFilter()) == sorted(acls)
    for each in acls:
        assert filled.found(AclFilter(*each)) == [each]


# -- traps


@pytest.mark.parametrize(
    "denied", [("a", Pattern.LITERAL), ("*", Pattern.LITERAL), ("a", Pattern.PREFIXED)]
)
@pytest.mark.parametrize(
    "allowed", [("a", Pattern.LITERAL), ("*", Pattern.LITERAL), ("a", Pattern.PREFIXED)]
)
@pytest.mark.parametrize("whose", ["User:alice", "User:*"])
def test_trap_13_deny_wins_at_every_width(
    denied: tuple[str, Pattern], allowed: tuple[str, Pattern], whose: str
) -> None:
    allow = acl(Operation.ALL, allowed[0], pattern=allowed[1])
    deny = acl(
        Operation.READ, denied[0], pattern=denied[1], permission=Permission.DENY, principal=whose
    )
    both = view(allow, deny)
    assert not both.may(Operation.READ, Resource.TOPIC, "a")
    assert both.may(Operation.WRITE, Resource.TOPIC, "a")
    assert both.may(Operation.DESCRIBE, Resource.TOPIC, "a")  # DENY implies nothing


def test_trap_14_a_prefix_is_one_and_a_name_is_none() -> None:
    literal = view(acl(Operation.READ, "a"))
    assert literal.may(Operation.READ, Resource.TOPIC, "a")
    assert not literal.may(Operation.READ, Resource.TOPIC, "ab")
    prefix = view(acl(Operation.READ, "ab", pattern=Pattern.PREFIXED))
    assert not prefix.may(Operation.READ, Resource.TOPIC, "a")
    assert prefix.may(Operation.READ, Resource.TOPIC, "ab")
    assert prefix.may(Operation.READ, Resource.TOPIC, "abc")
    star = view(acl(Operation.READ, "*", pattern=Pattern.PREFIXED))
    assert not star.may(Operation.READ, Resource.TOPIC, "a")
    assert star.may(Operation.READ, Resource.TOPIC, "*a")


def test_trap_17_acls_are_of_names_and_outlive_topics() -> None:
    """Nothing in a table knows topics: a name stays denied, whoever creates it again."""
    rights = view(acl(Operation.READ, "a", permission=Permission.DENY), default=True)
    assert not rights.may(Operation.READ, Resource.TOPIC, "a")


def test_of_another_s_acls_only_that_they_are_there_counts() -> None:
    others = acl(Operation.READ, "a", principal="User:bob")
    assert not view(others, default=True).may(Operation.WRITE, Resource.TOPIC, "a")
    assert view(others, default=True).may(Operation.WRITE, Resource.TOPIC, "b")
    assert not view(others).may(Operation.WRITE, Resource.TOPIC, "b")


def test_hosts_are_addresses() -> None:
    assert address("0:0:0:0:0:0:0:1") == address("::1") == "::1"
    assert address("::ffff:10.0.0.1") == HOST
    assert address("fe80::1%eth0") == "fe80::1"
    assert view(acl(Operation.READ, host="::ffff:10.0.0.1")).may(
        Operation.READ, Resource.TOPIC, "a"
    )
    assert not view(acl(Operation.READ, host="10.0.0.2")).may(Operation.READ, Resource.TOPIC, "a")
    with pytest.raises(KafkaError, match="never match"):
        acl(Operation.READ, host="example.com")


@pytest.mark.parametrize(
    "changed",
    [
        {"resource_type": Resource.ANY},
        {"resource_type": 0},
        {"resource_type": 8},
        {"pattern": Pattern.MATCH},
        {"pattern": 9},
        {"operation": Operation.ANY},
        {"operation": 16},
        {"permission": Permission.ANY},
        {"name": ""},
        {"name": "x" * 1025},
        {"principal": "alice"},
        {"principal": "User:"},
        {"principal": ":alice"},
        {"resource_type": Resource.CLUSTER, "name": "other"},
    ],
)
def test_what_can_t_be_an_acl_is_refused(changed: dict[str, object]) -> None:
    good = Acl(
        Resource.TOPIC, "a", Pattern.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
    )
    assert new_acl(good) == good
    with pytest.raises(KafkaError):
        new_acl(good._replace(**changed))  # type: ignore[arg-type]


def test_brokers_have_cluster_action_and_nothing_else() -> None:
    denied = acl(
        Operation.ALL,
        CLUSTER_NAME,
        resource_type=Resource.CLUSTER,
        permission=Permission.DENY,
        principal="User:*",
    )
    every = acl(Operation.ALL, "*", principal="User:*")
    rights = Authorizer(table(denied, every), allows_without_acls=True)
    peer = rights.view(Principal("Broker", "1"), HOST)
    assert peer.mask(Resource.CLUSTER, CLUSTER_NAME) == 1 << Operation.CLUSTER_ACTION
    assert peer.mask(Resource.TOPIC, "a") == 0
    assert not peer.may_write_any_topic()
    assert rights.view(Principal("User", "1"), HOST).mask(Resource.CLUSTER, CLUSTER_NAME) == 0


def test_super_users_are_split_at_semicolons_and_ask_no_acl() -> None:
    assert principals_in("User:alice; User:CN=x,O=y:z ;") == {
        ALICE,
        Principal("User", "CN=x,O=y:z"),
    }
    for wrong in ("alice", "User:", "User:a;b"):
        with pytest.raises(ValueError, match="Type:name"):
            principals_in(wrong)
    deny = acl(Operation.ALL, "*", permission=Permission.DENY)
    assert view(deny, supers=(ALICE,)).mask(Resource.TOPIC, "a") == EVERYTHING


def test_writing_any_topic() -> None:
    """KIP-679: an idempotent producer without an id of its own needs one topic to write to."""
    deny = Permission.DENY
    write = Operation.WRITE
    assert not view().may_write_any_topic()
    assert view(acl(write)).may_write_any_topic()
    assert not view(acl(Operation.READ)).may_write_any_topic()
    assert not view(acl(write), acl(write, permission=deny)).may_write_any_topic()
    assert not view(
        acl(write, "ab", pattern=Pattern.PREFIXED),
        acl(write, "a", pattern=Pattern.PREFIXED, permission=deny),
    ).may_write_any_topic()
    assert view(
        acl(write, "a", pattern=Pattern.PREFIXED),
        acl(write, "ab", pattern=Pattern.PREFIXED, permission=deny),
    ).may_write_any_topic()
    assert not view(acl(write), acl(write, "*", permission=deny)).may_write_any_topic()
    assert view(default=True).may_write_any_topic()
    assert not view(acl(write, "*", principal="User:bob"), default=True).may_write_any_topic()
    assert view(supers=(ALICE,)).may_write_any_topic()


# -- what is remembered


def test_answers_are_bounded_and_hold_for_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VIEW_ANSWERS_MAX", 5)
    monkeypatch.setattr(module, "ANSWERS_MAX", 8)
    acls = AclTable()
    rights = Authorizer(acls)
    mine, other = rights.view(ALICE, HOST), rights.view(BOB, HOST)
    assert rights.view(ALICE, HOST) is mine
    for number in range(20):
        for each in (mine, other):
            each.mask(Resource.TOPIC, f"t{number}")
            kept = [len(one._answers) for one in (mine, other)]
            assert max(kept) <= 5
            assert sum(kept) <= 8
    mine.mask(Resource.TOPIC, "x" * 30_000)
    assert all(len(name) < 300 for _, name in mine._answers)
    assert not mine.may(Operation.READ, Resource.TOPIC, "a")
    acls.add(acl(Operation.READ))
    acls.version = 7
    assert mine.may(Operation.READ, Resource.TOPIC, "a")
    other_table = AclTable()
    other_table.version = 9
    rights.acls = other_table
    assert not mine.may(Operation.READ, Resource.TOPIC, "a")


def test_views_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VIEWS_MAX", 3)
    rights = Authorizer(AclTable())
    for number in range(10):
        rights.view(ALICE, f"10.0.0.{number}")
    assert len(rights._views) == 3
    assert rights.view(ALICE, "not an address").mask(Resource.TOPIC, "a") == 0


def test_the_page_may_look_at_everything_and_do_nothing() -> None:
    denied = acl(Operation.ALL, principal="User:*", permission=Permission.DENY)
    rights = Authorizer(table(denied), allows_without_acls=True)
    page = rights.view(Principal("Page", "metrics"), HOST)
    looks = {Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
    for resource_type in Resource:
        allowed = {each for each in Operation if page.may(each, resource_type, "a")}
        assert allowed == looks
    assert not page.may_write_any_topic()
    assert page.explain(Operation.DESCRIBE, Resource.TOPIC, "a").allowed
    assert not page.explain(Operation.READ, Resource.TOPIC, "a").allowed
