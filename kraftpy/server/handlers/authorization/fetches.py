"""Consumers' fetches that ask for rights: whenever they look at a partition.

So a fetch that waits asks again when it answers, and what a session has from earlier requests is
asked for anew in each of them.
"""

from __future__ import annotations

from kraftpy.core.security.acls import Operation, Resource
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.handlers.consumer_fetch import Fetch, LongFetch
from kraftpy.server.handlers.converted_fetch import ConvertedFetch
from kraftpy.server.handlers.cooperative_fetch import CooperativeFetch
from kraftpy.server.handlers.fetch import Kinds
from kraftpy.server.handlers.range_fetch import RangeFetch
from kraftpy.server.replication.fetch_sessions import FetchPartition


class _Reading(Fetch):
    __slots__ = ()

    def _name_of(self, wanted: FetchPartition) -> str:
        name = super()._name_of(wanted)
        view = self._ctx.session.view
        assert view is not None
        if not view.may(Operation.READ, Resource.TOPIC, name):
            self._broker.audit.denied(view, Operation.READ, Resource.TOPIC, name)
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return name


class _AuthorizedFetch(_Reading):
    __slots__ = ()


class _AuthorizedLongFetch(_Reading, LongFetch):
    __slots__ = ()


class _AuthorizedRangeFetch(_Reading, RangeFetch):
    __slots__ = ()


class _AuthorizedConvertedFetch(_Reading, ConvertedFetch):
    __slots__ = ()


class _AuthorizedCooperativeFetch(_Reading, CooperativeFetch):
    __slots__ = ()


AUTHORIZED = Kinds(
    _AuthorizedFetch,
    _AuthorizedLongFetch,
    _AuthorizedRangeFetch,
    _AuthorizedConvertedFetch,
    _AuthorizedCooperativeFetch,
)
