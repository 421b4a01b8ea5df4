"""From a path and a query to an answer: the pages, and the same as JSON.

Any thread may ask. Nothing here changes anything, neither in the cluster nor on the node.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote

from kraftpy.client.security import NO_SECURITY, Secures
from kraftpy.metrics.channel import Source
from kraftpy.metrics.http import Answer
from kraftpy.page.as_json import group_json, status_json, topic_json
from kraftpy.page.group_page import group_page
from kraftpy.page.html import Html, join, shown
from kraftpy.page.layout import Page, assets, fragment, framed, note
from kraftpy.page.model import Node
from kraftpy.page.overview import overview
from kraftpy.page.topic_page import topic_page
from kraftpy.page.view import Status, View
from kraftpy.page.watch import (
    DISKS,
    ENDS,
    GROUPS,
    NODE,
    QUORUM,
    TRANSACTIONS,
    Key,
    Seen,
    Watch,
)

WAIT_S = 1.0
"""For what is being asked; then the page shows what it has."""
FIELDS_MAX = 20

HTML = "text/html; charset=utf-8"
JSON = "application/json"


class Site:
    """Answers for one node; `sources` are its processes, `security` is for asking brokers."""

    def __init__(
        self, node_id: int, sources: Sequence[Source], security: Secures = NO_SECURITY
    ) -> None:
        self._node_id = node_id
        self._processes = tuple(source.name for source in sources)
        self._watch = Watch(node_id, sources, security)

    def answer(self, path: str, query: str) -> Answer | None:
        """None if there is nothing at this path."""
        try:
            fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS_MAX))
        except ValueError:
            fields = {}
        if path == "/":
            view = View(fields)
            return self._page(fields, overview(self._status(), view))
        if path == "/status.json":
            return self._json(fields)
        for kind in ("topics", "groups"):
            start = f"/{kind}/"
            if path.startswith(start):
                # By name if the path has none: dots would be swallowed there.
                name = unquote(path[len(start) :]) or fields.get("name")
                if name is None or "/" in path[len(start) :]:
                    return None
                return self._named(kind, name, fields)
        return None

    # -- what there is

    def _look(self, *keys: Key) -> tuple[Status, Seen]:
        """The status, as far as these keys have it, and the first of them."""
        found = self._watch.look(*keys, NODE, wait_s=WAIT_S)
        node: Node = found[NODE].value or Node(self._node_id, silent=self._processes)
        nothing = Seen()
        status = Status(
            node,
            found.get(QUORUM, nothing),
            found.get(DISKS, nothing),
            found.get(GROUPS, nothing),
            found.get(TRANSACTIONS, nothing),
            found.get(ENDS, nothing),
        )
        return status, found[keys[0]]

    def _status(self) -> Status:
        return self._look(NODE, QUORUM, DISKS, GROUPS, TRANSACTIONS, ENDS)[0]

    # -- answers

    def _named(self, kind: str, name: str, fields: dict[str, str]) -> Answer:
        view = View(fields)
        if kind == "groups":
            status, seen = self._look(Key("group", name))
            if not seen.gone:
                return self._page(fields, group_page(name, seen, view), status.node)
        else:
            status, seen = self._look(Key("topic", name), DISKS, GROUPS, ENDS)
            topic = status.node.topics.get(name)
            if topic is not None:
                return self._page(fields, topic_page(status, topic, seen, view), status.node)
        what = kind.removesuffix("s")
        heading = join([f"There is no {what} ", shown(name)])
        body = note("It has been deleted, or it has never been there.")
        page = Page(f"No {what} {name}", heading, body, "../", trail=kind)
        return self._page(fields, page, status.node, HTTPStatus.NOT_FOUND)

    def _page(
        self,
        fields: dict[str, str],
        page: Page,
        node: Node | None = None,
        status: HTTPStatus = HTTPStatus.OK,
    ) -> Answer:
        node = node or self._look(NODE)[0].node
        text: Html
        if "fragment" in fields:
            # A page that stays open after its topic is gone is no error.
            text, status = fragment(page), HTTPStatus.OK
        else:
            text = framed(page, node)
        headers = {
            "Content-Security-Policy": assets().policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        return Answer(status, text.encode("utf-8", "backslashreplace"), HTML, headers)

    def _json(self, fields: dict[str, str]) -> Answer:
        status = HTTPStatus.OK
        value: dict[str, Any]
        if "topic" in fields:
            name = fields["topic"]
            known, seen = self._look(Key("topic", name), DISKS, ENDS)
            topic = known.node.topics.get(name)
            if topic is None:
                status, value = HTTPStatus.NOT_FOUND, {"error": "there is no such topic"}
            else:
                value = topic_json(topic, seen, known, View(fields))
        elif "group" in fields:
            _, seen = self._look(Key("group", fields["group"]))
            if seen.gone:
                status, value = HTTPStatus.NOT_FOUND, {"error": "there is no such group"}
            else:
                value = group_json(fields["group"], seen, View(fields))
        else:
            value = status_json(self._status(), View(fields))
        headers = {"X-Content-Type-Options": "nosniff"}
        return Answer(status, json.dumps(value).encode() + b"\n", JSON, headers)
