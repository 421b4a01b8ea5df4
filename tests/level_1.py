"""kraftpy as a release that knows the metadata level 1 and no later one: `python -m tests.level_1`.

Such a release has no transactions. Nodes fork from it.
"""

from __future__ import annotations

from kraftpy.cli import main
from kraftpy.core.metadata import levels, snapshots, state
from kraftpy.server.cluster import features

if __name__ == "__main__":
    for module in (levels, snapshots, state, features):
        module.LEVEL = 1  # type: ignore[attr-defined]
    main()
