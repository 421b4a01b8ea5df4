"""The frame of every page: head, search, the part that is fetched again, foot; and what it sends.

The part in `main` is the page's fragment: the script fetches it by itself and puts it in the old
one's place. Style and script are in the page, named by their hashes in the Content-Security-Policy,
so that nothing else is ever styled or run.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from kraftpy import __version__
from kraftpy.frozen import NamedTuple
from kraftpy.page.html import Child, Html, cut, join, tag
from kraftpy.page.model import Level, Node, Problem

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Ccircle cx='4' cy='8' r='3' fill='%232456c7'/%3E%3Ccircle cx='12' cy='4' r='2.5' "
    "fill='%235b8def'/%3E%3Ccircle cx='12' cy='12' r='2.5' fill='%235b8def'/%3E%3C/svg%3E"
)


class Assets(NamedTuple):
    """Style and script, and the policy that allows them."""

    style: Html
    script: Html
    policy: str


@cache
def assets() -> Assets:
    """Read once."""
    folder = resources.files("kraftpy.page")
    style = folder.joinpath("style.css").read_text(encoding="utf-8")
    script = folder.joinpath("script.js").read_text(encoding="utf-8")
    assert "</" not in style + script
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(style)}",
            f"script-src {_hash(script)}",
            "connect-src 'self'",
            "img-src data:",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )
    return Assets(Html(style), Html(script), policy)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


class Page(NamedTuple):
    """A page to be framed. `root` leads from it to the overview; `trail` is what it is called."""

    title: str
    heading: Child
    body: Html
    root: str = ""
    search: str | None = None
    trail: str = ""


def fragment(page: Page) -> Html:
    """What is fetched again and again."""
    return tag("div", page.body, id="content", data_title=_title(page))


def framed(page: Page, node: Node) -> Html:
    """All of it."""
    found = assets()
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", _title(page)),
        tag("link", rel="icon", href=_ICON),
        tag("noscript", tag("meta", http_equiv="refresh", content="10")),
        tag("style", found.style),
    )
    body = tag(
        "body",
        tag("a", "Skip to the cluster", href="#content", class_="skip"),
        _header(page),
        tag("main", fragment(page)),
        _footer(page, node),
        tag("script", found.script),
    )
    return Html(f"<!doctype html>{tag('html', head, body, lang='en')}")


def _title(page: Page) -> str:
    return f"{cut(page.title)} · kraftpy"


def _header(page: Page) -> Html:
    home = tag("a", "kraftpy", href=page.root or "./", class_="brand")
    parts: list[Child] = [
        tag(
            "div",
            tag("nav", home, tag("span", page.trail) if page.trail else None, aria_label="Where"),
            tag("p", tag("span", "", id="live", role="status"), tag("span", "", id="clock")),
            class_="bar",
        ),
        tag("h1", page.heading),
    ]
    if page.search is not None:
        parts.append(_search(page.search))
    return tag("header", *parts)


def _search(value: str) -> Html:
    return tag(
        "form",
        tag("label", "Find topics and groups", for_="q"),
        tag(
            "input",
            type="search",
            id="q",
            name="q",
            value=value,
            placeholder="part of a name",
            autocomplete="off",
            spellcheck="false",
            maxlength="255",
        ),
        tag("button", "Find", type="submit"),
        method="get",
        role="search",
    )


def _footer(page: Page, node: Node) -> Html:
    links = [
        tag("a", name, href=f"{page.root}{name}")
        for name in ("status.json", "metrics", "healthz", "readyz")
    ]
    return tag(
        "footer",
        tag("p", f"Seen from node {node.id}, {node.roles}, kraftpy {__version__}."),
        tag("p", join(links, " · ")),
    )


def verdict(problems: list[Problem]) -> Html:
    """What is wrong, or that nothing is."""
    if not problems:
        words = "Every broker is up, every partition has all its replicas in sync."
        return tag(
            "section",
            tag("h2", "Healthy"),
            tag("p", words),
            class_="verdict ok",
            aria_label="Health",
        )
    worst = min(problem.level for problem in problems)
    listed = [
        tag(
            "li",
            tag("b", "Serious: " if each.level is Level.BAD else "Warning: "),
            each.text,
            class_="bad" if each.level is Level.BAD else "warn",
        )
        for each in problems
    ]
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    kind = "bad" if worst is Level.BAD else "warn"
    return tag(
        "section",
        tag("h2", count),
        tag("ul", *listed),
        class_=f"verdict {kind}",
        aria_label="Health",
    )


def figures(pairs: list[tuple[str, Child, str]]) -> Html:
    """Numbers with what they are, and the kind of each (see `chip`)."""
    return tag(
        "dl",
        *(
            tag("div", tag("dt", label), tag("dd", value), class_=kind or None)
            for label, value, kind in pairs
        ),
        class_="figures",
    )


def note(*children: Child) -> Html:
    """A remark on what is shown."""
    return tag("p", *children, class_="note")
