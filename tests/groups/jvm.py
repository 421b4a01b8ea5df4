"""The Java client as members of a group: compiles and starts GroupMember.java.

Needs a JDK and Maven, as all conformance tests do (tests/apache_kafka.py).
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.apache_kafka import CACHE, TOOL_JVM, fetch_jars

SOURCE = Path(__file__).with_name("java") / "GroupMember.java"
# Many of them run side by side.
JVM = [*TOOL_JVM.replace("-Xmx512m", "-Xmx192m").split(), "-Xss512k"]


@functools.cache
def classes() -> Path:
    """The folder with the compiled program; made once for each version of its source."""
    fetch_jars()
    folder = CACHE / "groups" / hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            command = ["javac", "-cp", _jar("kafka-clients"), "-d", str(folder), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"javac could not compile {SOURCE.name}:\n{done.stderr}")
            (folder / "complete").touch()
    return folder


def command(members: Sequence[str], **options: object) -> list[str]:
    """What starts one process with these members in it.

    Options: bootstrap, group, topic, folder (of the histories), poll_ms, session_timeout_ms,
    heartbeat_interval_ms, and protocol: consumer, range or cooperative-sticky.
    """
    arguments = [f"{key}={value}" for key, value in options.items()]
    classpath = f"{classes()}:{fetch_jars()}/*"
    return [
        "java",
        *JVM,
        "-cp",
        classpath,
        "GroupMember",
        f"members={','.join(members)}",
        *arguments,
    ]


def _jar(name: str) -> str:
    (found,) = fetch_jars().glob(f"{name}-[0-9]*.jar")
    return str(found)
