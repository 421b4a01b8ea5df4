"""`core.coordination.effects` with the records of `__consumer_offsets`."""

from __future__ import annotations

from kraftpy.core import coordination
from kraftpy.core.groups.records import CoordinatorRecord

Write = coordination.Write[CoordinatorRecord]
Effects = coordination.Effects[CoordinatorRecord]
Outbox = coordination.Outbox[CoordinatorRecord]
