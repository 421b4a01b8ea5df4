"""Commands on the metadata as a whole.

    barrier      -> {index}
    raise_level  level  -> {level}

Rules: a barrier changes nothing; who waited for its result has seen all earlier commands. A level
(`kraftpy.core.metadata.levels`) only rises: to ask for one that has been reached already is to ask
for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from kraftpy.core.fields import INT_MAX, Range
from kraftpy.core.metadata.commands.codec import Command


@dataclass(frozen=True, slots=True)
class Barrier(Command):
    NAME = "barrier"


@dataclass(frozen=True, slots=True)
class RaiseLevel(Command):
    """Every voter, observer and broker knows `level`."""

    NAME = "raise_level"

    level: Annotated[int, Range(1, INT_MAX)]
