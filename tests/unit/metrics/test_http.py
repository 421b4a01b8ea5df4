"""The exporter's HTTP, as far as it is no matter of sockets."""

from __future__ import annotations

import pytest

from kraftpy.metrics.http import accepts_gzip


@pytest.mark.parametrize(
    ("accept_encoding", "accepts"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip; q=0.001", True),
        ("gzip;q=1", True),
        ("", False),
        ("identity", False),
        ("not-gzip", False),
        ("gzip;q=0", False),
        ("br, gzip ; Q=0.000", False),
    ],
)
def test_what_a_client_takes_compressed(accept_encoding: str, accepts: bool) -> None:
    assert accepts_gzip(accept_encoding) is accepts
