"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT_S = 20.0
_POLL_S = 0.01


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> float:
    """Waits until `condition()` holds; how long that took, in seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)
    return time.monotonic() - started
