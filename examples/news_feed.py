"""A news feed: what those have posted whom a reader follows.

    kraftpy dev                                               in another terminal
    python examples/news_feed.py follow ada grace
    python examples/news_feed.py post grace 'The compiler works!'
    python examples/news_feed.py serve                        until Ctrl-C; --once: what is there
    python examples/news_feed.py read ada

Each post is copied into the feed of each follower when it is written (fan-out), so that reading a
feed is one lookup. `follows` and `feeds` are tables: compacted topics, of which the last record of
each key counts. `serve` keeps nothing that isn't in them. It commits posts when the feeds are
written; killed in between it comes upon the same posts again, and finds them in the feeds. The
posts have one partition: started twice, the second `serve` waits until the first is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from typing import Any

from topics import COMPACT, ends_of, ensure, is_behind, table

from kraftpy.client import Cluster, Consumer, Producer

FOLLOWS, POSTS, FEEDS = "follows", "posts", "feeds"
NEWEST = 20
"""Posts that a feed keeps."""

Post = dict[str, Any]
Feed = list[Post]


def with_post(feed: Feed, post: Post) -> Feed:
    """A feed with one more post at its beginning; as it was, if it has had it already."""
    if feed and feed[0]["number"] >= post["number"]:
        return feed
    return [post, *feed][:NEWEST]


async def follow(cluster: Cluster, reader: str, author: str, *, end: bool) -> None:
    async with Producer(cluster, key_serializer=str.encode) as producer:
        # A record without a value is the end of its key's row.
        await producer.send_and_wait(FOLLOWS, None if end else b"yes", key=f"{author} {reader}")


async def post(cluster: Cluster, author: str, text: str) -> None:
    async with Producer(cluster, key_serializer=str.encode) as producer:
        await producer.send_and_wait(POSTS, text.encode(), key=author)


async def read(cluster: Cluster, reader: str) -> None:
    feeds = await table(cluster, FEEDS)
    for each in json.loads(feeds.get(reader, b"[]")):
        print(f"{each['author']}: {each['text']}")


async def serve(cluster: Cluster, *, once: bool) -> None:
    ends = await ends_of(cluster, [POSTS])
    feeds: dict[str, Feed] = {}
    since = None
    async with (
        Producer(cluster, key_serializer=str.encode) as producer,
        Consumer(
            cluster,
            group_id="news-feed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer,
    ):
        consumer.subscribe([POSTS])
        while not once or await is_behind(consumer, ends):
            records = await consumer.poll()
            if not records:
                continue
            if since != consumer.generation:  # somebody else may have served until now
                since = consumer.generation
                stored = await table(cluster, FEEDS)
                feeds = {reader: json.loads(value) for reader, value in stored.items()}
            pairs = [key.split() for key in await table(cluster, FOLLOWS)]
            written = []
            for record in records:
                author, text = (record.key or b"").decode(), (record.value or b"").decode()
                entry: Post = {"author": author, "text": text, "number": record.offset}
                for reader in [reader for followed, reader in pairs if followed == author]:
                    feeds[reader] = with_post(feeds.get(reader, []), entry)
                    value = json.dumps(feeds[reader]).encode()
                    written.append(await producer.send(FEEDS, value, key=reader))
            await asyncio.gather(*written)
            await consumer.commit()


async def run(arguments: argparse.Namespace) -> None:
    async with Cluster(arguments.bootstrap) as cluster:
        await ensure(cluster, POSTS)
        await ensure(cluster, FOLLOWS, COMPACT)
        await ensure(cluster, FEEDS, COMPACT)
        match arguments.command:
            case "follow" | "unfollow" as command:
                end = command == "unfollow"
                await follow(cluster, arguments.reader, arguments.author, end=end)
            case "post":
                await post(cluster, arguments.author, arguments.text)
            case "read":
                await read(cluster, arguments.reader)
            case "serve":
                await serve(cluster, once=arguments.once)


def main() -> None:
    parser = argparse.ArgumentParser(description="A news feed on Kafka topics.")
    parser.add_argument("-b", "--bootstrap", default="127.0.0.1:9092")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, operands in {
        "follow": ["reader", "author"],
        "unfollow": ["reader", "author"],
        "post": ["author", "text"],
        "read": ["reader"],
        "serve": [],
    }.items():
        command = commands.add_parser(name)
        for each in operands:
            command.add_argument(each)
    commands.choices["serve"].add_argument("--once", action="store_true")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
