"""Commands on the metadata as a whole.

    barrier          -> {index}
    raise_level      level                     -> {level}
    update_features  features [{name, level}]  -> {}

Rules: a barrier changes nothing; who waited for its result has seen all earlier commands. A level
(`kraftpy.core.metadata.levels`) only rises: to ask for one that has been reached already is to ask
for nothing. Features (KIP-584) get the levels that they are given, all of them; which there may be,
the proposer has judged.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.core.fields import INT_MAX, AtMost, Length, Range
from kraftpy.core.metadata.commands.codec import AllowedUnder, Command
from kraftpy.core.metadata.levels import TRANSACTIONS
from kraftpy.frozen import dataclass

FEATURES_MAX = 100
_SHORT_MAX = 2**15 - 1


@dataclass(frozen=True, slots=True)
class Barrier(Command):
    """Nothing changes; what was proposed before it is known once it is."""

    NAME = "barrier"


@dataclass(frozen=True, slots=True)
class RaiseLevel(Command):
    """Every voter, observer and broker knows `level`."""

    NAME = "raise_level"

    level: Annotated[int, Range(1, INT_MAX)]
    allowed_under: AllowedUnder = None


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """The level that a feature is to have; at level 0 there is nothing of it."""

    name: Annotated[str, Length(255)]
    level: Annotated[int, Range(0, _SHORT_MAX)]


@dataclass(frozen=True, slots=True)
class UpdateFeatures(Command):
    """Gives features other levels."""

    NAME = "update_features"
    LEVEL = TRANSACTIONS

    features: Annotated[tuple[FeatureLevel, ...], AtMost(FEATURES_MAX)]
    allowed_under: AllowedUnder = None
