"""A coordinator's records as Kafka's own decoder prints them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kraftpy.protocol.records import build_batch
from tests.apache_kafka import run_tool


def as_printed(
    folder: Path, decoder: str, records: Iterable[tuple[bytes | None, bytes | None]]
) -> list[tuple[Any, Any]]:
    """Key and value of each record by this option of kafka-dump-log."""
    path = folder / "00000000000000000000.log"
    path.write_bytes(build_batch([(0, key, value, []) for key, value in records]))
    pairs = []
    for line in run_tool("kafka-dump-log", decoder, "--files", str(path)).splitlines():
        if " key: " in line:
            key, _, value = line.partition(" key: ")[2].partition(" payload: ")
            pairs.append((json.loads(key), None if value == "<DELETE>" else json.loads(value)))
    return pairs
