"""The process that asks a user's delete policy: `python -m kraftpy.storage.deleting CLASS PARENT`.

Its input is a `Question`, its output the answer: of each log how many segments may go. What the
policy prints goes to stderr. With no input it only tells whether the policy can be made.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any

from kraftpy.storage.deleting.policies import DeletePolicy, LogFacts, deletable
from kraftpy.storage.deleting.process import EXIT_REFUSED, ReportedSegment

_PR_SET_PDEATHSIG = 1
_NICENESS = 10


def main(arguments: list[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(arguments[1]):  # it died before the call above
        return EXIT_REFUSED
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this
    os.nice(_NICENESS)
    answer, sys.stdout = sys.stdout, sys.stderr
    try:
        policy = make(arguments[0])
        text = sys.stdin.read()
        answer.write(json.dumps(ask(policy, json.loads(text)) if text else []))
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {error}")
        return EXIT_REFUSED
    return 0


def make(path: str) -> DeletePolicy:
    """The policy of a class that Python's path leads to."""
    module, _, name = path.rpartition(".")
    policy = getattr(importlib.import_module(module), name)()
    if not isinstance(policy, DeletePolicy):
        raise TypeError(f"{name} is no subclass of kraftpy.storage.deleting.DeletePolicy")
    return policy


def ask(policy: DeletePolicy, question: dict[str, Any]) -> list[int]:
    """How many of each log's segments may go."""
    return [
        deletable(
            [policy],
            LogFacts(*log),
            (ReportedSegment(*segment) for segment in segments),
            question["now_ms"],
        )
        for log, segments in question["logs"]
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
