"""Talks to the counters of brokers: a line of JSON each way."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from typing import Any

TIMEOUT_S = 10.0


def address(name: str, node: int) -> str:
    """Where a node of the cluster with this name answers: no file, and gone with its process."""
    return f"\0kraftpy-counters-{name}-{node}"


def ask(name: str, node: int, **request: Any) -> dict[str, Any] | None:
    """What the node answers; None if it doesn't, and then nobody knows what became of it."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.connect(address(name, node))
            sock.sendall(json.dumps(request).encode() + b"\n")
            line = sock.makefile("rb").readline()
    except OSError:
        return None
    return json.loads(line) if line else None


def coordinator(name: str, nodes: Iterable[int], key: str) -> int | None:
    """The node that coordinates the key, as the first one says that answers."""
    for node in nodes:
        answer = ask(name, node, operation="find", key=key)
        if answer is not None and "node" in answer:
            return int(answer["node"])
    return None


def ask_coordinator(name: str, nodes: Iterable[int], **request: Any) -> dict[str, Any] | None:
    """What the key's coordinator answers."""
    found = coordinator(name, nodes, request["key"])
    return None if found is None else ask(name, found, **request)
