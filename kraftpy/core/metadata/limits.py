"""Limits that decide what a committed command does.

All voters have to agree on them, whatever their release: they belong to the rules of the metadata
like the shape of a command, and don't follow the settings of a release.
"""

from __future__ import annotations

PARTITIONS_MAX = 10_000
"""The largest number of partitions that a topic may have."""
