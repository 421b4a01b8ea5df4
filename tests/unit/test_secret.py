"""A secret shows itself nowhere, and equals one with the same text."""

import copy
import traceback

import pytest

from kraftpy.core.config import kinds
from kraftpy.core.config.kinds import ConfigError, ConfigType
from kraftpy.core.config.settings import Setting, judge_value, parse_value
from kraftpy.secret import Secret

MARKER = "marker-password-7"


def test_its_text_is_only_revealed() -> None:
    secret = Secret(MARKER)
    assert secret.reveal() == MARKER
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>30}",
        repr([secret]),
    ]
    assert not [each for each in shown if MARKER in each]
    for leave in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="stays in its process"):
            leave(secret)


def test_equality_is_that_of_the_texts() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("é")}) == 2
    assert not Secret("")


def test_23_secrets_a_password_that_cant_be_used_is_not_repeated() -> None:
    definition = Setting("ssl.key.password", "", kinds.password(length_max=40), None, "", False)
    assert definition.kind.type is ConfigType.PASSWORD
    assert parse_value(definition, f" {MARKER}\n").reveal() == MARKER
    assert definition.kind.render(Secret(MARKER)) == "[hidden]"
    for bad in (MARKER + "\0", MARKER * 9, "\ud800" + MARKER):
        with pytest.raises(ConfigError) as caught:
            judge_value(definition, bad)
        told = "".join(traceback.format_exception(caught.value)) + repr(caught.value.args)
        assert MARKER not in told
        assert caught.value.value is None
