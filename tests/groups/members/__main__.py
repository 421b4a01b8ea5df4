"""Runs one member. The line "leave" on stdin has it leave; the end of stdin ends the process."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from pathlib import Path

from tests.groups.history import MemberStory
from tests.groups.members import Options


def listen(leaving: threading.Event) -> None:
    for line in sys.stdin:
        if line == "leave\n":
            leaving.set()
    os._exit(1)


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    client, group, member = given["client"], given["group"], given["member"]
    path = Path(given["folder"]) / f"{member}.jsonl"
    leaving = threading.Event()
    story = MemberStory(path, group, member, client)
    options = Options(
        client,
        given["protocol"],
        given["bootstrap"],
        group,
        given["topic"],
        int(given["poll_ms"]) / 1000,
        int(given["session_timeout_ms"]),
        int(given["heartbeat_interval_ms"]),
        story,
        leaving,
    )
    module = importlib.import_module(f"tests.groups.members.{client.replace('-', '_')}")
    threading.Thread(target=listen, args=[leaving], daemon=True).start()
    module.run(options)
    story.note("left")
    sys.stdout.flush()
    os._exit(0)  # a client's thread that doesn't end is nothing that a group could notice


if __name__ == "__main__":
    main()
