"""One exchange by HTTPS, with who issues tokens or the keys that they are signed with.

Rules: a certificate is verified, redirects aren't followed, an answer has SIZE_MAX_BYTES and takes
TIMEOUT_S at most. It blocks, so it's for a thread.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import http.client

SIZE_MAX_BYTES = 1 << 20
TIMEOUT_S = 10.0


class ExchangeError(Exception):
    """There is no answer, or none that can be used. The text has nothing of what was sent."""


def exchange(
    url: str,
    context: ssl.SSLContext | None,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """What is answered to a GET, or to a POST if there is a body. Raises ExchangeError."""
    import http.client  # and with it what reads mail: for those with tokens alone

    parts = urlsplit(url)
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=context
        )
        try:
            target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
            method = "GET" if body is None else "POST"
            given = {"Accept": "application/json", **(headers or {})}
            connection.request(method, target, body=body, headers=given)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise ExchangeError(f"the answer is {response.status}, not 200")
            return _read(response, deadline_s)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ExchangeError(str(error) or type(error).__name__) from None


def _read(response: http.client.HTTPResponse, deadline_s: float) -> bytes:
    data = b""
    while more := response.read1(SIZE_MAX_BYTES + 1 - len(data)):
        data = bounded(data + more)
        if time.monotonic() > deadline_s:
            raise ExchangeError(f"it takes longer than {TIMEOUT_S:.0f} s")
    return data


def bounded(data: bytes) -> bytes:
    """The same. Raises ExchangeError if that is too much."""
    if len(data) > SIZE_MAX_BYTES:
        raise ExchangeError(f"it has more than {SIZE_MAX_BYTES} bytes")
    return data
