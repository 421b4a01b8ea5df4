"""A small state machine for the quorum's tests: a list of values, and how often each was added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kraftpy.core.metadata import LEVEL, LaterReleaseError
from kraftpy.protocol.errors import ErrorCode


@dataclass
class Result:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    value: dict[str, Any] = field(default_factory=dict)


class Values:
    """Commands: {"add": value}, {"fail": text}, {"bug": True}; "pad" is ignored.

    As in the real one there are brokers, topics and tokens to look after, but never any, and a
    level, which is the last.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.level = LEVEL
        self.brokers: dict[int, Any] = {}
        self.topics: dict[str, Any] = {}
        self.tokens: dict[str, Any] = {}

    def apply(self, index: int, command: dict[str, Any]) -> Result:
        if "fail" in command:
            return Result(ErrorCode.INVALID_REQUEST, command["fail"])
        if "bug" in command:
            raise RuntimeError("a bug in the rules")
        if self.why_not(command.get("type"), dict) is not None:
            raise LaterReleaseError("upgrade this node")
        self.values.append(command["add"])
        return Result(value={"count": len(self.values), "index": index})

    def why_not(self, name: object, command: Callable[[], object]) -> str | None:
        if name == "of a later release":
            return "has no such command: upgrade the controllers first"
        return None

    def snapshot(self) -> dict[str, Any]:
        return {"values": self.values}

    @classmethod
    def from_snapshot(cls, snapshot: dict[str, Any]) -> Values:
        values = cls()
        values.values = list(snapshot["values"])
        return values
