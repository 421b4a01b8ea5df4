"""The rules of a broker's configuration that concern more than one setting."""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.core.config.addresses import Listener, is_every_interface
from kraftpy.core.config.kinds import ConfigError
from kraftpy.core.config.listeners import (
    METRICS,
    PLAINTEXT,
    PREFIX,
    SSL,
    WITH_TLS,
    Layers,
    check_listeners,
    tls_settings,
)
from kraftpy.core.config.logins import check_logins
from kraftpy.core.config.node import NodeSettings

SPOKEN_BY_CONTROLLERS = (PLAINTEXT, SSL)


def check_complete(config: NodeSettings) -> None:
    """Raises ConfigError if something is missing that a server can't start without."""
    if config.node_id < 0:
        raise _missing("node.id", "node.id=1")
    if "broker" in config.process_roles and not config.broker_listeners:
        raise _missing("listeners", "listeners=PLAINTEXT://127.0.0.1:9092")
    if "controller" in config.process_roles:
        alone = "broker" in config.process_roles and config.controller_quorum_voters is None
        # The controller of a cluster of one needs no listener: only its own broker talks to it.
        if not config.controller_listeners and not alone:
            name = config.controller_listener_names[0].upper()
            listener = Listener(name, "127.0.0.1", 9093)
            shown = ",".join(str(each) for each in (*config.listeners, listener))
            raise _missing("listeners", f"listeners={shown}")
        voters = config.controller_quorum_voters
        if voters is not None and config.node_id not in {voter.id for voter in voters}:
            raise ConfigError(
                "controller.quorum.voters",
                None,
                f"a list that has node.id={config.node_id} in it",
                f"node.id={config.node_id} is a controller but no voter: add it to "
                "controller.quorum.voters, or set process.roles=broker",
            )
    elif not (config.controller_quorum_voters or config.controller_quorum_bootstrap_servers):
        raise _missing("controller.quorum.voters", "controller.quorum.voters=1@host:9093")


def _missing(key: str, example: str) -> ConfigError:
    return ConfigError(key, None, example, f"{key} is missing: set for example {example}")


def check_together(config: NodeSettings, layers: Layers) -> None:
    """The rules that concern more than one setting; both are of one configuration."""
    names = {listener.name for listener in config.listeners}
    protocols = dict(config.listener_security_protocol_map)
    for listener in config.listeners:
        protocol = protocols.get(listener.name)
        if protocol is None:
            raise ConfigError(
                "listeners",
                str(listener),
                "a listener that listener.security.protocol.map names",
                f"listener {listener.name} is not in listener.security.protocol.map: add "
                f"{listener.name}:PLAINTEXT to it",
            )
        _check_protocol(config, layers, listener, protocol)
    _check_no_metrics(config, names | protocols.keys())
    check_listeners(layers, names)
    for listener in config.advertised_listeners or ():
        if listener.name not in names:
            raise ConfigError(
                "advertised.listeners",
                str(listener),
                "made of names that listeners has too",
                f"advertised.listeners names {listener.name}, which is not in listeners",
            )
        if is_every_interface(listener.host):
            raise ConfigError(
                "advertised.listeners",
                str(listener),
                "a host that clients can reach",
                f"advertised.listeners={listener}: clients can't connect to {listener.host}, which "
                "stands for every interface: name the host that they use, or leave "
                "advertised.listeners out, and each is told the address that it has connected to",
            )
    _check_inter_broker(config, protocols)
    check_logins(config, layers)
    if config.queued_max_request_bytes < config.socket_request_max_bytes:
        raise ConfigError(
            "queued.max.request.bytes",
            str(config.queued_max_request_bytes),
            f"socket.request.max.bytes={config.socket_request_max_bytes} or more",
        )
    if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
        raise ConfigError(
            "group.min.session.timeout.ms",
            str(config.group_min_session_timeout_ms),
            f"group.max.session.timeout.ms={config.group_max_session_timeout_ms} or less",
        )
    _check_times(config, "consumer")
    _check_times(config, "share")
    for key in ("partition.max.record.locks", "delivery.count.limit", "record.lock.duration.ms"):
        _within(config, "share", key)
    if config.broker_heartbeat_interval_ms * 2 > config.broker_session_timeout_ms:
        raise ConfigError(
            "broker.heartbeat.interval.ms",
            str(config.broker_heartbeat_interval_ms),
            f"at most half of broker.session.timeout.ms={config.broker_session_timeout_ms}",
        )
    bootstrap = config.controller_quorum_bootstrap_servers
    if (
        bootstrap
        and len(bootstrap) > 1
        and config.controller_quorum_voters is None
        and "controller" in config.process_roles
    ):
        raise ConfigError(
            "controller.quorum.bootstrap.servers",
            None,
            "one address, or controller.quorum.voters",
            "a quorum of several controllers has a fixed list of voters: set "
            "controller.quorum.voters=1@host:9093,2@host:9093,3@host:9093",
        )


def _check_no_metrics(config: NodeSettings, names: set[str]) -> None:
    """Whether the prefix of `kraftpy.metrics.listener` is its alone."""
    if config.kraftpy_metrics_listener is not None and METRICS in names:
        raise ConfigError(
            "listeners",
            METRICS,
            "another name for a listener",
            f"a listener can't be called {METRICS}: listener.name.{METRICS.lower()}.… is of "
            "kraftpy.metrics.listener",
        )


def _check_protocol(
    config: NodeSettings, layers: Layers, listener: Listener, protocol: str
) -> None:
    """Whether what a listener speaks is there, with all that it takes."""
    if listener in config.controller_listeners and protocol not in SPOKEN_BY_CONTROLLERS:
        spoken = " or ".join(SPOKEN_BY_CONTROLLERS)
        raise ConfigError(
            "listeners",
            str(listener),
            f"a listener with {spoken}",
            f"listener {listener.name} asks for {protocol}, but a controller speaks only "
            f"{spoken}: those who connect to it know its secret",
        )
    if protocol in WITH_TLS:
        keystore = tls_settings(layers, listener.name).keystore
        if not keystore.is_set:
            raise ConfigError(
                "ssl.keystore.location",
                None,
                "a file",
                f"listener {listener.name} speaks {protocol} and has no certificate: set "
                f"ssl.keystore.location=FILE and ssl.keystore.type=PEM (or "
                f"{PREFIX}{listener.name.lower()}.ssl.keystore.location, for it alone), or "
                "ssl.keystore.key and ssl.keystore.certificate.chain",
            )


def _check_inter_broker(config: NodeSettings, protocols: Mapping[str, str]) -> None:
    name = config.inter_broker_listener_name
    if name is not None and name.upper() not in {each.name for each in config.broker_listeners}:
        raise ConfigError("inter.broker.listener.name", name, "the name of a broker's listener")
    protocol = config.security_inter_broker_protocol
    if protocol is None:
        return
    if name is not None:
        raise ConfigError(
            "security.inter.broker.protocol",
            protocol,
            "left out",
            "inter.broker.listener.name and security.inter.broker.protocol are two ways to say "
            "the same: leave one out",
        )
    if config.broker_listeners and protocol not in {
        protocols[each.name] for each in config.broker_listeners
    }:
        raise ConfigError(
            "security.inter.broker.protocol", protocol, "what one of the broker's listeners speaks"
        )


def _within(config: NodeSettings, kind: str, key: str) -> int:
    """A setting of groups of that kind; raises ConfigError unless it's within its own limits."""
    name = key.replace(".", "_")
    value, minimum, maximum = (
        int(getattr(config, f"group_{kind}_{which}{name}")) for which in ("", "min_", "max_")
    )
    if not minimum <= value <= maximum:
        raise ConfigError(
            f"group.{kind}.{key}",
            str(value),
            f"from group.{kind}.min.{key}={minimum} to group.{kind}.max.{key}={maximum}",
        )
    return value


def _check_times(config: NodeSettings, kind: str) -> None:
    session_ms = _within(config, kind, "session.timeout.ms")
    heartbeat_ms = _within(config, kind, "heartbeat.interval.ms")
    if heartbeat_ms >= session_ms:
        raise ConfigError(
            f"group.{kind}.heartbeat.interval.ms",
            str(heartbeat_ms),
            f"less than group.{kind}.session.timeout.ms={session_ms}",
        )
