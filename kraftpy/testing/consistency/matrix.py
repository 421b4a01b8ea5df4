"""Several runs of one command: what they come to together, and index.html that leads to each.

A summary is what `report.summary` gives, with `path`, where the run's history is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kraftpy.page.html import NOTHING, Html, join, tag
from kraftpy.page.paper import document
from kraftpy.testing.consistency.coverage import (
    NOT_HEALED,
    came,
    coverage_lines,
    never_came,
)
from kraftpy.testing.consistency.page import headline, story
from kraftpy.testing.consistency.pictures import seconds
from kraftpy.testing.consistency.style import STYLE
from kraftpy.testing.consistency.verdicts import NOTHING_TO_JUDGE, word

Summary = Mapping[str, Any]


def is_good(summary: Summary) -> bool:
    """Whether every promise was kept and the cluster recovered."""
    healed = all(fault["name"] != NOT_HEALED for fault in summary["faults"])
    return summary["valid"] is True and healed


def total(summaries: Sequence[Summary], elapsed_s: float) -> str:
    """One line about all runs."""
    verdicts = [verdict for each in summaries for verdict in each["verdicts"]]
    faults = [fault["name"] for each in summaries for fault in each["faults"] if came(fault)]
    words = Counter(word(verdict["valid"], verdict["counts"]) for verdict in verdicts)
    idle = f", {words[NOTHING_TO_JUDGE]} with nothing to judge" * bool(words[NOTHING_TO_JUDGE])
    parts = [
        f"{len(summaries)} runs in {elapsed_s / 60:.1f} min",
        f"{sum(each['operations'] for each in summaries):,} operations",
        f"{len(faults)} faults of {len(set(faults))} kinds",
        f"{words['kept']} of {len(verdicts)} promises kept{idle}",
    ]
    bad = [f"{each['workload']}: {headline(each)}" for each in summaries if not is_good(each)]
    never = never_came(summaries)
    return (
        ", ".join(parts)
        + (f"; {'; '.join(bad)}" if bad else "")
        + (f"; never came: {', '.join(never)}" if never else "")
    )


def write_index(summaries: Sequence[Summary], elapsed_s: float, folder: Path) -> Path:
    """Writes index.html into the folder that has the runs' folders; its path. Raises OSError."""
    bad = [each for each in summaries if not is_good(each)]
    worst = min(bad, key=_badness, default=None)
    never = never_came(summaries)
    title = headline(worst) if worst else "Every promise was kept"
    kind = _kind(worst) if worst else "ok"
    if never and not worst:
        title, kind = f"Never came: {', '.join(never)}", "info"
    rows = [_row(each, folder) for each in summaries]
    body = join(
        [
            tag(
                "header",
                tag("p", "kraftpy consistency"),
                tag("h1", title),
                tag("p", f"{total(summaries, elapsed_s)}.", class_="story"),
                class_=kind,
            ),
            tag("section", tag("h2", "Runs"), tag("ul", *rows, class_="verdicts runs")),
            _faults(summaries),
        ]
    )
    path = folder / "index.html"
    path.write_text(document(f"consistency: {title.lower()}", body, STYLE), encoding="utf-8")
    return path


def _faults(summaries: Sequence[Summary]) -> Html:
    """A table: which run met which kind how often."""
    kinds = sorted(
        {name for each in summaries for group in each["kinds"].values() for name in group}
    )
    if not kinds:
        return NOTHING
    heads = [tag("th", text) for text in ("", *(each["workload"] for each in summaries))]
    rows = [
        tag("tr", tag("td", name), *(tag("td", _times(each["kinds"], name)) for each in summaries))
        for name in kinds
    ]
    return tag(
        "section",
        tag("h2", "Faults"),
        tag("p", "How often each kind came while a workload ran."),
        tag("table", tag("tr", *heads), *rows),
        *(tag("p", f"{line}.") for line in coverage_lines(summaries)),
    )


def _times(kinds: Mapping[str, Mapping[str, int | str]], name: str) -> str:
    if name in kinds["lacking"]:
        return "not here"
    return str(kinds["met"].get(name, "no"))


def _kind(summary: Summary) -> str:
    if is_good(summary):
        return "ok"
    return "info" if summary["valid"] is None else "fail"


def _badness(summary: Summary) -> int:
    """Broken promises first, then clusters that didn't recover, then what isn't known."""
    return (False, True, None).index(summary["valid"])


def _row(summary: Summary, folder: Path) -> Html:
    run = Path(summary["path"]).parent.relative_to(folder)
    count = sum(map(came, summary["faults"]))
    facts = " · ".join(
        (
            f"{summary['operations']:,} operations",
            f"{count} fault{'s' * (count != 1)}",
            seconds(summary["duration_s"]),
            f"seed {summary['seed']}",
        )
    )
    return tag(
        "li",
        tag("span", summary["workload"], class_="badge"),
        tag(
            "div",
            tag("h3", tag("a", headline(summary), href=f"{quote(str(run))}/report.html")),
            tag("p", story(summary)),
            tag("small", facts),
        ),
        class_=_kind(summary),
    )
