"""Reads `server.properties`: the format of `java.util.Properties`, as Kafka's own files use it.

Rules: `#` and `!` open a comment line; key and value are separated by `=`, `:` or blanks; a line
that ends in an odd number of backslashes goes on in the next one, without its leading blanks;
`\\t`, `\\n`, `\\r`, `\\f` and `\\uXXXX` are escapes, a backslash before anything else is dropped;
the last value counts of a key that comes twice. Size and number of entries are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

from kraftpy.core.config.kinds import ConfigError, shorten

FILE_LENGTH_MAX = 1 << 20
ENTRIES_MAX = 4096

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


def parse_properties(text: str) -> dict[str, str]:
    """The entries of a properties file in their order. Raises ConfigError, naming the line."""
    if len(text) > FILE_LENGTH_MAX:
        raise ConfigError(
            "(file)",
            None,
            f"at most {FILE_LENGTH_MAX} characters",
            f"the properties file is longer than {FILE_LENGTH_MAX} characters",
        )
    entries: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key_end, value_start = _split(line)
        key = _unescape(line[:key_end], number)
        if not key:
            raise ConfigError(
                f"line {number}",
                line,
                "key=value",
                f"line {number} has no key before the separator: {shorten(line)!r}; "
                "write key=value, or # in front of a comment",
            )
        entries[key] = _unescape(line[value_start:], number)
        if len(entries) > ENTRIES_MAX:
            raise ConfigError(
                f"line {number}",
                None,
                f"at most {ENTRIES_MAX} entries",
                f"line {number}: the properties file has more than {ENTRIES_MAX} entries",
            )
    return entries


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined and comments left out, each with its line number."""
    parts: list[str] = []
    start = 0
    for number, raw in enumerate(_lines(text), start=1):
        line = raw.lstrip(_BLANKS)
        if not parts:
            if not line or line[0] in "#!":
                continue
            start = number
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        parts.append(line[:-1] if goes_on else line)
        if not goes_on:
            yield start, "".join(parts)
            parts = []
    if parts:
        yield start, "".join(parts)


def _lines(text: str) -> list[str]:
    # Not splitlines(): it also splits at characters that are data in a properties file.
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _split(line: str) -> tuple[int, int]:
    """Where the key ends and where the value starts."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANKS:
        end += 2 if line[end] == "\\" else 1
    end = min(end, len(line))
    start = end
    while start < len(line) and line[start] in _BLANKS:
        start += 1
    if start < len(line) and line[start] in "=:":
        start += 1
        while start < len(line) and line[start] in _BLANKS:
            start += 1
    return end, start


def _unescape(text: str, line_number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            out.append(character)
            continue
        escaped = text[position]
        position += 1
        if escaped != "u":
            out.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = text[position : position + 4]
        position += 4
        if len(digits) < 4 or not _HEX_DIGITS.issuperset(digits):
            raise ConfigError(
                f"line {line_number}",
                text,
                "\\u and four hexadecimal digits",
                f"line {line_number}: \\u must be followed by four hexadecimal digits; "
                "write a backslash itself as \\\\",
            )
        out.append(chr(int(digits, 16)))
    return "".join(out)
