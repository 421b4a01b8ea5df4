"""Share groups of stock clients, as tests and benches want them."""

from __future__ import annotations

import asyncio

from kraftpy.client.cluster import Cluster, check
from kraftpy.protocol.messages import IncrementalAlterConfigsRequest

_GROUP = 32


def begin_at_start(bootstrap: str, group: str) -> None:
    """Has a new group begin at the start of its topics, and not at their end."""
    kinds = IncrementalAlterConfigsRequest
    config = kinds.AlterableConfig("share.auto.offset.reset", 0, "earliest")
    request = kinds([kinds.AlterConfigsResource(_GROUP, group, [config])])

    async def configure() -> None:
        async with Cluster(bootstrap) as cluster:
            (answer,) = (await cluster.request(request)).responses
        check(answer.error_code, answer.error_message)

    asyncio.run(configure())
