"""What the clients of a run do: a workload is a set of roles, each played by a worker process.

A workload of this package yields histories of the workload of its name in `suite`, which says by
what they are judged.
"""

from __future__ import annotations

from kraftpy.testing.consistency.workloads import (
    bank,
    commits,
    cooperative,
    groups,
    list_append,
    metadata,
    offsets,
    queue,
    replicas,
    share,
    transform,
)
from kraftpy.testing.consistency.workloads.play import Part, Play

__all__ = ["PLAYS", "Part", "Play"]

PLAYS: dict[str, Play] = {
    "queue": queue.PLAY,
    "replicas": replicas.PLAY,
    "offsets": offsets.PLAY,
    "commits": commits.PLAY,
    "groups": groups.PLAY,
    "metadata": metadata.PLAY,
    "list-append": list_append.PLAY,
    "transform": transform.PLAY,
    "bank": bank.PLAY,
    "cooperative": cooperative.PLAY,
    "share": share.PLAY,
}
