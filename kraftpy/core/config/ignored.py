"""Keys of Kafka's server.properties that are accepted here without effect, each with the reason.

Only keys whose loss can't surprise anybody belong here. Keys that promise security, or that change
what is stored or acknowledged, are never ignored: those that aren't implemented are unknown keys.
"""

from __future__ import annotations

_ONE_LOOP = "a broker is one process with one event loop and has no thread pools"
_NOT_YET = "this release does not have what it configures"
_QUORUM = "the metadata quorum has its own timing and storage"
_JVM = "it configures the JVM's metrics and plug-ins"
_FORMAT = "there is one protocol, and logs have one message format; old clients' is converted"
_OPENSSL = "TLS is OpenSSL's here, not the JVM's"

_KEYS = {
    "num.network.threads": _ONE_LOOP,
    "num.io.threads": _ONE_LOOP,
    "num.replica.fetchers": _ONE_LOOP,
    "num.replica.alter.log.dirs.threads": _ONE_LOOP,
    "num.recovery.threads.per.data.dir": _ONE_LOOP,
    "background.threads": _ONE_LOOP,
    "queued.max.requests": _ONE_LOOP,
    "socket.listen.backlog.size": "the backlog is fixed",
    "offsets.commit.required.acks": "an offset commit always waits for the in-sync replicas",
    "offsets.load.buffer.size": "offsets are loaded in chunks of a fixed size",
    "initial.broker.registration.timeout.ms": _QUORUM,
    "reserved.broker.max.id": "every broker has a node.id",
    "broker.id.generation.enable": "every broker has a node.id",
    "inter.broker.protocol.version": _FORMAT,
    "log.message.format.version": _FORMAT,
    "log.message.downconversion.enable": _FORMAT,
    "group.coordinator.rebalance.protocols": "both protocols are on: a client takes its own choice",
    "metric.reporters": _JVM,
    "auto.include.jmx.reporter": _JVM,
    "log.cleaner.threads": "compaction runs in one process, a partition at a time",
    "transaction.state.log.load.buffer.size": "the log is loaded in chunks of a fixed size",
    "share.coordinator.threads": _ONE_LOOP,
    "share.coordinator.load.buffer.size": "the log is loaded in chunks of a fixed size",
    "share.coordinator.append.linger.ms": "what comes in a turn of the event loop is one batch",
    "share.coordinator.cached.buffer.max.bytes": "no buffers are kept for writing",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "a transaction is aborted when "
    "its time is over",
    "log.dir.failure.timeout.ms": _NOT_YET,
    "ssl.provider": _OPENSSL,
    "ssl.keymanager.algorithm": _OPENSSL,
    "ssl.trustmanager.algorithm": _OPENSSL,
    "ssl.secure.random.implementation": _OPENSSL,
    "ssl.allow.dn.changes": "a certificate with another name is taken, and told in the log",
    "ssl.allow.san.changes": "a certificate with other names is taken",
}

_PREFIXES = {
    "controller.quorum.": _QUORUM,
    "metadata.": _QUORUM,
    "metrics.": _JVM,
    "kafka.metrics.": _JVM,
    "controlled.shutdown.": "a broker that stops always hands over what it leads, in its own time",
    "group.consumer.": _NOT_YET,
    "group.coordinator.": "a broker coordinates every group on its one event loop",
    "group.share.": _NOT_YET,
    "group.streams.": _NOT_YET,
    "log.cleaner.io.buffer.": "compaction sizes its buffers itself",
    "replica.": _NOT_YET,
    "share.": _NOT_YET,
}


def why_ignored(key: str) -> str | None:
    """Why `key` has no effect here, or None if it is not a key to be ignored."""
    reason = _KEYS.get(key)
    if reason is not None:
        return reason
    return next((why for prefix, why in _PREFIXES.items() if key.startswith(prefix)), None)
