"""A race's tables in a document, one for each part, with machine and command."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path

from tests.apache_kafka import VERSION
from tests.bench import figures
from tests.bench.load import client_name
from tests.bench.race import MEASURE_S, Raced


def _place(part: str) -> re.Pattern[str]:
    begin, end = (f"<!-- race, {part}: {which} -->" for which in ("begin", "end"))
    return re.compile(rf"({begin}\n).*?({end})", re.DOTALL)


def place_in(document: Path, part: str) -> str:
    """The document's text; RuntimeError if it has no place for this part of a race."""
    text = document.read_text()
    if not _place(part).search(text):
        raise RuntimeError(
            f"{document} has no place for the table: put the lines <!-- race, {part}: begin --> "
            f"and <!-- race, {part}: end --> where it belongs"
        )
    return text


def fill(document: Path, part: str, raced: Raced, command: str) -> None:
    """Puts the table into the place that `place_in` has found."""
    found = f"{figures.race_markdown(raced)}\n\n{conditions()}\n\n`{command}`\n"
    text = place_in(document, part)
    filled = _place(part).sub(lambda match: f"{match[1]}\n{found}\n{match[2]}", text)
    document.write_text(filled)


def conditions() -> str:
    """What was measured on, and with what."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return (
        f"{time.strftime('%Y-%m-%d', time.gmtime())}: {os.cpu_count()} cores"
        f"{_processor()}, {memory_gib:.0f} GiB, brokers and client on the same machine; Linux "
        f"{platform.release()}, Python {platform.python_version()}, Apache Kafka {VERSION} on "
        f"{java.stderr.splitlines()[0]}; client: {client_name()}, the same for both. "
        f"At least {MEASURE_S:g} s a measurement."
    )


def _processor() -> str:
    named = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f" ({named[1]})" if named else ""
