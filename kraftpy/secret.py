"""Passwords and keys in memory: what nobody may read in a log, a page or an answer.

A `Secret` shows itself as Kafka's `Password` does, so that a settings object, an error or a
traceback that has one in it tells nothing. Whoever needs the text says so: `reveal`.
"""

from __future__ import annotations

import hmac

HIDDEN = "[hidden]"


class Secret:
    """Text that isn't shown; it can't be pickled, iterated or joined to other text by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself: for who hands it to a library, and nobody else."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._bytes(), other._bytes())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __bool__(self) -> bool:
        return bool(self._text)

    def __reduce__(self) -> str:
        raise TypeError("a secret stays in its process")

    def _bytes(self) -> bytes:
        return self._text.encode("utf-8", "surrogatepass")
