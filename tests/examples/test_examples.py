"""The programs of `examples/`, as people run them, and when they are killed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kraftpy.client import Cluster, GroupAdmin, OffsetAndMetadata
from kraftpy.testing import Broker
from tests import warm
from tests.waiting import TIMEOUT_S, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(dir=tmp_path_factory.mktemp("examples")) as started:
        yield started


def start(program: str, broker: Broker, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, f"{EXAMPLES}/{program}.py", "-b", broker.bootstrap, *arguments]
    return warm.popen(command, stdout=subprocess.PIPE)


@pytest.fixture
def run(broker: Broker) -> Run:
    def run(program: str, *arguments: str) -> str:
        with start(program, broker, *arguments) as process:
            assert process.stdout is not None
            printed = process.stdout.read().decode()
            assert process.wait(TIMEOUT_S) == 0
        return printed

    return run


def write(broker: Broker, topic: str, records: list[tuple[str, str, int]]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key, value, at_ms in records:
        producer.produce(topic, value, key, timestamp=at_ms)
    assert producer.flush(TIMEOUT_S) == 0


async def forget_some(broker: Broker) -> None:
    """Takes the group back by three posts, as one that was killed before it committed."""
    async with Cluster(broker.bootstrap) as cluster:
        groups = GroupAdmin(cluster)
        (committed,) = (await groups.committed("news-feed")).values()
        before = {("posts", 0): OffsetAndMetadata(committed.offset - 3)}
        await groups.commit("news-feed", before, {("posts", 0): committed.offset})


def test_a_news_feed(broker: Broker, run: Run) -> None:
    for reader in ("ada", "bob"):
        run("news_feed", "follow", reader, "grace")
    run("news_feed", "post", "grace", "The compiler works!")
    run("news_feed", "serve", "--once")
    assert run("news_feed", "read", "bob") == "grace: The compiler works!\n"
    assert run("news_feed", "read", "linus") == ""
    run("news_feed", "unfollow", "bob", "grace")
    with start("news_feed", broker, "serve") as serving:
        write(broker, "posts", [("grace", f"post {number}", 0) for number in range(25)])
        wait_until(lambda: "post 24" in run("news_feed", "read", "ada"), "the feed has the posts")
        serving.send_signal(signal.SIGINT)
        assert serving.wait(TIMEOUT_S) == 0
    asyncio.run(forget_some(broker))
    run("news_feed", "serve", "--once")
    newest = [f"grace: post {number}" for number in range(24, 4, -1)]
    assert run("news_feed", "read", "ada").splitlines() == newest
    assert run("news_feed", "read", "bob") == "grace: The compiler works!\n"


def test_posts_that_come_again_are_known() -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        from news_feed import NEWEST, with_post  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(EXAMPLES))
    posts = [{"author": "grace", "text": "x", "number": number} for number in range(NEWEST * 2)]
    feed: list[dict[str, object]] = []
    for post in posts + posts[-3:]:
        feed = with_post(feed, post)
    assert feed == posts[: -NEWEST - 1 : -1]


def test_a_security_monitor(broker: Broker, run: Run) -> None:
    start_ms = 1_767_225_600_000  # 2026-01-01
    failed, ok = (json.dumps({"user": "ada", "ok": each}) for each in (False, True))

    def logins(*at_s: int, address: str = "10.0.0.7", value: str = failed) -> None:
        write(broker, "logins", [(address, value, start_ms + each * 1000) for each in at_s])

    run("security_monitor", "login", "10.0.0.1", "eve", "failed", "--at-ms", str(start_ms))
    logins(0, 15, 30, 45)
    logins(*range(46, 56), address="10.0.0.2", value=ok)
    run("security_monitor", "watch", "--once")
    assert run("security_monitor", "alerts") == ""
    logins(59)  # the fifth, counted by the next one who watches
    run("security_monitor", "watch", "--once")
    told = "10.0.0.7: 5 failed logins within a minute, as ada at 2026-01-01 00:00:59\n"
    assert run("security_monitor", "alerts") == told
    logins(62, 70)  # told of already, though not by this one
    run("security_monitor", "watch", "--once")
    assert run("security_monitor", "alerts") == told
    logins(71, value=ok)  # nor do those count that have left the window meanwhile
    run("security_monitor", "watch", "--once")
    assert run("security_monitor", "alerts") == told
    logins(125, address="10.0.0.9")  # one is left of the first address
    run("security_monitor", "watch", "--once")
    assert run("security_monitor", "alerts") == ""


def test_the_page_names_what_there_is() -> None:
    page = (EXAMPLES / "README.md").read_text()
    commands = re.findall(r"^python examples/(\w+)\.py (\w+)", page, re.MULTILINE)
    assert {name for name, _ in commands} == {"news_feed", "security_monitor"}
    for name, verb in commands:
        assert f'"{verb}"' in (EXAMPLES / f"{name}.py").read_text()
