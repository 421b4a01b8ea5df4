"""How a user gets credentials when nobody can log in, or nobody any more.

It's for whoever can read a node's configuration and the quorum's secret, who may do everything
anyhow: the user is proposed over the controllers' listener, which takes neither broker nor login.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from kraftpy.core.config import BrokerConfig
from kraftpy.core.metadata.commands import AlterScram, ScramUser, encode
from kraftpy.quorum.client import ControllerClient
from kraftpy.quorum.credentials import Credentials, QuorumSecret, SecretUnusable, load_secret
from kraftpy.server.node.first_user import check_answer
from kraftpy.server.node.processes import METADATA_FOLDER
from kraftpy.server.node.quorum_tls import link_tls


async def propose_user(config: BrokerConfig, user: ScramUser, timeout_ms: int) -> None:
    """Gives a user credentials. Raises KafkaError, ControllerUnavailable or SecretUnusable."""
    client = ControllerClient(
        _voters(config),
        Credentials(_secret(config), link_tls(config)),
        config.node_id,  # without an epoch, it counts for no life of that broker
        on_commit=lambda index, command: None,
        on_snapshot=lambda state, index: None,
    )
    try:
        async with asyncio.timeout(timeout_ms / 1000 + 1):
            await client.start(timeout_ms)
            _, result = await client.propose(encode(AlterScram((user,))), timeout_ms)
    finally:
        await client.close()
    check_answer(result.error, result.message, result.value)


def _voters(config: BrokerConfig) -> dict[int, tuple[str, int]]:
    voters = {each.id: (each.host, each.port) for each in config.voters if each.port}
    if not voters:
        servers = config.controller_quorum_bootstrap_servers or ()
        voters = {-number: (host, port) for number, (host, port) in enumerate(servers, 1)}
    if not voters:
        raise SecretUnusable(
            "the node's controller has no listener that others reach. Set listeners=...,"
            "CONTROLLER://127.0.0.1:9093 and start it again, or name a file in "
            "kraftpy.bootstrap.scram.file"
        )
    return voters


def _secret(config: BrokerConfig) -> QuorumSecret:
    folder = Path(config.metadata_dir) / METADATA_FOLDER
    name = config.kraftpy_quorum_secret_file
    if name is None and (folder / "quorum.secret").exists():
        return load_secret(None, "127.0.0.1", folder)
    return load_secret(Path(name) if name else None, "", folder, shared=True)
