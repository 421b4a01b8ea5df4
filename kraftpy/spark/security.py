"""Options of security: `kafka.security.protocol`, `kafka.sasl.*`, `kafka.ssl.*`.

They are the settings of Java's clients, as Spark's own source takes them, or librdkafka's, with
`kafka.` in front. Rules:

* What is wrong with them is told by the driver, before a task runs. Files are read where they are
  needed, on the driver and on each executor, as with `format("kafka")`.
* Passwords travel to tasks and are nowhere shown: they are in no plan, no error and no `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kraftpy.client.security import NO_SECURITY, Security, SecurityError
from kraftpy.client.security_settings import is_security, parse_security
from kraftpy.spark.positions import OptionError

PREFIX = "kafka."


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """Settings that are small enough to travel with every task, and don't show themselves."""

    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SecurityOptions:
        """Those among `options`, whose names are in lower case. Raises OptionError."""
        found = cls(
            tuple(
                (name.removeprefix(PREFIX), value)
                for name, value in sorted(options.items())
                if is_security_option(name)
            )
        )
        try:
            security = found.security()
            _ = security.ssl_context
        except SecurityError as error:
            raise OptionError(f"an option of security, {PREFIX}...: {error}") from None
        return NO_OPTIONS if security == NO_SECURITY else found

    def security(self) -> Security:
        """What a client's connections are secured by. Raises SecurityError."""
        return parse_security(dict(self.settings))


NO_OPTIONS = SecurityOptions()


def is_security_option(name: str) -> bool:
    """Whether an option, in lower case, is one of security, known or not."""
    return name.startswith(PREFIX) and is_security(name.removeprefix(PREFIX))
