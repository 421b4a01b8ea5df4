"""A consistency run's page and that of several runs in a browser: on a desk and on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from kraftpy.testing import Broker
from kraftpy.testing.consistency import HistoryReader
from kraftpy.testing.consistency.matrix import write_index
from kraftpy.testing.consistency.plan import Plan
from kraftpy.testing.consistency.report import judge, summary, write_report
from kraftpy.testing.consistency.runner import run
from kraftpy.wording import printable
from tests.chromium import Chromium
from tests.unit.consistency.test_report import EVIL, record

from .test_report_page import OUTSIDE, SIZES

# In what somebody chose: a name of the tested cluster, an option of the command, an error, a node.
HOSTILE = f"{EVIL}<img src=x onerror=alert(2)>\u202e\"'&amp;"
LONG = "a-long-word-that-nothing-breaks" * 6
SEEN = """
[...document.querySelectorAll("main section")].filter(each => {
  const box = each.getBoundingClientRect();
  return box.width > 0 && box.height > 0;
}).map(each => (each.querySelector("h2, summary") || each).textContent)
"""
EXTERNAL = """
performance.getEntriesByType("resource").map(each => each.name).concat(
  [...document.querySelectorAll("script, img, iframe, object, link, [src]")].map(e => e.outerHTML))
"""
# How large the pieces of the pictures are that are drawn, and that they are not all the same.
DRAWN = """
[...document.querySelectorAll(".rows .row svg")].filter(each => {
  const box = each.getBoundingClientRect();
  return box.width > 100 && each.querySelector("path, rect");
}).length
"""
COLOURS = "['color', 'background-color'].map(e => getComputedStyle(document.body)[e])"


def written(history: Path, **more: Any) -> dict[str, Any]:
    """Write a history's report beside it; its summary, as the command line makes it."""
    _, report = judge(HistoryReader(history))
    report |= more
    write_report(report, history.parent)
    return {"path": str(history), **summary(report)}


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A real run, one that lost something, and one full of what pages stumble over."""
    out = tmp_path_factory.mktemp("consistency")
    again = ("kraftpy", "consistency", "run", "--seed", "7")
    with Broker() as broker:
        plan = Plan(
            "queue", out / "real", time_limit_s=3, seed=7, bootstrap=broker.bootstrap, again=again
        )
        run(plan, say=print)
    for name in ("broken", f"hostile {EVIL.replace('/', '_')}"):
        (out / name).mkdir()
        record(out / name / "history.jsonl", lose=True)
    broken, hostile = sorted(each for each in out.iterdir() if each.name != "real")
    options = {"tested": HOSTILE, "links": LONG, "left_out": {HOSTILE: LONG}, LONG: HOSTILE}
    files = [{"path": f"{HOSTILE}/{LONG}", "about": HOSTILE}, {"path": LONG, "about": LONG}]
    return [
        written(plan.history),
        written(broken / "history.jsonl"),
        written(
            hostile / "history.jsonl",
            options=options,
            about=HOSTILE,
            again=f"kraftpy consistency run {HOSTILE} {LONG}",
            files=files,
            versions={HOSTILE: LONG},
            processes={HOSTILE: 3},
        ),
    ]


@pytest.fixture(scope="module")
def index(summaries: Sequence[dict[str, Any]]) -> Path:
    return write_index(summaries, 42.0, Path(summaries[0]["path"]).parents[1])


def look(browser: Chromium, page: Path, size: tuple[int, int, bool], dark: bool) -> str:
    """Opens a page and all that is folded up; its text. It has to fit, and to load nothing."""
    width, height, phone = size
    browser.complaints.clear()
    browser.size(width, height, phone=phone, dark=dark)
    browser.open(page.as_uri())
    browser.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run("document.body.scrollWidth") == width
    assert browser.run(OUTSIDE) == []
    assert browser.run(EXTERNAL) == []
    ink, paper = (_brightness(each) for each in browser.run(COLOURS))
    assert (ink > paper) == dark
    assert browser.complaints == []
    text: str = browser.run("document.body.innerText")
    return text


def _brightness(colour: str) -> int:
    return sum(map(int, colour.partition("(")[2].rstrip(")").split(",")[:3]))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_run_can_be_read(
    browser: Chromium,
    summaries: Sequence[dict[str, Any]],
    size: tuple[int, int, bool],
    dark: bool,
) -> None:
    for each in summaries:
        text = look(browser, Path(each["path"]).with_name("report.html"), size, dark)
        shown = browser.run(SEEN)
        for title in ("Promises", "What happened when", "Over time", "Details"):
            assert title in shown
        assert ("What is wrong" in shown) == (each["valid"] is False)
        for verdict in each["verdicts"]:
            assert verdict["checker"] in text
            assert verdict["promise"] in text
        assert browser.run("document.querySelectorAll('.verdicts .badge').length") == len(
            each["verdicts"]
        )
        assert browser.run(DRAWN) >= len(each["clients"])
        assert "Run it again" in text
        again = printable(each["again"])
        assert again in browser.run("document.querySelector('pre').textContent")
        assert "kraftpy consistency check history.jsonl" in text


def test_what_was_chosen_by_others_is_text(
    browser: Chromium, summaries: Sequence[dict[str, Any]]
) -> None:
    page = Path(summaries[-1]["path"]).with_name("report.html")
    text = look(browser, page, SIZES[0], dark=False)
    shown = r"""<script>alert('&')</script><img src=x onerror=alert(2)>\u202e"'&amp;"""
    assert text.count(shown) >= 6
    assert "kill" in text


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_of_all_runs_leads_to_each(
    browser: Chromium,
    summaries: Sequence[dict[str, Any]],
    index: Path,
    size: tuple[int, int, bool],
    dark: bool,
) -> None:
    text = look(browser, index, size, dark)
    assert "3 runs in 0.7 min" in text
    assert browser.run("document.querySelectorAll('.runs li.ok').length") == 1
    assert browser.run("document.querySelectorAll('.runs li.fail').length") == 2
    links = browser.run("[...document.querySelectorAll('.runs a')].map(each => each.href)")
    reports = [Path(each["path"]).with_name("report.html") for each in summaries]
    assert [Path(unquote(link.removeprefix("file://"))) for link in links] == reports
    for link, each in zip(links, summaries, strict=True):
        browser.open(link)
        title = browser.run("document.querySelector('h1').textContent")
        assert title in text
        assert browser.run("document.title") == f"{each['workload']}: {title}"
    assert browser.complaints == []
