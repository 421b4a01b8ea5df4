"""Settings of a broker that are noted, described back and mean nothing here.

Kafka lets them change while a broker runs, and tools that tune a cluster set them. What makes each
meaningless, `ignored` says. Types, limits and defaults are Kafka's (4.4).
"""

from __future__ import annotations

from typing import Any

from kraftpy.core.config import kinds
from kraftpy.core.config.ignored import why_ignored
from kraftpy.core.config.kinds import Kind, int32
from kraftpy.core.config.settings import setting
from kraftpy.frozen import dataclass


def _noted(key: str, kind: Kind, default: str) -> Any:
    return setting(kind, default, f"No effect: {why_ignored(key)}.", dynamic=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedSettings:
    """What `BrokerConfig` has without effect."""

    num_network_threads: int = _noted("num.network.threads", int32(1), "3")
    num_io_threads: int = _noted("num.io.threads", int32(1), "8")
    num_replica_fetchers: int = _noted("num.replica.fetchers", int32(1), "1")
    num_recovery_threads_per_data_dir: int = _noted(
        "num.recovery.threads.per.data.dir", int32(1), "2"
    )
    background_threads: int = _noted("background.threads", int32(1), "10")
    log_cleaner_threads: int = _noted("log.cleaner.threads", int32(0), "1")
    log_cleaner_io_buffer_size: int = _noted("log.cleaner.io.buffer.size", int32(0), "524288")
    log_cleaner_io_buffer_load_factor: float = _noted(
        "log.cleaner.io.buffer.load.factor", kinds.ratio(), "0.9"
    )
