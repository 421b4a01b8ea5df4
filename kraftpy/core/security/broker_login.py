"""How brokers log in at each other when nothing else is set: by the quorum's secret.

Broker 3 is `__broker_3` of SCRAM, with a password that follows from the secret which controllers
and brokers share anyway. Who has the secret may do everything, so nothing is given away. The
principal is `Broker:3`, whose type no mechanism of users makes. Rules:

* Only who is registered gets a credential: to make one takes 1.6 ms.
* Password and salt follow from the secret by one-way functions, each with words of its own: none
  says anything of the secret or of another broker's.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable

from kraftpy.core.metadata.records import ScramCredential, ScramMechanism
from kraftpy.core.security.principals import BROKER, BROKER_USER_PREFIX, Principal
from kraftpy.core.security.sasl_server import Known, Lookup
from kraftpy.protocol.sasl import scram

ITERATIONS = 4096
_NAME = re.compile(re.escape(BROKER_USER_PREFIX) + r"(0|[1-9][0-9]{0,9})", re.ASCII)
_KEPT_MAX = 1000


def broker_user(broker_id: int) -> str:
    """The name that a broker logs in under."""
    return f"{BROKER_USER_PREFIX}{broker_id}"


def broker_password(secret: bytes, broker_id: int) -> str:
    """Its password."""
    return base64.b64encode(_derived(secret, "password", broker_id)).decode()


def _derived(secret: bytes, what: str, broker_id: int) -> bytes:
    return hmac.digest(secret, f"kraftpy broker login 1: {what} of {broker_id}".encode(), "sha256")


def decoy_key(secret: bytes) -> bytes:
    """What salts for unknown users are made with: the same one on all brokers."""
    return hmac.digest(secret, b"kraftpy broker login 1: decoys", "sha256")


class BrokerLogins:
    """The credentials of brokers; `registered` says which there are."""

    def __init__(self, secret: bytes, registered: Callable[[int], bool]) -> None:
        self._secret = secret
        self._registered = registered
        self._made: dict[tuple[ScramMechanism, int], ScramCredential] = {}

    def lookup(self, mechanism: ScramMechanism, name: str) -> Known | None:
        """The broker of this name."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        broker_id = int(match[1])
        if not self._registered(broker_id):
            return None
        made = self._made.get((mechanism, broker_id))
        if made is None:
            if len(self._made) >= _KEPT_MAX:
                self._made.clear()
            made = self._made[mechanism, broker_id] = self._make(mechanism, broker_id)
        return Known(made, Principal(BROKER, str(broker_id)))

    def _make(self, mechanism: ScramMechanism, broker_id: int) -> ScramCredential:
        name = mechanism.wire_name
        salt = scram.salt_of(_derived(self._secret, f"salt for {name}", broker_id))
        password = broker_password(self._secret, broker_id)
        keys = scram.keys(name, scram.salted_password(name, password, salt, ITERATIONS))
        return ScramCredential(ITERATIONS, salt, keys.stored_key, keys.server_key)


def either(*lookups: Lookup) -> Lookup:
    """The first that somebody is found by."""

    def lookup(mechanism: ScramMechanism, name: str) -> Known | None:
        for each in lookups:
            found = each(mechanism, name)
            if found is not None:
                return found
        return None

    return lookup
