"""`kraftpy token`, and logins by what it gives: on a secured node, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing import Broker

from .commands import failure, output

KEY = "marker-key-of-tokens"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(secure=True, delegation_token_secret_key=KEY) as started:
        assert started.secured is not None
        admin = str(started.secured.users["admin"])
        output("acl", "add", "--allow-principal", "User:alice", "--operation", "Create",
               "--operation", "Describe", "--topic", "of-alice", "--command-config", admin,
               bootstrap=started.bootstrap)  # fmt: skip
        yield started


class As:
    """A user's command line."""

    def __init__(self, broker: Broker, file: str | Path) -> None:
        self.broker, self.file = broker, str(file)

    def says(self, *args: str) -> str:
        given = ("--command-config", self.file)
        return output(*args, *given, bootstrap=self.broker.bootstrap)

    def json(self, *args: str) -> Any:
        return json.loads(self.says(*args, "-o", "json"))

    def fails(self, *args: str, code: int = 1) -> str:
        given = ("--command-config", self.file)
        return failure(*args, *given, code=code, bootstrap=self.broker.bootstrap)


@pytest.fixture
def admin(broker: Broker) -> As:
    assert broker.secured is not None
    return As(broker, broker.secured.users["admin"])


@pytest.fixture
def alice(broker: Broker) -> As:
    assert broker.secured is not None
    return As(broker, broker.secured.users["alice"])


def test_a_file_of_a_client_logs_in_until_the_token_is_expired(
    broker: Broker, alice: As, admin: As, tmp_path: Path
) -> None:
    """The HMAC is in the file alone, which nobody else reads, and nothing of alice's is there."""
    file = tmp_path / "job.properties"
    made = alice.json("token", "create", "--client-config", str(file),
                      "--renewer-principal", "User:admin")  # fmt: skip
    assert {key: made[key] for key in ("owner", "requester", "renewers", "file")} == {
        "owner": "User:alice",
        "requester": "User:alice",
        "renewers": ["User:admin"],
        "file": str(file),
    }
    assert "hmac" not in made
    assert made["issued_ms"] < made["expires_ms"] < made["max_ms"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert broker.secured is not None
    text = file.read_text()
    assert broker.secured.settings("alice")["sasl.password"] not in text
    assert 'tokenauth="true"' in text
    hmac = text.split('password="')[1].partition('"')[0]
    job = As(broker, file)
    assert f"bootstrap.servers={broker.bootstrap}\n" in text
    job.says("topic", "create", "of-alice")
    assert "AUTHORIZATION_FAILED" in job.fails("topic", "create", "of-others")
    assert "log in, by something else than a token" in job.fails("token", "create")

    assert "is there already" in alice.fails(
        "token", "create", "--client-config", str(file), code=2
    )
    assert file.read_text() == text
    (listed,) = admin.json("token", "list", "--owner-principal", "User:alice")
    assert listed["id"] == made["id"]
    assert "hmac" not in listed
    rows = alice.says("token", "list").splitlines()
    assert rows[0].split() == ["ID", "OWNER", "REQUESTER", "RENEWERS", "ISSUED", "EXPIRES", "MAX"]
    assert rows[1].split()[:4] == [made["id"], "User:alice", "User:alice", "User:admin"]
    assert hmac not in "".join(rows)

    assert "renewed until 20" in admin.says("token", "renew", made["id"])
    (sooner,) = alice.json("token", "expire", made["id"], "--expiry-time-period", "3600000")
    assert sooner == {"token": made["id"], "status": "shortened"}
    (listed,) = alice.json("token", "list")
    assert listed["expires_ms"] < made["expires_ms"]
    assert alice.says("token", "expire", made["id"]) == f"expired token {made['id']}\n"
    assert "Look at sasl.username" in job.fails("topic", "list")
    assert "`kraftpy token list` shows" in alice.fails("token", "renew", made["id"])
    assert hmac not in broker.log_path.read_text()
    assert KEY not in broker.log_path.read_text()


def test_create_prints_what_a_client_needs_by_either_way_to_say_it(
    broker: Broker, admin: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = admin.json("token", "create", "--max-life-time-period", "3600000",
                      "--owner-principal", "User:alice")  # fmt: skip
    assert made["max_ms"] == made["issued_ms"] + 3_600_000
    assert (made["owner"], made["requester"]) == ("User:alice", "User:admin")
    assert broker.secured is not None
    given = [
        "security.protocol=SASL_SSL",
        f"ssl.ca.location={broker.secured.ca}",
        "sasl.mechanism=SCRAM-SHA-256",
        f"sasl.username={made['id']}",
    ]
    args = [text for each in given for text in ("-X", each)]
    monkeypatch.setenv("KRAFTPY_SASL_PASSWORD", made["hmac"])
    args = ["topic", "list", *args]
    failure(*args, code=1, bootstrap=broker.bootstrap)
    output(*args, "-X", "kraftpy.sasl.tokenauth=true", bootstrap=broker.bootstrap)
    monkeypatch.delenv("KRAFTPY_SASL_PASSWORD")
    printed = dict(line.split(maxsplit=1) for line in admin.says("token", "create").splitlines())
    assert [*printed] == [
        "ID", "OWNER", "REQUESTER", "RENEWERS", "ISSUED", "EXPIRES", "MAX", "HMAC",
    ]  # fmt: skip


def test_what_is_not_allowed_leaves_no_file(alice: As, tmp_path: Path) -> None:
    file = tmp_path / "bob.properties"
    bobs = ("token", "create", "--owner-principal", "User:bob")
    said = alice.fails(*bobs, "--client-config", str(file))
    assert "kraftpy acl add --allow-principal User:YOU --operation CreateTokens" in said
    assert not file.exists()
    assert "written User:NAME" in alice.fails("token", "create", "--renewer-principal", "b", code=2)
    said = alice.fails("token", "create", "--client-config", "/nowhere/file", code=2)
    assert "cannot write /nowhere/file: No such file" in said
    assert "--mechanism is about" in alice.fails("token", "create", "--mechanism", "SCRAM-SHA-256",
                                                 code=2)  # fmt: skip
