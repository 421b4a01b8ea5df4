"""A broker with TLS for tests, and what its clients need."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kraftpy.testing import Broker
from tests.certificates import Authority, Issued
from tests.processes import free_port

TIMEOUT_S = 30.0
MARKER = "marker-password-7"


class Secured(NamedTuple):
    """A broker with listeners PLAINTEXT, SSL and MUTUAL, and who may come in."""

    broker: Broker
    authority: Authority
    ssl: str
    mutual: str
    folder: Path
    alice: Issued

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def context(self, shown: Issued | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if shown is not None:
            own = self.file(f"{id(shown)}.pem", shown.key_pem + shown.certificate_pem)
            context.load_cert_chain(own)
        return context

    def connect(self, address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
        host, _, port = address.rpartition(":")
        sock = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        return context.wrap_socket(sock, server_hostname=host)


def listening(**ports: int) -> dict[str, object]:
    """Settings of a node with these listeners, all of them with TLS but PLAINTEXT."""
    controller = f"127.0.0.1:{free_port()}"
    listeners = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    protocols = [f"{name}:{'PLAINTEXT' if name == 'PLAINTEXT' else 'SSL'}" for name in ports]
    return {
        "listeners": ",".join([*listeners, f"CONTROLLER://{controller}"]),
        "listener_security_protocol_map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
        "controller_quorum_voters": f"1@{controller}",
    }


@contextmanager
def secured_broker(folder: Path) -> Iterator[Secured]:
    """One whose key is encrypted with MARKER, and that lets in at MUTUAL who begins with al."""
    authority = Authority()
    authority.write(folder / "ca.pem")
    authority.issue("CN=broker").write_pem(folder / "broker.pem", MARKER)
    ports = free_port(), free_port()
    with Broker(
        **listening(PLAINTEXT=0, SSL=ports[0], MUTUAL=ports[1]),
        ssl_keystore_type="PEM",
        ssl_keystore_location=folder / "broker.pem",
        ssl_key_password=MARKER,
        ssl_truststore_type="PEM",
        ssl_truststore_location=folder / "ca.pem",
        listener_name_mutual_ssl_client_auth="required",
        listener_name_mutual_ssl_principal_mapping_rules="RULE:^CN=(al.*)$/$1/",
    ) as broker:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        yield Secured(broker, authority, *addresses, folder, authority.issue("CN=alice"))
