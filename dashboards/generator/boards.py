"""All boards, and the files that they and the catalogue become."""

from __future__ import annotations

import json
from pathlib import Path

from dashboards.generator import (
    broker,
    groups,
    metrics,
    overview,
    probe,
    quorum,
    topics,
    transactions,
)
from dashboards.generator.grafana import render

FOLDER = Path(__file__).resolve().parents[1]

BOARDS = (
    overview.BOARD,
    topics.BOARD,
    groups.BOARD,
    transactions.BOARD,
    quorum.BOARD,
    broker.BOARD,
    probe.BOARD,
)


def files() -> dict[str, str]:
    """The text of each file by its path below dashboards/."""
    boards = {
        f"grafana/{board.uid}.json": json.dumps(render(board, BOARDS), indent=2) + "\n"
        for board in BOARDS
    }
    return boards | {"METRICS.md": metrics.document()}
