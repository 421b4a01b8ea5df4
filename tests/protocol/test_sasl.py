"""SASL's messages: the examples of the RFCs, both sides against each other, and what is refused."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.protocol.sasl import SaslError, clients, jaas, plain, scram

PASSWORD = "pencil"
EXAMPLES = {
    # RFC 5802, section 5, and RFC 7677, section 3.
    "SCRAM-SHA-1": (
        "fyko+d2lbbFgONRv9qkxdawL",
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    scram.SHA_256: (
        "rOprNGfwEbeRWgbNEkqO",
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}


@pytest.mark.parametrize("mechanism", EXAMPLES)
def test_the_examples_of_the_rfcs(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram, "HASHES", {**scram.HASHES, "SCRAM-SHA-1": "sha1"})
    nonce, challenge, final, verdict = EXAMPLES[mechanism]
    client = scram.ScramClient(mechanism, "user", PASSWORD, nonce)
    assert client.first() == f"n,,n=user,r={nonce}".encode()
    assert client.answer(challenge) == final
    assert client.answer(verdict) is None

    first, last = scram.read_client_first(client.first()), scram.read_client_final(final)
    salt = base64.b64decode(challenge.split(b",")[1][2:])
    kept = scram.keys(mechanism, scram.salted_password(mechanism, PASSWORD, salt, 4096))
    signed = scram.signed_text(first, challenge, last)
    assert scram.server_first(last.nonce, salt, 4096) == challenge
    assert scram.proves(mechanism, kept.stored_key, signed, last.proof)
    assert scram.server_final(mechanism, kept.server_key, signed) == verdict


def kept(mechanism: str, password: str) -> scram.Keys:
    return scram.keys(mechanism, scram.salted_password(mechanism, password, b"salt", 4096))


def talk(mechanism: str, name: str, password: str, right: str = PASSWORD) -> bool:
    """Whether both sides take each other for whom they say they are."""
    client = scram.ScramClient(mechanism, name, password, "abc")
    first = scram.read_client_first(client.first())
    assert first.name == name
    challenge = scram.server_first(first.nonce + b"def", b"salt", 4096)
    final = client.answer(challenge)
    assert final is not None
    last = scram.read_client_final(final)
    assert (last.binding, last.nonce) == (first.gs2, b"abcdef")
    signed = scram.signed_text(first, challenge, last)
    keys = kept(mechanism, right)
    if not scram.proves(mechanism, keys.stored_key, signed, last.proof):
        with pytest.raises(SaslError, match="doesn't know this user's keys"):
            client.answer(scram.server_final(mechanism, keys.server_key, signed))
        return False
    return client.answer(scram.server_final(mechanism, keys.server_key, signed)) is None


@pytest.mark.parametrize("mechanism", scram.HASHES)
@pytest.mark.parametrize("name", ["alice", "a,b=c", "=2C", "a b"])
def test_a_client_and_a_server_agree(mechanism: str, name: str) -> None:
    assert talk(mechanism, name, PASSWORD)
    assert not talk(mechanism, name, "pencil ")


def test_the_two_hashes_differ() -> None:
    assert kept(scram.SHA_256, "x") != kept(scram.SHA_512, "x")
    assert len(kept(scram.SHA_512, "x").stored_key) == 64


@pytest.mark.parametrize("proof", [b"", b"x", b"x" * 31, b"x" * 33])
def test_a_proof_of_another_length_proves_nothing(proof: bytes) -> None:
    """A part of the trap of security called SCRAM."""
    assert not scram.proves(scram.SHA_256, bytes(32), b"signed", proof)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,n=alice",
        b"n,,r=abc,n=alice",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=alice,r=abc,m=x",
        b"n,,n=alice,r=abc,x=1,x=2",
        b"n,,n=al=ice,r=abc",
        b"n,,n=al=2cice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a c",
        b"n,,n=alice,r=" + b"a" * 1025,
        b"n,,n=al\0ice,r=abc",
        "n,,n=älice,r=abc".encode(),
        b"n,,n=alice,r=abc\n",
    ],
)
def test_what_is_no_first_message(message: bytes) -> None:
    """Traps of security: Unicode, NUL and =2C among them."""
    with pytest.raises(SaslError):
        scram.read_client_first(message)


def test_what_is_one() -> None:
    first = scram.read_client_first(b"y,a=a=2Cb,n=a=2Cb,r=abc,tokenauth=true")
    assert first[:3] == ("a,b", b"abc", b"y,a=a=2Cb,")
    assert first.extensions == {"tokenauth": "true"}
    assert first.bare == b"n=a=2Cb,r=abc,tokenauth=true"


@pytest.mark.parametrize(
    "message",
    [b"", b"c=biws,r=abc", b"c=biws,p=AA==,r=abc", b"c=b,r=abc,p=AA==", b"c=biws,r=abc,p=AA==\n"],
)
def test_what_is_no_last_message(message: bytes) -> None:
    with pytest.raises(SaslError):
        scram.read_client_final(message)


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (b"r=abcd,s=c2FsdA==,i=4095", "asks for 4095 iterations"),
        (b"r=abcd,s=c2FsdA==,i=1000001", "asks for 1000001 iterations"),
        (b"r=abc,s=c2FsdA==,i=4096", "nonce doesn't go on"),
        (b"r=xabc,s=c2FsdA==,i=4096", "nonce doesn't go on"),
        (b"r=abcd,s=c2FsdA=,i=4096", "isn't base64"),
        (b"e=other-error", "isn't SCRAM's"),
    ],
)
def test_what_a_client_does_not_take(challenge: bytes, why: str) -> None:
    client = scram.ScramClient(scram.SHA_256, "alice", PASSWORD, "abc")
    with pytest.raises(SaslError, match=why):
        client.answer(challenge)


def test_a_client_hears_why_it_is_refused() -> None:
    client = scram.ScramClient(scram.SHA_256, "alice", PASSWORD, "abc")
    client.answer(b"r=abcd,s=c2FsdA==,i=4096")
    with pytest.raises(SaslError, match="refuses the login: invalid-proof"):
        client.answer(b"e=invalid-proof")


@given(st.binary(max_size=60))
def test_whatever_comes_is_read_or_refused(message: bytes) -> None:
    for read in (scram.read_client_first, scram.read_client_final, plain.read):
        with contextlib.suppress(SaslError):
            read(message)


# -- PLAIN


def test_plain_has_a_name_and_a_password() -> None:
    client = clients.login("PLAIN", "älice", "pässword", "")
    assert plain.read(client.first()) == ("älice", "pässword")
    assert client.answer(b"") is None
    assert plain.read(b"alice\0alice\0x").name == "alice"
    assert "pässword" not in repr(plain.read(client.first()))


@pytest.mark.parametrize(
    "message",
    [b"", b"\0\0", b"\0alice\0", b"\0\0x", b"bob\0alice\0x", b"\0alice\0x\0y", b"\0al\xff\0x"],
)
def test_what_is_no_plain_message(message: bytes) -> None:
    with pytest.raises(SaslError):
        plain.read(message)


@pytest.mark.parametrize(
    ("mechanism", "name", "password"),
    [
        ("PLAIN", "", "x"),
        ("PLAIN", "alice", ""),
        ("PLAIN", "al\0ice", "x"),
        (scram.SHA_256, "älice", "x"),
        ("GSSAPI", "alice", "x"),
    ],
)
def test_logins_that_can_not_be_written(mechanism: str, name: str, password: str) -> None:
    with pytest.raises(SaslError):
        clients.login(mechanism, name, password, "abc")


# -- JAAS

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_a_line_of_jaas() -> None:
    (found,) = jaas.parse(
        f"""{PLAIN_MODULE} required // who
        username="admin" /* and
        how */ password='a"\\'b\\\\\\t\\101' user_admin=word "user_a b"="";"""
    )
    assert (found.name, found.flag, found.kind) == (PLAIN_MODULE, "required", "PlainLoginModule")
    assert found.options == {
        "username": "admin",
        "password": "a\"'b\\\tA",
        "user_admin": "word",
        "user_a b": "",
    }


def test_several_entries_and_none() -> None:
    assert [each.flag for each in jaas.parse("a.B Required; c.D optional x=y;")] == [
        "required",
        "optional",
    ]
    assert jaas.parse(" ") == ()


@pytest.mark.parametrize(
    "text",
    [
        "a.B",
        "a.B required",
        "a.B maybe;",
        "a.B ; ",
        "= required;",
        "a.B required x;",
        "a.B required x=;",
        "a.B required x=MARK y;",
        "a.B required x=MARK x=MARK;",
        "a.B required =MARK;",
        'a.B required password="MARK',
        'a.B required password="MARK\n";',
        "a.B required password=1MARK;",
        "a.B required password=MARK!;",
    ],
)
def test_what_is_no_jaas_is_refused_without_its_values(text: str) -> None:
    with pytest.raises(jaas.JaasError) as error:
        jaas.parse(text)
    assert "MARK" not in str(error.value)


def test_options_are_not_shown() -> None:
    assert "MARK" not in repr(jaas.parse("a.B required password=MARK;"))
    assert "hidden" in repr(scram.Keys(b"MARK", b"MARK"))


@given(st.text(alphabet="ab.=;\"'\\/* \n0", max_size=40))
def test_any_text_is_jaas_or_an_error(text: str) -> None:
    with contextlib.suppress(jaas.JaasError):
        jaas.parse(text)
