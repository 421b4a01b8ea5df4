"""Limits that decide what a committed command does.

All voters have to agree on them, whatever their release: they belong to the rules of the metadata
like the shape of a command, and don't follow the settings of a release.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.core.metadata.records import ResourceType

PARTITIONS_MAX = 10_000
"""The largest number of partitions that a topic may have."""

CONFIGURED_MAX: Mapping[int, int] = {ResourceType.CLIENT_METRICS: 1_000, ResourceType.GROUP: 10_000}
"""How many resources can have a configuration, of the types that anybody may invent names of."""
