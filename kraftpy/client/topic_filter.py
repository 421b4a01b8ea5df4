"""Topics by what their names are like: a consumer's own look at what there is.

Source: the TopicFilter of Kafka's first consumer, which was a whitelist or a blacklist.
"""

from __future__ import annotations

import re


class TopicFilter:
    """Allows topics whose whole name matches `include`, if there is one, and not `exclude`.

        consumer.subscribe(TopicFilter(include=r"orders-.*", exclude=r".*-test"))

    Both are regular expressions of Python's `re`; one of them has to be there. Topics that brokers
    keep for themselves are never allowed.
    """

    def __init__(
        self,
        include: str | re.Pattern[str] | None = None,
        exclude: str | re.Pattern[str] | None = None,
    ) -> None:
        if include is None and exclude is None:
            raise ValueError(
                'a TopicFilter needs include=REGEX, exclude=REGEX or both; include=".*" allows all'
            )
        self.include = _compiled("include", include)
        self.exclude = _compiled("exclude", exclude)

    def __repr__(self) -> str:
        patterns = {"include": self.include, "exclude": self.exclude}
        shown = ", ".join(f"{k}={p.pattern!r}" for k, p in patterns.items() if p is not None)
        return f"TopicFilter({shown})"

    def allows(self, topic: str) -> bool:
        """Whether a topic of this name is wanted."""
        if self.include is not None and not self.include.fullmatch(topic):
            return False
        return self.exclude is None or not self.exclude.fullmatch(topic)


def _compiled(field: str, pattern: str | re.Pattern[str] | None) -> re.Pattern[str] | None:
    if isinstance(pattern, re.Pattern) or pattern is None:
        return pattern
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{field}={pattern!r} is no regular expression: {error} (python -m pydoc re says how "
            "they are written)"
        ) from error
