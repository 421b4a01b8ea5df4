"""How brokers log in at each other when nothing else is set: by the quorum's secret.

Broker 3 is `__broker_3` of SCRAM, with a password that follows from the secret which controllers
and brokers share anyway. Who has the secret may do everything, so nothing is given away. The
principal is `Broker:3`, whose type no mechanism of users makes. What asks for the page of nodes
logs in likewise, as `__broker_page`, which is `Page:metrics` on all nodes. Rules:

* Only who is registered gets a credential: to make one takes 1.6 ms.
* The password follows from the secret by a one-way function: it says nothing of the secret or of
  another broker's. Salts needn't be secret, and follow from the name: while the quorum's secret is
  replaced there are two, and who logs in by either has seen the same salt.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable

from kraftpy.core.metadata.records import ScramCredential, ScramMechanism
from kraftpy.core.security.principals import BROKER, BROKER_USER_PREFIX, PAGE, Principal
from kraftpy.core.security.sasl_server import Known, Lookup
from kraftpy.protocol.sasl import scram

ITERATIONS = 4096
_NAME = re.compile(re.escape(BROKER_USER_PREFIX) + r"(0|[1-9][0-9]{0,9})", re.ASCII)
_KEPT_MAX = 1000
_PAGE_ID = -1

PAGE_USER = f"{BROKER_USER_PREFIX}page"
"""The name that what asks for the page logs in under: users can't have it, either."""


def broker_user(broker_id: int) -> str:
    """The name that a broker logs in under."""
    return f"{BROKER_USER_PREFIX}{broker_id}"


def broker_password(secret: bytes, broker_id: int) -> str:
    """Its password."""
    words = f"kraftpy broker login 1: password of {broker_id}"
    return base64.b64encode(hmac.digest(secret, words.encode(), "sha256")).decode()


def page_password(secret: bytes) -> str:
    """That of `PAGE_USER`."""
    return broker_password(secret, _PAGE_ID)


def decoy_key(secret: bytes) -> bytes:
    """What salts for unknown users are made with: the same one on all brokers."""
    return hmac.digest(secret, b"kraftpy broker login 1: decoys", "sha256")


class BrokerLogins:
    """The credentials of brokers; `registered` says which there are.

    `secrets` gives those of the quorum that are accepted now.
    """

    def __init__(
        self, secrets: Callable[[], tuple[bytes, ...]], registered: Callable[[int], bool]
    ) -> None:
        self._secrets = secrets
        self._registered = registered
        self._made: dict[tuple[bytes, ScramMechanism, int], ScramCredential] = {}

    def lookup(self, mechanism: ScramMechanism, name: str) -> Known | None:
        """The broker of this name."""
        if name == PAGE_USER:
            return self._known(mechanism, _PAGE_ID, Principal(PAGE, "metrics"))
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        broker_id = int(match[1])
        if not self._registered(broker_id):
            return None
        return self._known(mechanism, broker_id, Principal(BROKER, str(broker_id)))

    def _known(self, mechanism: ScramMechanism, broker_id: int, principal: Principal) -> Known:
        first, *others = (self._credential(each, mechanism, broker_id) for each in self._secrets())
        return Known(first, principal, tuple(others))

    def _credential(
        self, secret: bytes, mechanism: ScramMechanism, broker_id: int
    ) -> ScramCredential:
        made = self._made.get((secret, mechanism, broker_id))
        if made is None:
            if len(self._made) >= _KEPT_MAX:
                self._made.clear()
            made = _make(secret, mechanism, broker_id)
            self._made[secret, mechanism, broker_id] = made
        return made


def _make(secret: bytes, mechanism: ScramMechanism, broker_id: int) -> ScramCredential:
    name = mechanism.wire_name
    words = f"kraftpy broker login 1: salt for {name} of {broker_id}"
    salt = scram.salt_of(hashlib.sha256(words.encode()).digest())
    password = broker_password(secret, broker_id)
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
