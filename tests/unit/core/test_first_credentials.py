"""The lines of the first users: as `kafka-storage format --add-scram` takes them (KIP-900)."""

from __future__ import annotations

import base64

import pytest

from kraftpy.core.metadata.commands import ScramUser
from kraftpy.core.metadata.records import ScramMechanism
from kraftpy.core.security.first_credentials import CredentialError, new_credential, read
from kraftpy.protocol.sasl import scram

SALT = b"new-salt"
SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


def users(text: str) -> tuple[ScramUser, ...]:
    return read(text, lambda: SALT)


def test_users_are_read() -> None:
    salted = scram.salted_password("SCRAM-SHA-256", "secret", b"old-salt", 8192)
    text = (
        "# the first users\n\n"
        "SCRAM-SHA-512=[name=admin,password=secret]\n"
        'SCRAM-SHA-256=[name=admin, password="a,b]" , iterations=4096]\n'
        f'SCRAM-SHA-256=[name=alice,iterations=8192,salt="{base64.b64encode(b"old-salt").decode()}"'
        f',saltedpassword="{base64.b64encode(salted).decode()}"]\n'
    )
    assert users(text) == (
        ScramUser(
            "admin",
            (
                new_credential(SHA_512, "secret", SALT, 4096),
                new_credential(SHA_256, "a,b]", SALT, 4096),
            ),
        ),
        ScramUser("alice", (new_credential(SHA_256, "secret", b"old-salt", 8192),)),
    )
    assert users("") == ()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("MARK", "it should be SCRAM-SHA-256 or"),
        ("SCRAM-SHA-1=[name=a,password=MARK]", "it should be SCRAM-SHA-256 or"),
        ("SCRAM-SHA-256=name=a,password=MARK", "it should be SCRAM-SHA-256 or"),
        ("SCRAM-SHA-256=[name=a,password=MARK,colour=red]", "in the brackets there are"),
        ("SCRAM-SHA-256=[name=a,password=MARK,password=MARK]", "in the brackets there are"),
        ("SCRAM-SHA-256=[password=MARK]", "the name is empty"),
        ("SCRAM-SHA-256=[name=*,password=MARK]", "stands for others"),
        ("SCRAM-SHA-256=[name=a]", "either password or saltedpassword"),
        ("SCRAM-SHA-256=[name=a,password=]", "the password is empty"),
        ("SCRAM-SHA-256=[name=a,password=MARK,iterations=4095]", "iterations aren't from 4096"),
        ("SCRAM-SHA-256=[name=a,password=MARK,salt=!]", "salt isn't base64"),
        ("SCRAM-SHA-256=[name=a,salt=TUFSSw==,saltedpassword=TUFSSw==]", "isn't 32 bytes"),
        (
            "SCRAM-SHA-256=[name=a,password=MARK]\nSCRAM-SHA-256=[name=a,password=MARK]",
            "line 2: 'a' has a credential for that already",
        ),
        ("SCRAM-SHA-256=[name=a,password=MARK]\n" * 101, "has a credential for that already"),
    ],
)
def test_what_is_no_line_is_refused_without_its_password(line: str, problem: str) -> None:
    with pytest.raises(CredentialError) as caught:
        users(line)
    assert problem in str(caught.value)
    assert "MARK" not in str(caught.value)
