"""A report's folder: report.html, report.json, and each table as Parquet and CSV.

    <folder>/report.html
    <folder>/report.json
    <folder>/tables/<table>.parquet and .csv

Rules: each file appears whole, in the place of the one before it; the page comes last, when all
that it links to is there. Times in tables are UTC.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from kraftpy.pipeline.folder import make_folder, replace_file
from kraftpy.pipeline.report.content import content
from kraftpy.pipeline.report.definition import Definition, slug
from kraftpy.pipeline.report.engine import Numbers
from kraftpy.pipeline.report.page import render

_TIMES: Final = ("start", "end")


def write_report(
    folder: Path, definition: Definition, numbers: Numbers, source: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes the report and returns the content of report.json. Raises OSError."""
    make_folder(folder / "tables")
    named = [*zip(definition.tables, numbers.tables, strict=True)]
    parts = [(slug(table.name), made.rows) for table, made in named]
    for sessions, made in zip(definition.sessions, numbers.sessions, strict=True):
        parts.append((slug(sessions.name), made.rows))
    files = {name: _write_table(folder, name, rows) for name, rows in parts}
    report = content(definition, numbers, source, files, datetime.now(UTC))
    said = json.dumps(report, ensure_ascii=False, allow_nan=False, indent=1)
    replace_file(
        folder / "report.json", lambda path: path.write_text(said + "\n", encoding="utf-8")
    )
    page = render(report)
    replace_file(folder / "report.html", lambda path: path.write_text(page, encoding="utf-8"))
    return report


def _write_table(folder: Path, name: str, rows: pa.Table) -> list[str]:
    for column in _TIMES:
        if column in rows.schema.names:
            times = rows[column].cast(pa.timestamp("ms", "UTC"))
            rows = rows.set_column(rows.schema.names.index(column), column, times)
    paths = [f"tables/{name}.csv", f"tables/{name}.parquet"]
    replace_file(folder / paths[0], lambda path: pa_csv.write_csv(rows, path))
    replace_file(folder / paths[1], lambda path: pq.write_table(rows, path, compression="zstd"))
    return paths
