"""Topics of a cluster for group machines under test."""

from __future__ import annotations

from kraftpy.core.groups.consumer.regex import compile_pattern
from kraftpy.core.groups.consumer.topics import Topic


def topic_id(name: str) -> bytes:
    """The id of the topic of this name: the name, as far as it goes."""
    return name.encode().ljust(16, b".")[:16]


class KnownTopics:
    """The port `Topics`; `counts` may be changed by a test, which then counts `version` up."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.version = 1

    def find(self, name: str) -> Topic | None:
        count = self.counts.get(name)
        return None if count is None else Topic(topic_id(name), count)

    def name_of(self, wanted: bytes) -> str | None:
        return next((name for name in self.counts if topic_id(name) == wanted), None)

    def match(self, regex: str) -> tuple[str, ...]:
        found = compile_pattern(regex).fullmatch
        return tuple(sorted(name for name in self.counts if found(name)))
