"""Spark sessions for tests and benchmarks: small, local, quiet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def start_session(folder: Path, jars: Sequence[Path], *, cores: int, **more: str) -> Any:
    """A new session; `more` are settings, `_` standing for `.`."""
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("kraftpy-tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.jars", ",".join(map(str, jars)))
    )
    for name, value in more.items():
        builder = builder.config(name.replace("_", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
