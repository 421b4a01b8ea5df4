"""Where a node answers beside its listeners, read out of its server.properties; its metrics."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from kraftpy.core.config import parse_properties

_TIMEOUT_S = 60.0


def metrics_address(config: Path) -> str:
    """Where the node of this server.properties serves its metrics."""
    return parse_properties(config.read_text())["kraftpy.metrics.listener"]


def metric(config: Path, name: str) -> float:
    """What a metric without labels is at that node."""
    url = f"http://{metrics_address(config)}/metrics"
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    if found is None:
        raise LookupError(f"{url} has no {name}")
    return float(found[1])
