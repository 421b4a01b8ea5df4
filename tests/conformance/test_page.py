"""The cluster's page in a browser: Chromium, headless, as a desk and a phone have it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Broker, Cluster
from tests.chromium import Chromium, wait_for
from tests.endpoints import metrics_address
from tests.share_groups import begin_at_start

TIMEOUT_S = 20.0
LONG = "a-long-name-" + "that.somebody.chose." * 8
HOSTILE = "<img src=x onerror=alert(1)>\u202e'\"&"
GROUPS = {"kitchen": 40, HOSTILE: 90, "..": 10, "x" * 300: 50}
RECORDS = 100
QUEUE = "queue"
DONE = (*range(10), *range(50, 80))
MANY = 1_200_000
SIZES = [(1280, 900, False), (768, 1024, True), (420, 900, True), (360, 740, True)]

# The contrast of every piece of text with what is behind it, by WCAG 2; the worst that is too low.
CONTRAST = """
(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, n) => {
    const part = c[n] / 255;
    return sum + weight * (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  }, 0);
  const ground = (each) => {
    for (; each; each = each.parentElement) {
      const colour = parts(getComputedStyle(each).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) { return colour; }
    }
    return [255, 255, 255];
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const each = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !each.getClientRects().length
      || ["SCRIPT", "STYLE"].includes(each.tagName)) { continue; }
    const [a, b] = [light(parts(getComputedStyle(each).color)), light(ground(each))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) { low.push(`${ratio.toFixed(2)} ${walker.currentNode.data}`); }
  }
  return low.sort()[0] || "";
})()
"""
# The numbers, with their units, that stand on more than one line; names may do so.
BROKEN = """
(() => {
  const NUMBER = /(?<![\\w-])[+-]?\\d[\\d,.]*(\\s[KMGT]?B)?(\\/s)?(?![\\w-])/g;
  const broken = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode;
    if (!text.parentElement.closest("dd, td") || text.parentElement.closest("bdi")) { continue; }
    for (const found of text.data.matchAll(NUMBER)) {
      const range = document.createRange();
      range.setStart(text, found.index);
      range.setEnd(text, found.index + found[0].length);
      const tops = new Set([...range.getClientRects()].map(each => Math.round(each.top)));
      if (tops.size > 1) { broken.push(found[0]); }
    }
  }
  return broken;
})()
"""
# The last number of seven digits, a lag or how many records there are, becomes much larger.
LARGER = """
[...document.querySelectorAll(".figures dd")].findLast(
  each => /^\\d,\\d{3},\\d{3}$/.test(each.textContent)
).textContent = "1,234,567,890"
"""
WARNING = "rgb(133, 80, 0)"
NAMES = "[...document.querySelectorAll('section.part:has(#{}) tbody th a')].map(a => a.textContent)"


def url_of(config: Path, path: str = "") -> str:
    return f"http://{metrics_address(config)}/{path}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, offsets_topic_num_partitions=3) as started:
        bootstrap = {"bootstrap.servers": started.bootstrap}
        admin = AdminClient(bootstrap)
        topics = [NewTopic("orders", 12, 3), NewTopic(LONG, 2, 2), NewTopic("lonely", 3, 1)]
        for created in admin.create_topics(topics).values():
            created.result()
        producer = Producer({**bootstrap, "acks": "all"})
        for _ in range(RECORDS):
            producer.produce("orders", b"x" * 100, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        for group, lag in GROUPS.items():
            consumer = Consumer({**bootstrap, "group.id": group, "enable.auto.commit": False})
            offsets = [TopicPartition("orders", 0, RECORDS - lag)]
            consumer.commit(offsets=offsets, asynchronous=False)
            consumer.close()
        with queue(started.bootstrap):
            yield started


@contextmanager
def queue(bootstrap: str) -> Iterator[None]:
    """A share group with a member, which is done with some records and has given back the rest."""
    begin_at_start(bootstrap, QUEUE)
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": QUEUE,
        "share.acknowledgement.mode": "explicit",
    }
    with ShareConsumer(settings) as consumer:
        consumer.subscribe(["orders"])
        seen: set[int] = set()
        while len(seen) < RECORDS:
            for message in consumer.poll(1.0):
                offset = message.offset()
                kind = AcknowledgeType.ACCEPT if offset in DONE else AcknowledgeType.RELEASE
                consumer.acknowledge(message, kind)
                seen.add(offset)
            consumer.commit_sync()
        yield


@pytest.fixture(scope="module")
def pages(cluster: Cluster) -> dict[str, str]:
    """The addresses of the first node's pages."""
    config = cluster.nodes[1].config
    named = ("kitchen", QUEUE, "?name=..", "no")
    paths = ("", "topics/orders", *(f"groups/{name}" for name in named))
    return {path: url_of(config, path) for path in paths}


@pytest.fixture
def page(browser: Chromium) -> Iterator[Chromium]:
    """A browser that has no reason to complain."""
    browser.complaints.clear()
    browser.size(1280, 900)
    yield browser
    assert browser.complaints == []


def groups(page: Chromium) -> list[str]:
    names: list[str] = page.run(NAMES.format("groups"))
    return names


def look(page: Chromium, url: str, name: str) -> None:
    """Opens a page and keeps a picture of it where PICTURES says."""
    page.open(url)
    if folder := os.environ.get("PICTURES"):
        page.picture(Path(folder) / f"{name}.png")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height", "phone"), SIZES)
def test_every_page_fits_and_can_be_read(
    page: Chromium, pages: dict[str, str], width: int, height: int, phone: bool, dark: bool
) -> None:
    page.size(width, height, phone=phone, dark=dark)
    for path, url in pages.items():
        name = f"{path.replace('/', '-')}-{width}-{'dark' if dark else 'light'}"
        look(page, url, name.lstrip("-"))
        if path == "groups/no":  # a browser notes that there is none
            assert page.complaints.pop().startswith("Failed to load resource")
        assert page.run("document.documentElement.scrollWidth") == width, path
        overflowing = (
            "[...document.querySelectorAll('main *')].filter(e => "
            f"e.getBoundingClientRect().right > {width} && !e.closest('.table')).length"
        )
        assert page.run(overflowing) == 0, path
        if width in (360, 1280):
            assert page.run(
                "[...document.querySelectorAll('.table')].every(t => "
                "t.scrollWidth <= t.clientWidth)"
            ), path
        assert page.run(CONTRAST) == "", path
        assert page.run("document.querySelectorAll('h1').length") == 1
        assert page.run("[...document.querySelectorAll('th')].every(th => th.scope)")
        assert page.run("[...document.querySelectorAll('table')].every(t => t.caption)")


def test_what_looks_for_faults_finds_them(page: Chromium, pages: dict[str, str]) -> None:
    page.open(pages[""])
    assert page.run(CONTRAST) == ""
    page.run("document.querySelector('h1').style.color = 'rgb(170, 170, 170)'")
    assert "Cluster" in page.run(CONTRAST)
    page.run("document.querySelector('h1').style.width = '5000px'")
    assert page.run("document.documentElement.scrollWidth") > 5000
    page.run("setTimeout(() => { throw new Error('thrown') }); console.error('said')")
    wait_for(lambda: page.run("true") and len(page.complaints) == 2, "both are complained of")
    page.complaints.clear()


def test_the_page_says_what_there_is(page: Chromium, pages: dict[str, str]) -> None:
    page.open(pages[""])
    page.until("document.querySelectorAll('#groups').length")
    page.until("document.body.innerText.includes('kitchen')")
    assert page.run("document.querySelector('.verdict h2').textContent") == "Healthy"
    assert page.run("document.querySelector('main').innerText.includes('orders')")
    assert page.run("document.querySelectorAll('img').length") == 0
    hostile, *_, dots = groups(page)
    assert hostile == HOSTILE.replace("\u202e", "\\u202e")
    assert dots == ".."
    page.run("[...document.querySelectorAll('a')].find(a => a.textContent == '..').click()")
    page.until("document.querySelector('h1').textContent == 'Group ..'")
    assert page.run("document.querySelector('main').innerText.includes('Partitions')")


def test_a_share_group_is_shown_with_what_it_has_done(
    page: Chromium, pages: dict[str, str]
) -> None:
    page.open(pages[""])
    rows = "[...document.querySelectorAll('section:has(#groups) tr')]"
    row = f"{rows}.find(r => r.innerText.includes('{QUEUE}'))"
    page.until(f"{row} && {row}.innerText.includes('share protocol')")
    cells = page.run(f"[...{row}.cells].map(c => c.textContent.trim())")
    assert cells[1:3] == ["Stable", "1"]
    assert cells[4] == str(RECORDS - len(DONE))
    page.open(pages[f"groups/{QUEUE}"])
    page.until("document.body.innerText.includes('Done above the offset')")
    found = page.run(
        "[...document.querySelectorAll('tr')].map(r => [...r.cells].map(c => c.textContent.trim()))"
    )
    assert ["orders 0", "10", "100", "60", "30"] in found


def test_lists_are_sorted_and_searched_while_one_looks(
    page: Chromium, pages: dict[str, str]
) -> None:
    page.open(pages[""])
    page.until("document.body.innerText.includes('kitchen')")
    assert groups(page)[-1] == ".."
    page.run("document.getElementById('by-Groups-Group').click()")
    page.until(f"{NAMES.format('groups')}[0] == '..'")
    assert page.run("location.search") == "?groups=name"
    assert page.run("document.querySelector('[aria-sort=ascending] #by-Groups-Group') !== null")
    page.run("history.back()")
    page.until(f"{NAMES.format('groups')}[0] != '..'")
    page.run(
        "q.value = 'KITCH'; q.dispatchEvent(new Event('input', {bubbles: true}));"
        "window.there = document.querySelectorAll('[data-found] tbody tr:not([hidden])').length"
    )
    assert page.run("window.there") == 1  # at once, before the node has answered
    page.until("location.search == '?q=KITCH'")
    page.until('document.body.innerText.includes("No topic\'s name has that in it.")')
    assert groups(page) == ["kitchen"]


@contextmanager
def falling_behind(bootstrap: str) -> Iterator[None]:
    """A topic of many records, to which more come, and a member that has read none of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(MANY):
        producer.produce("orders", b"x" * 100)
        if number % 50_000 == 0:
            producer.flush(TIMEOUT_S)
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "reports",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    assert consumer.poll(TIMEOUT_S) is not None
    consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    stop = threading.Event()

    def produce() -> None:
        while not stop.wait(0.1):
            for _ in range(200):
                producer.produce("orders", b"x" * 100)
            producer.flush(TIMEOUT_S)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        consumer.close()


def test_no_number_is_broken_while_a_group_falls_behind(page: Chromium) -> None:
    with Broker() as broker, falling_behind(broker.bootstrap):
        paths = {
            "": "section:has(#groups) .chip",
            "groups/reports": ".figures .warn dd",
            "topics/orders": "section:has(#groups) .chip",
        }
        for path, state in paths.items():
            page.open(url_of(broker.config, path))
            page.until(f"document.querySelector('{state}')?.textContent == 'Stable, lag rises'", 60)
            for width, height, phone in SIZES:
                page.size(width, height, phone=phone)
                look(page, url_of(broker.config, path), f"busy-{path[:6]}-{width}")
                assert page.run(BROKEN) == []
                assert page.run("document.documentElement.scrollWidth") == width
                colour = f"getComputedStyle(document.querySelector('{state}')).color"
                assert page.run(colour) == WARNING
                assert page.run(CONTRAST) == ""
                assert page.run(f"{LARGER}, {BROKEN}") == []
                assert page.run("document.documentElement.scrollWidth") == width


def test_what_is_new_comes_by_itself_and_leaves_the_focus(
    page: Chromium, cluster: Cluster, pages: dict[str, str]
) -> None:
    page.open(pages[""])
    page.until("document.body.innerText.includes('kitchen')")
    page.run("window.here = true; document.querySelector('a[href=\"topics/orders\"]').focus()")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("brand-new", 1, 3)])["brand-new"].result()
    page.until("document.body.innerText.includes('brand-new')", 6)
    assert page.run("window.here"), "the page was loaded again"
    assert page.run("document.activeElement.getAttribute('href')") == "topics/orders"
    assert page.run("live.textContent") == "Live"


def test_a_hidden_page_sends_no_requests(page: Chromium, pages: dict[str, str]) -> None:
    page.open(pages[""])
    fetched = "performance.getEntriesByType('resource').length"
    page.until(f"{fetched} >= 2")
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, value: %s});"
    tell = "document.dispatchEvent(new Event('visibilitychange'));"
    page.run(hide % "true" + tell)
    assert page.run("live.textContent") == "Paused"
    before = page.run(fetched)
    page.run("new Promise(done => setTimeout(done, 3000))")
    assert page.run(fetched) - before <= 1  # what was under way
    page.run(hide % "false" + tell)
    page.until("live.textContent == 'Live'")


def test_it_works_without_script(page: Chromium, pages: dict[str, str]) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(f"{pages['']}?groups=name&q=x")
        assert groups(page)[0].startswith("<img")
        assert page.run("document.querySelector('form button').checkVisibility()")
        assert page.run("document.querySelector('noscript meta').content") == "10"
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_dead_broker_and_then_a_dead_node_are_seen(
    page: Chromium, cluster: Cluster, pages: dict[str, str]
) -> None:
    page.open(pages[""])
    cluster.kill(3)
    page.until("document.querySelector('.chip.bad')?.textContent == 'down (fenced)'", 8)
    page.until("document.querySelector('.verdict.bad').innerText.includes('Broker 3 is down')")
    assert page.run("document.title").startswith("✖ ")
    for width, height, phone in SIZES:
        page.size(width, height, phone=phone)
        look(page, pages[""], f"dead-{width}")
        assert page.run("document.documentElement.scrollWidth") == width
        assert page.run(CONTRAST) == ""
    cluster.kill(2)
    page.until("document.body.innerText.includes('quorum has no leader')", 5)
    look(page, pages[""], "no-quorum-360")
    assert page.complaints == []
    cluster.kill(1)
    page.until("live.className == 'stale'", 8)
    said: str = page.run("live.textContent")
    assert said.startswith("Stale since ")
    assert "doesn't answer" in said
    assert page.run("document.querySelector('main').innerText.includes('orders')")
    if folder := os.environ.get("PICTURES"):
        page.picture(Path(folder) / "stale-360.png", 900)
    page.open("about:blank")
    page.complaints[:] = [each for each in page.complaints if "ERR_CONNECTION" not in each]
