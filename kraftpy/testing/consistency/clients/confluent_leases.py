"""Members of share groups, through confluent-kafka's ShareConsumer."""

from __future__ import annotations

import logging

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

from kraftpy.testing.consistency.clients import TIMEOUT_S, Errors, Leased, UnknownError, key_of
from kraftpy.testing.consistency.clients.confluent import base

_NOTICE = 5
"""Of syslog's levels, that of a request that nobody answered in time."""


class _GivenUp(logging.Handler):
    """Whether the library gave up requests: it sends them again, and says so only in its log."""

    def __init__(self) -> None:
        super().__init__()
        self.any = False

    def emit(self, record: logging.LogRecord) -> None:
        self.any |= record.getMessage().startswith("REQTMOUT")


class _Reader:
    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        explicit = {"group.id": group, "share.acknowledgement.mode": "explicit"}
        self._given_up = _GivenUp()
        logger = logging.Logger(group)
        logger.addHandler(self._given_up)
        settings = base(bootstrap) | explicit | {"log_level": _NOTICE}
        self._consumer = ShareConsumer(settings, logger=logger)
        self._consumer.subscribe([topic])

    @property
    def gave_up(self) -> bool:
        gave_up, self._given_up.any = self._given_up.any, False
        return gave_up

    def poll(self, timeout_s: float) -> list[Leased]:
        try:
            found = self._consumer.poll(timeout_s)
        except KafkaException as error:
            raise UnknownError(str(error.args[0])) from None
        return [
            Leased(
                key_of((str(each.topic()), int(each.partition() or 0))),
                int(each.offset() or 0),
                int(each.delivery_count() or 0),
                each,
            )
            for each in found
            if each.error() is None
        ]

    def say(self, record: Leased, kind: int) -> None:
        self._consumer.acknowledge(record.raw, AcknowledgeType(kind))

    def commit(self) -> Errors:
        try:
            found = self._consumer.commit_sync(2 * TIMEOUT_S)
        except KafkaException as error:
            raise UnknownError(str(error.args[0])) from None
        return {
            key_of((place.topic, place.partition)): error.args[0].name()
            for place, error in found.items()
            if error is not None
        }

    def close(self) -> None:
        self._consumer.close()


class _ConfluentLeases:
    reader = staticmethod(_Reader)


ADAPTER = _ConfluentLeases()
