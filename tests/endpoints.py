"""Where a node answers beside its listeners, read out of its server.properties."""

from __future__ import annotations

from pathlib import Path

from kraftpy.core.config import parse_properties


def metrics_address(config: Path) -> str:
    """Where the node of this server.properties serves its metrics."""
    return parse_properties(config.read_text())["kraftpy.metrics.listener"]
