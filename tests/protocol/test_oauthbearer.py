"""The messages of OAUTHBEARER (RFC 7628), as Kafka's clients write them."""

from __future__ import annotations

import pytest

from kraftpy.protocol.sasl import SaslError
from kraftpy.protocol.sasl.oauthbearer import (
    ACKNOWLEDGED,
    EXTENSIONS_MAX,
    TOKEN_MAX_BYTES,
    OAuthBearerClient,
    read_first,
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"n,,\x01auth=Bearer a.b.c\x01\x01", ("", "a.b.c")),
        (b"n,,\x01auth=bEARER   a-_~+/.b==\x01\x01", ("", "a-_~+/.b==")),
        (b"n,a=alice,\x01auth=Bearer t\x01\x01", ("alice", "t")),
        (b"n,a=a=2Cb=3Dc,\x01auth=Bearer t\x01\x01", ("a,b=c", "t")),
        ("n,a=\u00fc,\x01auth=Bearer t\x01\x01".encode(), ("\u00fc", "t")),
        (b"n,,\x01host=h\x01auth=Bearer t\x01logicalCluster=l k\x01\x01", ("", "t")),
    ],
)
def test_what_is_read(message: bytes, expected: tuple[str, str]) -> None:
    assert read_first(message) == expected
    assert "a.b.c" not in repr(read_first(message))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer t\x01",
        b"n,,\x01auth=Bearer t\x01\x01\x01",
        b"n,,\x01auth=Bearer t\x01\x01x",
        b"y,,\x01auth=Bearer t\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer t\x01\x01",
        b"n,a=,\x01auth=Bearer t\x01\x01",
        b"n,a=a=2cb,\x01auth=Bearer t\x01\x01",
        b"n,a=a\x00b,\x01auth=Bearer t\x01\x01",
        b"n,a=\xff,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Basic t\x01\x01",
        b"n,,\x01auth=Bearert\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer t u\x01\x01",
        b"n,,\x01auth=Bearer t\x01auth=Bearer u\x01\x01",
        b"n,,\x01auth=Bearer t\x01key1=v\x01\x01",
        b"n,,\x01auth=Bearer t\x01key=\x01\x01",
        b"n,,\x01auth=Bearer t\x01key=\x7f\x01\x01",
        b"n,,\x01auth=Bearer t\x01key\x01\x01",
        b"n,,\x01auth=Bearer " + b"t" * (TOKEN_MAX_BYTES + 1) + b"\x01\x01",
        b"n,,\x01auth=Bearer t\x01" + b"k=v\x01" * (EXTENSIONS_MAX + 2) + b"\x01",
        b"\x01" * 500_000,
    ],
)
def test_what_is_no_message(message: bytes) -> None:
    with pytest.raises(SaslError):
        read_first(message)


def test_a_client() -> None:
    client = OAuthBearerClient("a.b.c")
    assert read_first(client.first()) == ("", "a.b.c")
    assert client.answer(b"") is None
    assert client.answer(b'{"status":"invalid_token"}') == ACKNOWLEDGED


@pytest.mark.parametrize(
    "token", ["", "a b", "a\n", "\u00fc", "a\x01b", "t" * (TOKEN_MAX_BYTES + 1)]
)
def test_a_client_has_a_token_that_can_be_written(token: str) -> None:
    with pytest.raises(SaslError) as caught:
        OAuthBearerClient(token)
    assert "a\x01b" not in str(caught.value)
