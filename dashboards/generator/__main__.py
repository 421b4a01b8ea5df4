"""Writes dashboards/grafana/*.json and dashboards/METRICS.md."""

from __future__ import annotations

from dashboards.generator.boards import FOLDER, files

if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text)
