"""`ssl.principal.mapping.rules`: what the subject of a certificate is called.

The grammar is Kafka's (KIP-371): rules separated by commas, `DEFAULT` or
`RULE:pattern/replacement/`, with L or U behind it for lower or upper case; a slash in a rule is
written with a backslash before it. A pattern has to fit the whole subject. It is one of RE2, whose
time is linear in what a peer sends.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_RULE = re.compile(
    r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))?\s*(?:,|\Z)", re.DOTALL
)
_REFERENCE = re.compile(r"\\(.)|\$([0-9]+)", re.DOTALL)

Rule = Callable[[str], str | None]


def parse_rules(text: str) -> tuple[Rule, ...]:
    """The rules, in their order. ValueError says what is wrong with one."""
    rules: list[Rule] = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise ValueError(f"no rule: {text[position : position + 60]!r}")
        if match[1]:
            rules.append(lambda subject: subject)
        elif match[2] is not None:
            rules.append(_rule(match[2], match[3], match[4]))
        position = match.end()
    return tuple(rules)


def apply_rules(rules: tuple[Rule, ...], subject: str) -> str | None:
    """What the first rule that fits makes of it; None if none does."""
    return next((name for rule in rules if (name := rule(subject)) is not None), None)


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    # Who has no rules, and that's most, needn't load it.
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        compiled: Any = re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"{pattern!r} isn't an expression of RE2: {error}") from None

    def apply(subject: str) -> str | None:
        match = compiled.fullmatch(subject)
        if match is None:
            return None
        name = _REFERENCE.sub(lambda found: _referenced(found, match), replacement)
        return name.lower() if case == "L" else name.upper() if case == "U" else name

    return apply


def _referenced(found: re.Match[str], match: Any) -> str:
    """What stands for `\\x` or `$1` in a replacement."""
    if found[1]:
        return found[1]
    # As Java reads it: as many digits as make a group that there is. None, and it's just text.
    for length in range(len(found[2]), 0, -1):
        number = int(found[2][:length])
        if number <= len(match.groups()):
            return (match.group(number) or "") + found[2][length:]
    return found[0]
