"""What a cluster that is there already tells of itself.

No request of Kafka's protocol is answered with the name or the version of the software. What tells
releases apart are the features that a broker supports (the greatest `metadata.version` grows with
releases of Apache Kafka since 3.3, KIP-778; KIP-584 has them in ApiVersions) and its API versions.
"""

from __future__ import annotations

import asyncio
from typing import Any

import kraftpy
from kraftpy.client.cluster import Cluster
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.extensions import COOPERATIVE_FEATURE
from kraftpy.testing.consistency import secured

_TIMEOUT_MS = 10_000


def describe(bootstrap: str) -> dict[str, str]:
    """Words on one of its brokers, as `versions` of a history."""
    try:
        response = asyncio.run(_ask(bootstrap))
    except (OSError, KafkaError) as error:
        return {"peer": f"unknown: {error}"}
    return {
        "peer": "software unknown, the protocol doesn't name it",
        "peer features": _features(response) or "none",
        "peer APIs": _apis(response),
    }


def takes_claims(bootstrap: str) -> bool:
    """Whether members can share partitions there; also if it doesn't say so."""
    try:
        response = asyncio.run(_ask(bootstrap))
    except (OSError, KafkaError):
        return True
    return any(each.name == COOPERATIVE_FEATURE for each in response.finalized_features)


async def _ask(bootstrap: str) -> Any:
    async with Cluster(
        bootstrap, request_timeout_ms=_TIMEOUT_MS, security=secured.own()
    ) as cluster:
        connection = await cluster.any_connection()
        # Without a name of ours the answer is an error (KIP-511).
        request = messages.ApiVersionsRequest(
            client_software_name="kraftpy", client_software_version=kraftpy.__version__
        )
        return await connection.request(request, timeout_ms=_TIMEOUT_MS)


def _features(response: Any) -> str:
    in_use = {each.name: each.max_version_level for each in response.finalized_features}
    return ", ".join(
        f"{each.name} {each.min_version} to {each.max_version}, {in_use.get(each.name, 0)} in use"
        for each in sorted(response.supported_features, key=lambda each: each.name)
    )


def _apis(response: Any) -> str:
    known = {key.value: key.name for key in ApiKey}
    ranges = [
        f"{known.get(each.api_key, each.api_key)} {each.min_version} to {each.max_version}"
        for each in sorted(response.api_keys, key=lambda each: each.api_key)
    ]
    return f"{len(ranges)}: {', '.join(ranges)}"
