"""What clients reach the brokers through in runs in which requests can be late."""

from __future__ import annotations

import json
import sys
from typing import IO, Any

from kraftpy.testing.process import LineProcess

SHARE = 0.15
"""Of the requests that can be late."""
_PROGRAM = "kraftpy.testing.networks.frames"
_TIMEOUT_S = 30.0
_LATE_S = (0.2, 4.0)


class Frames:
    """What clients reach the brokers through, so that requests can be late."""

    def __init__(self, errors: IO[bytes]) -> None:
        self._process = LineProcess([sys.executable, "-m", _PROGRAM], errors)

    def in_front_of(self, bootstrap: str) -> str:
        """Where clients are to begin."""
        return str(self._tell({"bootstrap": bootstrap})["bootstrap"])

    def begin(self, seed: int) -> int:
        """Has some requests be late from now on; how many were so far."""
        return int(self._tell({"late": SHARE, "seed": seed, "seconds": _LATE_S})["held"])

    def held(self) -> int:
        return int(self._tell({})["held"])

    def end(self) -> None:
        """What is held back is still to arrive."""
        self._tell({"late": 0})

    def close(self) -> None:
        self._process.end()

    def _tell(self, order: dict[str, Any]) -> dict[str, Any]:
        self._process.write_line(json.dumps(order))
        answer: dict[str, Any] = json.loads(self._process.read_line(_TIMEOUT_S))
        return answer
