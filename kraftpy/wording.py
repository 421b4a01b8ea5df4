"""How names, sizes and failures are written for people, on a terminal as on a page.

Anybody may have chosen a name: what can't be printed is shown as an escape.
"""

from __future__ import annotations

import os
import re
import socket
from datetime import UTC, datetime


def printable(text: str) -> str:
    r"""The text with `\n`, `\x1b` and the like in place of unprintable characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def size_text(size_bytes: int) -> str:
    """A number of bytes as a person reads it."""
    size = float(size_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def counted(count: int, noun: str) -> str:
    """`1 broker`, `2,000 brokers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def numbers_text(last: int) -> str:
    """`0`, `0 to 7`: the numbers from 0 on."""
    return f"0 to {last}" if last else "0"


def failure_text(error: OSError) -> str:
    """The operating system's words, without the address that asyncio puts in their place."""
    if isinstance(error, socket.gaierror):
        return (error.strerror or str(error)).lower()
    # A name with several addresses fails with their errors joined into one text.
    number = error.errno or int((re.findall(r"\[Errno (\d+)\]", str(error)) or [0])[0])
    return os.strerror(number).lower() if number else str(error) or type(error).__name__


def time_text(time_ms: int) -> str:
    """A time as ISO 8601 to the second; what is beyond year 9999 as milliseconds, "-" for none."""
    if time_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError):
        return f"{time_ms} ms"
