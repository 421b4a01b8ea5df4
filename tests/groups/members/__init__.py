"""Members of a group with clients in Python: `python -m tests.groups.members KEY=VALUE...`."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass

from tests.groups.history import MemberStory


@dataclass(slots=True)
class Options:
    """What a member is told; `protocol` is consumer (KIP-848) or an assignor's name.

    A member processes and commits what came within `poll_s`. `leaving` is set when it shall
    leave the group.
    """

    client: str
    protocol: str
    bootstrap: str
    group: str
    topic: str
    poll_s: float
    session_timeout_ms: int
    heartbeat_interval_ms: int
    story: MemberStory
    leaving: threading.Event


def command(member: str, **options: object) -> list[str]:
    """What starts the process of one member; the options are those of `tests.groups.jvm.command`.

    And `client`, the name of a module of this package.
    """
    words = [f"{key}={value}" for key, value in {"member": member, **options}.items()]
    return [sys.executable, "-m", "tests.groups.members", *words]
