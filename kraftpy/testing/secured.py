"""How clients of a test get into a cluster that `kraftpy dev --secure` has started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kraftpy.client.security import Security

ADMIN = "admin"
PROXIED = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,INTERNAL:SASL_SSL,CONTROLLER:PLAINTEXT",
}
"""What nodes between whose links there are proxies speak."""


class Secured:
    """Users of a secured cluster and their files; `told` is what `kraftpy dev` says of it.

    * `ca`: the certificate that clients trust, a file
    * `users`: the files of settings by user, as librdkafka reads them; admin may do everything,
      alice nothing that no ACL allows
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.ca = Path(told["ca"])
        self.users = {user: Path(file) for user, file in told["users"].items()}

    def settings(self, user: str = ADMIN) -> dict[str, str]:
        """The settings of one user, as librdkafka names them."""
        lines = self.users[user].read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def security(self, user: str = ADMIN) -> Security:
        """The same for kraftpy's own client."""
        from kraftpy.client.security_settings import parse_security

        return parse_security(self.settings(user))
