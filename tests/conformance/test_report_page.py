"""A report's page in a browser: on a desk and on a phone, by light and by dark."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftpy.pipeline.report.page import render
from tests.chromium import Chromium
from tests.unit.pipeline.test_report_page import REPORT

SIZES = [(1280, 900, False), (360, 740, True)]
OUTSIDE = """
[...document.querySelectorAll("main *")].filter(each => {
  const scrolls = each.parentElement.closest(".wide, svg");
  return !scrolls && each.getBoundingClientRect().right > innerWidth + 1;
}).map(each => each.outerHTML.slice(0, 100))
"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height", "phone"), SIZES)
def test_nothing_is_outside_of_the_page_or_run(
    browser: Chromium, tmp_path: Path, width: int, height: int, phone: bool, dark: bool
) -> None:
    file = tmp_path / "report.html"
    file.write_text(render(REPORT), encoding="utf-8")
    browser.size(width, height, phone=phone, dark=dark)
    browser.open(file.as_uri())
    browser.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run(OUTSIDE) == []
    assert browser.run("document.querySelectorAll('figure').length") == 6
    colours = "[getComputedStyle(document.body).color, getComputedStyle(document.body).background]"
    ink, paper = (sum(map(int, _numbers(each)[:3])) for each in browser.run(colours))
    assert (ink > paper) == dark
    assert browser.complaints == []


def _numbers(colour: str) -> list[str]:
    return colour.partition("(")[2].partition(")")[0].split(",")
