"""What a report says of a peer that was there already."""

from __future__ import annotations

import pytest

from kraftpy.protocol import messages
from kraftpy.testing.consistency import peer


def test_a_peer_is_told_by_its_features_and_apis(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = messages.ApiVersionsResponse
    response = kinds(
        api_keys=[kinds.ApiVersion(1, 4, 18), kinds.ApiVersion(0, 3, 13), kinds.ApiVersion(999, 0)],
        supported_features=[
            kinds.SupportedFeatureKey("metadata.version", 7, 27),
            kinds.SupportedFeatureKey("group.version", 0, 1),
        ],
        finalized_features=[kinds.FinalizedFeatureKey("metadata.version", 25, 25)],
    )

    async def ask(_: str) -> messages.ApiVersionsResponse:
        return response

    monkeypatch.setattr(peer, "_ask", ask)
    assert peer.describe("x:1") == {
        "peer": "software unknown, the protocol doesn't name it",
        "peer features": ("group.version 0 to 1, 0 in use, metadata.version 7 to 27, 25 in use"),
        "peer APIs": "3: PRODUCE 3 to 13, FETCH 4 to 18, 999 0 to 0",
    }


def test_a_peer_that_does_not_answer_is_unknown() -> None:
    assert peer.describe("127.0.0.1:1")["peer"].startswith("unknown: no broker answers")
