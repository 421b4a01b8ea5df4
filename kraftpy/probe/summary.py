"""What a probe found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kraftpy.probe.prober import Prober
from kraftpy.probe.quantiles import Quantiles

_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
_COUNTS = ("produced", "failed", "received", "lost", "late", "duplicated")


def summary(prober: Prober, took_s: float) -> dict[str, Any]:
    """One object; durations in milliseconds, None where nothing was measured.

    `ok`: every message was acknowledged and arrived, no commit failed, all within the SLA.
    """
    tracker = prober.tracker
    totals = {
        what: sum(getattr(tally, what) for tally in tracker.brokers.values()) for what in _COUNTS
    }
    ok = (
        totals["produced"] > 0
        and not totals["failed"]
        and not totals["lost"]
        and not tracker.commits_failed
        and tracker.commits > 0
        and not tracker.broken
    )
    return {
        "ok": ok,
        "topic": prober.options.topic,
        "group": prober.options.group_id,
        "seconds": round(took_s, 3),
        "sla_ms": prober.options.sla_ms,
        "brokers": len(prober.heartbeat.brokers),
        "brokers_covered": prober.heartbeat.covered,
        **totals,
        "offset_commits": tracker.commits,
        "offset_commits_failed": tracker.commits_failed,
        "sla_broken": {step: tracker.broken[step] for step in _STEPS},
        "produce_ms": _percentiles(tracker.produce),
        "roundtrip_ms": _percentiles(tracker.roundtrip),
        "offset_commit_ms": _percentiles(tracker.commit),
        "by_broker": {
            str(broker): {what: getattr(tally, what) for what in _COUNTS}
            for broker, tally in sorted(tracker.brokers.items())
        },
    }


_STEPS = ("produce", "roundtrip", "offset_commit")
_NAMES = {"produce": "produce", "roundtrip": "round trip", "offset_commit": "offset commit"}


def step_rows(found: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Rows of a table: step, count, percentiles, longest, beyond the SLA."""
    for step in _STEPS:
        timed = found[f"{step}_ms"]
        figures = ["-" if timed[key] is None else f"{timed[key]:.1f}" for key in (*_SHARES, "max")]
        yield (_NAMES[step], timed["count"], *figures, found["sla_broken"][step])


def _percentiles(durations: Quantiles) -> dict[str, float | int | None]:
    found: dict[str, float | int | None] = {"count": durations.count}
    for name, share in _SHARES.items():
        value = durations.at(share)
        found[name] = None if value is None else round(1000 * value, 3)
    found["max"] = round(1000 * durations.max_s, 3) if durations.count else None
    return found
