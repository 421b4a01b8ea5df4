"""A report computed by plain Python, one record after the other: what `report`'s engine must give.

Nothing here is the pipeline's: JSON by the standard library, groups in dicts, quantiles by sorting.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

ZONE = ZoneInfo("America/New_York")
LATE_MS = 600_000
GAP_MS = 1_800_000
HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "=cmd|' /C calc'!A0",
    "a,b;c\td\r\ne",
    "\u202egnp.exe",
    "",
    "Ärger & Söhne",
    "😀",
    "null",
    "x" * 5000,
]

DEFINITION = """
name = "<script>alert('name')</script>"
about = "</style><b>about</b>"
topic = "TOPIC"
zone = "America/New_York"
late = "10m"
where = "kind != 'noise'"

[time]
field = "meta.at"
format = "ms"
plus = "shift"

[fields]
user = { from = "key" }
kind = { path = "meta.kind" }
price = "number"
n = "integer"
shift = "integer"
dear = { is = "price >= 50 or n / 0 > 1" }
hour = { is = "hour(time)" }
slot = { is = "bucket(price, 25)" }

[figures]
"<b>all</b>" = "count"
"dear" = "share(dear)"

[[tables]]
name = "Hours <i>and</i> kinds"
window = "1h"
by = ["kind"]
plot = ["clicks", "average", "expensive"]

[tables.measures]
clicks = "count"
costly = "count where price > 80 and user is not null"
total = "sum(n)"
average = { is = "mean(price)", unit = "<u>" }
least = "min(price)"
most = "max(price - n % 7)"
middle = "median(price)"
p90 = "p90(price) where n in (1, 2, 3, 4, 5, 6)"
expensive = "share(dear)"
users = "distinct(user)"

[[tables]]
name = "Days"
window = "1d"
measures.clicks = "count"

[[tables]]
name = "Hours of the day and slots"
by = ["hour", "slot"]
measures.clicks = "count"

[[sessions]]
name = "Visits"
by = ["user"]
gap = "30m"
where = "price is not null"
measures.spent = "sum(price)"
"""

BROKEN = [
    b"",
    b"\xff\xfe",
    b"not JSON",
    b'{"meta":{"at":1}} and more',
    b"[1, 2]",
    b'"text"',
    b'{"meta":{"at":NaN}}',
    b"[" * 100_000,
    b'{"meta":{"at":' + b"9" * 6000 + b"}}",
    b'{"meta":{"at":"soon"},"shift":0}',
    b'{"meta":{"at":true},"shift":0}',
    b'{"meta":{"at":1e300},"shift":0}',
    b'{"meta":[1]}',
    b'{"meta":{"at":1383500000000}}',
    b"{}",
    None,
    b'<script>alert("value")</script>',
]
"""Values that can't be read or have no time (without `shift` there is none)."""


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Records for `topics.fill`: four days around the end of summer time, some out of order."""
    chance = random.Random(seed)
    start = datetime(2013, 11, 2, tzinfo=ZONE).timestamp()
    found: list[dict[str, Any]] = []
    for number in range(count):
        came_ms = round((start + number * 4 * 86_400 / count) * 1000)
        happened_ms = came_ms - chance.choice([0, 0, 0, 1, 60_000, 599_999, 600_001, 2_400_000])
        shift = chance.choice([0, 0, 1, -3])
        price: Any = chance.choice([None, round(chance.random() * 100, 2), chance.randrange(100)])
        event = {
            "meta": {
                "at": happened_ms - shift * 1000,
                "kind": chance.choice([*HOSTILE, None, "noise"]),
            },
            "shift": shift,
            "n": chance.choice([*range(9), None, 2**63, 1.0, "3"]),
            "price": chance.choice([price, price, price, "12", True]),
        }
        if chance.random() < 0.1:
            del event["price"]
        value: bytes | None = json.dumps(event, ensure_ascii=chance.random() < 0.5).encode()
        if chance.random() < 0.02 and value is not None:
            value = value.replace(b'"n": ', b'"price": 1e999, "n": ')
        if chance.random() < 0.03:
            value = chance.choice(BROKEN)
        key = chance.choice([None, b"\xff", *(name.encode() for name in HOSTILE), b"u1", b"u2"])
        found.append(
            {"value": value, "key": key, "partition": chance.randrange(2), "timestamp_ms": came_ms}
        )
    return found


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _integer(value: Any) -> int | None:
    fits = type(value) is int and -(2**63) <= value < 2**63
    return value if fits else None


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def read(row: dict[str, Any]) -> dict[str, Any] | None:
    """The fields of a record; None if it can't be read or has no time."""
    try:
        event = json.loads((row["value"] or b"").decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    meta = event.get("meta") if isinstance(event, dict) else None
    at = meta.get("at") if isinstance(meta, dict) else None
    shift = _integer(event.get("shift")) if isinstance(event, dict) else None
    if _number(at) is None or not 0 <= at < 2**45 or shift is None:
        return None
    assert isinstance(meta, dict)
    price, n = _number(event.get("price")), _integer(event.get("n"))
    time_ms = at + shift * 1000
    return {
        "time_ms": time_ms,
        "user": _text(row["key"]),
        "kind": meta["kind"],
        "price": price,
        "n": n,
        # n / 0 is null, and so is what is compared with it.
        "dear": True if price is not None and price >= 50 else None,
        "hour": datetime.fromtimestamp(time_ms / 1000, ZONE).hour,
        "slot": None if price is None else int(price // 25) * 25,
    }


class Plain:
    """The report of DEFINITION over the rows, which are in the order of offsets."""

    def __init__(self, given: Iterable[dict[str, Any]]) -> None:
        self.read = self.unreadable = self.left_out = self.behind = 0
        self.events: list[dict[str, Any]] = []
        ahead_ms: dict[int, int] = {}
        for row in given:
            self.read += 1
            event = read(row)
            if event is None:
                self.unreadable += 1
                continue
            seen_ms = ahead_ms.get(row["partition"], event["time_ms"])
            event["is_late"] = seen_ms - event["time_ms"] > LATE_MS
            ahead_ms[row["partition"]] = max(seen_ms, event["time_ms"])
            if event["kind"] is None or event["kind"] == "noise":
                self.left_out += 1
                continue
            self.behind += seen_ms > event["time_ms"]
            self.events.append(event)

    @property
    def late(self) -> int:
        return sum(event["is_late"] for event in self.events)

    def hours(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        return self._grouped(
            lambda event: (event["time_ms"] // 3_600_000 * 3_600_000, event["kind"]), _measures
        )

    def days(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        def midnight(event: dict[str, Any]) -> tuple[int]:
            at = datetime.fromtimestamp(event["time_ms"] / 1000, ZONE)
            return (round(datetime(at.year, at.month, at.day, tzinfo=ZONE).timestamp() * 1000),)

        return self._grouped(midnight, _clicks)

    def slots(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        return self._grouped(lambda event: (event["hour"], event["slot"]), _clicks)

    def _grouped(
        self,
        key: Callable[[dict[str, Any]], tuple[Any, ...]],
        measure: Callable[[list[dict[str, Any]]], dict[str, Any]],
    ) -> dict[tuple[Any, ...], dict[str, Any]]:
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for event in self.events:
            groups[key(event)].append(event)
        return {key: {**measure(events), "late": _late(events)} for key, events in groups.items()}

    def sessions(self) -> list[tuple[Any, ...]]:
        """(user, start, end, events, spent, late), sorted."""
        by_user: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in self.events:
            if event["price"] is not None and event["user"] is not None:
                by_user[event["user"]].append(event)
        found = []
        for user, events in by_user.items():
            events.sort(key=lambda event: event["time_ms"])
            session: list[dict[str, Any]] = []
            for event in events:
                if session and event["time_ms"] - session[-1]["time_ms"] > GAP_MS:
                    found.append(_session(user, session))
                    session = []
                session.append(event)
            found.append(_session(user, session))
        return sorted(found)


def _session(user: str, events: list[dict[str, Any]]) -> tuple[Any, ...]:
    spent = round(sum(event["price"] for event in events), 6)
    first, last = events[0]["time_ms"], events[-1]["time_ms"]
    return user, first, last, len(events), spent, _late(events)


def _late(events: list[dict[str, Any]]) -> int:
    return sum(event["is_late"] for event in events)


def _clicks(events: list[dict[str, Any]]) -> dict[str, Any]:
    return {"clicks": len(events)}


def _measures(events: list[dict[str, Any]]) -> dict[str, Any]:
    prices = [event["price"] for event in events if event["price"] is not None]
    numbers = [event["n"] for event in events if event["n"] is not None]
    differences = [
        event["price"] - math.fmod(event["n"], 7)
        for event in events
        if event["price"] is not None and event["n"] is not None
    ]
    few = [
        event["price"]
        for event in events
        if event["price"] is not None and event["n"] is not None and 1 <= event["n"] <= 6
    ]
    dear = [event["dear"] for event in events if event["dear"] is not None]
    return {
        "clicks": len(events),
        "costly": sum(
            1
            for event in events
            if event["price"] is not None and event["price"] > 80 and event["user"] is not None
        ),
        "total": sum(numbers) if numbers else None,
        "average": sum(prices) / len(prices) if prices else None,
        "least": min(prices, default=None),
        "most": max(differences, default=None),
        "middle": _quantile(prices, 0.5),
        "p90": _quantile(few, 0.9),
        "expensive": 1.0 if dear else None,
        "users": len({event["user"] for event in events if event["user"] is not None}),
    }


def _quantile(values: list[float], quantile: float) -> float | None:
    """Between the two values nearest to it, in proportion."""
    if not values:
        return None
    values = sorted(values)
    place = quantile * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def milliseconds(at: datetime) -> int:
    """Since 1970, of a time in a table."""
    return (at - datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))) // timedelta(milliseconds=1)
