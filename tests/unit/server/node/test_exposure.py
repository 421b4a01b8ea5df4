"""What a node says when it starts of what its configuration lets anybody do."""

from __future__ import annotations

import pytest

from kraftpy import events
from kraftpy.core.config import BrokerConfig
from kraftpy.core.metadata import MetadataState
from kraftpy.events import EventLog
from kraftpy.quorum.credentials import QuorumSecret
from kraftpy.server.cluster.logins import gates
from kraftpy.server.node.exposure import tell_exposure

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required user_alice='marker-word';"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> EventLog:
    log = EventLog()
    monkeypatch.setattr(events, "_log", log)
    return log


def config_of(listeners: str, **settings: str) -> BrokerConfig:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return BrokerConfig.from_properties({"node.id": "1", "listeners": listeners, **given})


def told(log: EventLog, config: BrokerConfig) -> dict[str, str]:
    """The settings that are warned of, and why."""
    tell_exposure(config)
    found = log.kept()
    assert {each.name for each in found} <= {"exposed"}
    assert all(each.fields["advice"] for each in found)
    return {str(each.fields["setting"]): str(each.fields["reason"]) for each in found}


@pytest.mark.parametrize(
    ("host", "warned"),
    [
        ("127.0.0.1", False),
        ("127.9.9.9", False),
        ("[::1]", False),
        ("localhost", False),
        ("", True),
        ("0.0.0.0", True),
        ("[::]", True),
        ("192.0.2.1", True),
        ("broker.example", True),
    ],
)
def test_plain_text_that_others_reach_is_warned_of(
    fresh: EventLog, host: str, warned: bool
) -> None:
    found = told(fresh, config_of(f"PLAINTEXT://{host}:9092"))
    assert [*found] == ([f"listeners=PLAINTEXT://{host}:9092"] if warned else [])
    assert all("may read, write and delete everything" in each for each in found.values())


def test_it_is_the_protocol_that_counts_and_not_the_controllers_listener(fresh: EventLog) -> None:
    config = config_of(
        "IN://:1,OUT://:2,LOGIN://:3,CONTROLLER://:4",
        listener__security__protocol__map="IN:PLAINTEXT,OUT:SSL,LOGIN:SASL_PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        inter__broker__listener__name="IN",
        controller__quorum__voters="1@192.0.2.1:4",
        ssl__keystore__location="broker.pem",
        sasl__enabled__mechanisms="SCRAM-SHA-256",
    )
    assert [*told(fresh, config)] == ["listeners=IN://:1"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "may do what ACLs let User:ANONYMOUS do, and"),
        (
            {"allow__everyone__if__no__acl__found": "true"},
            "do what ACLs let User:ANONYMOUS do and whatever no ACL is about, and",
        ),
        ({"super__users": "User:admin;User:ANONYMOUS"}, "may do everything, and"),
    ],
)
def test_with_an_authorizer_it_says_what_anybody_may(
    fresh: EventLog, settings: dict[str, str], said: str
) -> None:
    config = config_of("PLAINTEXT://:9092", authorizer__class__name=AUTHORIZER, **settings)
    assert said in told(fresh, config)["listeners=PLAINTEXT://:9092"]


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"authorizer__class__name": AUTHORIZER, "super__users": "User:a;User:ANONYMOUS"}, True),
        ({"authorizer__class__name": AUTHORIZER, "super__users": "User:a"}, False),
        ({"super__users": "User:ANONYMOUS"}, False),
    ],
)
def test_anonymous_as_a_super_user_is_warned_of_on_loopback_too(
    fresh: EventLog, settings: dict[str, str], warned: bool
) -> None:
    found = told(fresh, config_of("PLAINTEXT://127.0.0.1:9092", **settings))
    assert [*found] == (["super.users"] if warned else [])
    assert all("who doesn't log in may do everything" in each for each in found.values())


@pytest.mark.parametrize(
    ("protocol", "host", "mechanism", "warned"),
    [
        ("SASL_PLAINTEXT", "192.0.2.1", "PLAIN", True),
        ("SASL_PLAINTEXT", "127.0.0.1", "PLAIN", False),
        ("SASL_PLAINTEXT", "192.0.2.1", "SCRAM-SHA-512", False),
        ("SASL_SSL", "192.0.2.1", "PLAIN", False),
    ],
)
def test_passwords_that_can_be_read_on_the_network_are_warned_of(
    protocol: str, host: str, mechanism: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(
        f"{protocol}://{host}:9092",
        ssl__keystore__location="broker.pem",
        security__inter__broker__protocol=protocol,
        sasl__mechanism__inter__broker__protocol="SCRAM-SHA-512",
        sasl__enabled__mechanisms=f"{mechanism}",
        **{f"listener__name__{protocol.lower()}__plain__sasl__jaas__config": PLAIN},
    )
    gates(config, MetadataState, QuorumSecret(b"s" * 32))
    assert ("takes passwords by PLAIN without TLS" in caplog.text) == warned
    assert "marker-word" not in caplog.text
