"""Addresses in configuration: listeners, the quorum's voters, and plain host:port.

The forms are Kafka's: `NAME://host:port` for a listener (an empty host means every interface), and
`id@host:port` for a voter. An IPv6 address stands in brackets. Port 0 in `listeners` asks the
operating system for a free port.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import TypeVar

from kraftpy.core.config.kinds import ConfigType, Kind, int32, split_list
from kraftpy.core.quotas import address_of
from kraftpy.frozen import NamedTuple

_LISTENER = re.compile(r"([A-Za-z0-9_.-]{1,64})://(.*)", re.ASCII)
# Labels of DNS, maybe with the dot of the root behind them: what has others can't be looked up.
_HOST = re.compile(r"(?=.{1,255}\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)
_ZEROS = re.compile(r"(0x)?0+(\.(0x)?0+){0,3}", re.ASCII | re.IGNORECASE)
_ADDRESS_LIKE = re.compile(r"[0-9.]+", re.ASCII)
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,32})?", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_VOTER = re.compile(r"([0-9]{1,10})@(.*)", re.ASCII)
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_T = TypeVar("_T")


class Address(NamedTuple):
    """Where to connect to. `host` has no brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Listener(NamedTuple):
    """One entry of `listeners` or `advertised.listeners`. An empty host: every interface."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{Address(self.host, self.port)}"


class Voter(NamedTuple):
    """One voter of the metadata quorum."""

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id}@{Address(self.host, self.port)}"


def parse_address(text: str, *, any_host: bool = False, any_port: bool = False) -> Address:
    """`host:port`; `any_host` lets the host be empty, `any_port` the port be 0."""
    host, separator, port = text.strip().rpartition(":")
    if not separator or not _PORT.fullmatch(port):
        raise ValueError(text)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _IPV6.fullmatch(host):
            raise ValueError(text)
    elif not (_HOST.fullmatch(host) or (any_host and not host)):
        raise ValueError(text)
    number = int(port)
    if not (0 if any_port else 1) <= number <= 65535:
        raise ValueError(text)
    return Address(host, number)


def counts_by_host() -> Kind:
    """Comma-separated `host:number`, of addresses as they are written in short; the last counts."""
    numbers = int32(0)

    def parse_one(text: str) -> tuple[str, int]:
        host, separator, number = text.rpartition(":")
        host = host.strip()
        if not separator:
            raise ValueError(text)
        try:
            host = address_of(host)
        except ValueError:
            # What looks like an address and is none would only be looked up in vain.
            if not _HOST.fullmatch(host) or _ADDRESS_LIKE.fullmatch(host):
                raise
        return host, numbers.parse(number)

    def parse(text: str) -> tuple[tuple[str, int], ...]:
        return tuple(dict(map(parse_one, split_list(text))).items())

    def render(found: tuple[tuple[str, int], ...]) -> str:
        return ",".join(f"{host}:{number}" for host, number in found)

    allowed = "host:number, comma-separated; for example 192.0.2.1:100,host.example:200"
    return Kind(ConfigType.STRING, allowed, parse, render)


def is_every_interface(host: str) -> bool:
    """Whether it stands for all addresses of a machine: nobody can connect to it."""
    try:
        found = ip_address(host)
    except ValueError:
        return not host or _ZEROS.fullmatch(host) is not None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_unspecified


def listeners(*, advertised: bool) -> Kind:
    """Comma-separated `NAME://host:port`; each name once, each port (but 0) once."""

    def parse_one(text: str) -> Listener:
        match = _LISTENER.fullmatch(text)
        if match is None:
            raise ValueError(text)
        address = parse_address(match[2], any_host=not advertised, any_port=not advertised)
        return Listener(match[1].upper(), *address)

    def parse(text: str) -> tuple[Listener, ...]:
        found = _parse_all(text, parse_one)
        ports = [listener.port for listener in found if listener.port]
        if len({listener.name for listener in found}) < len(found):
            raise ValueError(text)
        if not advertised and len(set(ports)) < len(ports):
            raise ValueError(text)
        return found

    allowed = (
        "NAME://host:port, comma-separated, each name once, with a host that clients can reach"
        if advertised
        else "NAME://host:port, comma-separated, each name and port once; for example "
        "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    )
    return Kind(ConfigType.LIST, allowed, parse, _render_all)


def voters() -> Kind:
    """Comma-separated `id@host:port`, each id once."""

    def parse_one(text: str) -> Voter:
        match = _VOTER.fullmatch(text)
        if match is None or int(match[1]) >= 2**31:
            raise ValueError(text)
        return Voter(int(match[1]), *parse_address(match[2]))

    def parse(text: str) -> tuple[Voter, ...]:
        found = _parse_all(text, parse_one)
        if len({voter.id for voter in found}) < len(found) or len(found) not in (1, 3, 5):
            raise ValueError(text)
        return found

    allowed = (
        "id@host:port of each controller, comma-separated, one, three or five of them; for example "
        "1@10.0.0.1:9093,2@10.0.0.2:9093,3@10.0.0.3:9093"
    )
    return Kind(ConfigType.LIST, allowed, parse, _render_all)


def address() -> Kind:
    """One `host:port` to listen on, or nothing.

    An empty host is every interface, port 0 any free port.
    """

    def parse(text: str) -> Address | None:
        return parse_address(text, any_host=True, any_port=True) if text.strip() else None

    def render(value: Address | None) -> str:
        return "" if value is None else str(value)

    return Kind(ConfigType.STRING, "host:port or empty; for example 127.0.0.1:9404", parse, render)


def addresses() -> Kind:
    """Comma-separated `host:port`."""

    def parse(text: str) -> tuple[Address, ...]:
        return _parse_all(text, parse_address)

    return Kind(ConfigType.LIST, "host:port, comma-separated", parse, _render_all)


def protocol_map() -> Kind:
    """`NAME:PROTOCOL`, comma-separated; read as a tuple of (name, protocol) pairs."""

    def parse_one(text: str) -> tuple[str, str]:
        name, separator, protocol = text.partition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not separator or not name or protocol not in _PROTOCOLS:
            raise ValueError(text)
        return name, protocol

    def parse(text: str) -> tuple[tuple[str, str], ...]:
        found = _parse_all(text, parse_one)
        if len(dict(found)) < len(found):
            raise ValueError(text)
        return found

    def render(pairs: tuple[tuple[str, str], ...]) -> str:
        return ",".join(":".join(pair) for pair in pairs)

    allowed = "NAME:PROTOCOL, comma-separated, with a PROTOCOL out of " + ", ".join(_PROTOCOLS)
    return Kind(ConfigType.STRING, allowed, parse, render)


def _parse_all(text: str, parse_one: Callable[[str], _T]) -> tuple[_T, ...]:
    found = tuple(parse_one(part) for part in split_list(text))
    if not found:
        raise ValueError(text)
    return found


def _render_all(values: tuple[object, ...]) -> str:
    return ",".join(str(value) for value in values)
