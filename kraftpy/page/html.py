"""HTML from Python, everything escaped: anybody may have chosen a topic's or a group's name.

`tag("a", "text", href=url)` escapes its children and attributes unless they are `Html` already.
Control characters, and those that turn the direction of writing, are shown as escapes.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from urllib.parse import quote

from kraftpy.frozen import NamedTuple
from kraftpy.wording import printable, size_text

NAME_MAX_LENGTH = 160
LINK_MAX_LENGTH = 4000
_VOID = frozenset({"input", "link", "meta"})
_DOTS = frozenset({"", ".", ".."})


class Html(str):
    """Text that is HTML, and safe."""

    __slots__ = ()


NOTHING = Html("")
Child = object


def escaped(value: Child) -> Html:
    """The value as HTML; nothing for None."""
    if isinstance(value, Html):
        return value
    return NOTHING if value is None else Html(html.escape(printable(str(value))))


def join(children: Iterable[Child], between: str = "") -> Html:
    """The children one after the other."""
    return Html(html.escape(between).join(map(escaped, children)))


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """An element. `class_` stands for class, `data_label` for data-label; None leaves one out."""
    parts = []
    for key, value in attributes.items():
        if value is not None:
            text = html.escape(printable(str(value)))
            parts.append(f' {key.rstrip("_").replace("_", "-")}="{text}"')
    opening = f"<{name}{''.join(parts)}>"
    return Html(opening if name in _VOID else f"{opening}{join(children)}</{name}>")


def shown(name: str) -> Html:
    """A name that somebody chose: kept apart from what stands around it, and not too long."""
    if name == "":
        return tag("bdi", "(empty name)", class_="quiet")
    return tag("bdi", cut(name))


def cut(name: str) -> str:
    """The name, cut to a length that people read."""
    return name if len(name) <= NAME_MAX_LENGTH else name[:NAME_MAX_LENGTH] + "…"


def link_to(kind: str, name: str, root: str = "") -> str:
    """The address of a topic's or group's page. Browsers would swallow a path of dots."""
    encoded = quote(name.encode("utf-8", "surrogatepass"), safe="")
    if name in _DOTS:
        return f"{root}{kind}/?name={encoded}"
    return f"{root}{kind}/{encoded}"


def link(kind: str, name: str, root: str = "") -> Html:
    """The name as a link to its page; without one if no request could have that name in it."""
    href = link_to(kind, name, root)
    return shown(name) if len(href) > LINK_MAX_LENGTH else tag("a", shown(name), href=href)


# -- parts of a page


class Column(NamedTuple):
    """Of a table. `sort` is the address that sorts by it, `order` how it is sorted now."""

    label: str
    numeric: bool = False
    sort: str | None = None
    order: str | None = None


def chip(text: str, kind: str) -> Html:
    """A state: its text, and the colour of its kind (ok, warn, bad or quiet)."""
    return tag("span", text, class_=f"chip {kind}")


def small(*children: Child) -> Html:
    """A second line in a cell."""
    return tag("small", *children)


def table(caption: str, columns: list[Column], rows: list[list[Child]]) -> Html:
    """A table whose first column names its rows; narrow screens show each row as a card.

    The roles are said because such a card's `display` would take them away.
    """
    head = [
        tag(
            "th",
            each.label
            if each.sort is None
            else tag(
                "a",
                each.label,
                href=each.sort,
                data_live="",
                id=f"by-{caption}-{each.label}".replace(" ", "-"),
            ),
            scope="col",
            role="columnheader",
            class_="n" if each.numeric else None,
            aria_sort=each.order,
        )
        for each in columns
    ]
    body = [tag("tr", *_cells(columns, row), role="row") for row in rows]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", *head, role="row"), role="rowgroup"),
            tag("tbody", *body, role="rowgroup"),
            role="table",
        ),
        class_="table",
    )


def _cells(columns: list[Column], row: list[Child]) -> list[Html]:
    cells = [tag("th", row[0], scope="row", role="rowheader")]
    for column, value in zip(columns[1:], row[1:], strict=True):
        cells.append(
            tag(
                "td",
                tag("span", value),
                role="cell",
                data_label=column.label,
                class_="n" if column.numeric else None,
            )
        )
    return cells


def number(value: int | None) -> Html:
    """With separators; a dash if it isn't known."""
    return (
        tag("span", "-", class_="quiet", title="not known") if value is None else Html(f"{value:,}")
    )


def size(size_bytes: int | None) -> Html:
    """A number of bytes; a dash if it isn't known."""
    return number(None) if size_bytes is None else _together(size_text(size_bytes))


def rate(per_s: float | None) -> Html:
    """So many a second; a dash if it isn't known."""
    return (
        number(None) if per_s is None else Html(f"{per_s:,.1f}" if per_s < 10 else f"{per_s:,.0f}")
    )


def size_rate(bytes_per_s: float | None) -> Html:
    """So many bytes a second; a dash if it isn't known."""
    return number(None) if bytes_per_s is None else _together(f"{size_text(round(bytes_per_s))}/s")


def _together(text: str) -> Html:
    """A number and its unit, which stay on one line."""
    return Html(text.replace(" ", "\u00a0"))


def ago(milliseconds: int | None) -> str:
    """How long ago, as a person says it."""
    if milliseconds is None:
        return "never"
    return "now" if milliseconds < 1000 else f"{duration(milliseconds)} ago"


def duration(milliseconds: int) -> str:
    """How long, as a person says it."""
    seconds = milliseconds // 1000
    return f"{seconds:,} s" if seconds < 120 else f"{seconds // 60:,} min"


def ids(numbers: Iterable[int], at_most: int = 8) -> str:
    """`1, 2, 3`."""
    listed = list(numbers)
    text = ", ".join(map(str, listed[:at_most]))
    return text + (f" +{len(listed) - at_most}" if len(listed) > at_most else "")
