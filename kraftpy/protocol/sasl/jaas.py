"""Lines of JAAS, in which Kafka's settings have login modules with their options.

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";

The grammar is that of Kafka's `JaasConfig`: words, text in either kind of quotes with the escapes
of Java, comments of Java. Rules:

* A number has to be quoted, as there: Java would read something else.
* An option is given once. Quotes that aren't closed in their line are an error.
* Values are secrets: no error and no `repr` has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field

from kraftpy.frozen import dataclass

LENGTH_MAX = 1024 * 1024
_FLAGS = ("required", "requisite", "sufficient", "optional")

# Compiled for those who have such a line: it takes 5 ms of each node's start otherwise.
_PART = r"""(?P<blank>[\x00-\x20]+|//[^\n]*|/\*.*?\*/)
      | (?P<word>[A-Za-z_$\u0080-\U0010ffff][A-Za-z0-9_$.\u0080-\U0010ffff-]*)
      | "(?P<double>(?:[^"\\\n\r]|\\[^\n\r])*)"
      | '(?P<single>(?:[^'\\\n\r]|\\[^\n\r])*)'
      | (?P<sign>[=;])"""
_ESCAPED = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class JaasError(ValueError):
    """The text is no JAAS; says what is expected where, and no value."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One entry. `name` is the class, which says by its last word what it is."""

    name: str
    flag: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def kind(self) -> str:
        """The last word of the class: `ScramLoginModule`, whatever jar it is shaded into."""
        return self.name.rpartition(".")[2]


def parse(text: str) -> tuple[LoginModule, ...]:
    """The entries of a setting's value. Raises JaasError."""
    if len(text) > LENGTH_MAX:
        raise JaasError(f"more than {LENGTH_MAX} characters")
    tokens = _tokens(text)
    found = []
    for kind, name in tokens:
        if kind == "sign":
            raise JaasError("a login module's name is expected where there is a sign")
        found.append(_entry(name, tokens))
    return tuple(found)


def _entry(name: str, tokens: Iterator[tuple[str, str]]) -> LoginModule:
    kind, flag = next(tokens, ("", ""))
    if kind == "sign" or flag.lower() not in _FLAGS:
        raise JaasError(f"one of {', '.join(_FLAGS)} is expected behind the login module's name")
    options: dict[str, str] = {}
    for kind, key in tokens:
        if kind == "sign":
            if key == ";":
                return LoginModule(name, flag.lower(), options)
            raise JaasError("an option's name is expected in front of =")
        if next(tokens, None) != ("sign", "="):
            raise JaasError(f"= is expected behind the name of option {len(options) + 1}")
        given, value = next(tokens, ("sign", ""))
        if given == "sign":
            raise JaasError(f"option {len(options) + 1} has no value")
        if key in options:
            raise JaasError(f"option {len(options) + 1} has the name of an earlier one")
        options[key] = value
    raise JaasError("a ; is missing behind the last option")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position, token = 0, re.compile(_PART, re.VERBOSE | re.DOTALL)
    while position < len(text):
        match = token.match(text, position)
        if match is None:
            raise JaasError(
                f"what is at character {position + 1} is neither a word nor quoted text: quote it"
            )
        position = match.end()
        kind = match.lastgroup
        if kind in ("word", "sign"):
            yield kind, match[kind]
        elif kind in ("double", "single"):
            yield "quoted", _ESCAPED.sub(_escaped, match[kind])


def _escaped(match: re.Match[str]) -> str:
    found = match[1]
    if found[0] in "01234567":
        return chr(int(found, 8))
    return _LETTERS.get(found, found)
