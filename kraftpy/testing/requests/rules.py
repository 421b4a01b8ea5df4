"""Which requests something is done with, and what: the faults and observations of a test."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from kraftpy.protocol.errors import ErrorCode

REQUEST, ANSWER = "request", "answer"
SEEN_MAX = 10_000


@dataclass(slots=True)
class Rule:
    """One fault, or an observation if it does nothing; None stands for any, and for ever."""

    api_key: int | None
    topic: str | None
    client_id: str | None
    error: ErrorCode | None
    delay_s: float
    drop: str
    times: int | None
    seen: list[list[Any]] | None = None
    hits: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, order: dict[str, Any]) -> Rule:
        """As the test's process has written it."""
        return cls(
            order["api_key"],
            order["topic"],
            order["client_id"],
            None if order["error"] is None else ErrorCode(order["error"]),
            order["delay_ms"] / 1000,
            order["drop"],
            order["times"],
            [] if order["observes"] else None,
        )

    def fits(self, api_key: int, client_id: str | None) -> bool:
        """Whether it is about such requests, and not used up."""
        return (
            self.api_key in (None, api_key)
            and self.client_id in (None, client_id)
            and (self.times is None or self.hits < self.times)
        )

    def hit(self) -> None:
        self.hits += 1

    def see(self, request: list[Any]) -> None:
        """Notes a request; the first ones only, of very many."""
        self.hits += 1
        if self.seen is not None and len(self.seen) < SEEN_MAX:
            self.seen.append(request)
