"""What stands in a certificate: its subject as Java prints it, and until when it holds.

A certificate that OpenSSL has verified, or loaded as one's own, is read by its DER as far as that
goes; nothing is verified here. The subject is `X500Principal.getName()`: RFC 2253, the last part
first, with the nine keywords of that RFC; other attributes are `OID=#hex` of their DER.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime

from kraftpy.frozen import NamedTuple
from kraftpy.tls.settings import TlsError

_BLOCK = re.compile(
    rb"-----BEGIN (?P<label>[A-Z0-9 ]{1,40})-----(?P<body>.*?)-----END (?P=label)-----", re.DOTALL
)
_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
# UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString: Java's.
_STRINGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED = frozenset(',=+<>#;"\\')


class Certificate(NamedTuple):
    """A certificate; times are seconds since 1970."""

    subject: str
    not_before_s: float
    not_after_s: float
    der: bytes


def pem_blocks(pem: bytes, label: bytes) -> list[bytes]:
    """The blocks with this label, or one that ends in it, each as PEM with markers."""
    return [
        match[0] + b"\n"
        for match in _BLOCK.finditer(pem)
        if match["label"] == label or match["label"].endswith(b" " + label)
    ]


def der_of(block: bytes) -> bytes:
    """The DER of one block of PEM."""
    match = _BLOCK.match(block)
    if match is None:
        raise TlsError("a certificate that isn't PEM")
    try:
        return base64.b64decode(b"".join(match["body"].split()), validate=True)
    except ValueError as error:
        raise TlsError(f"a certificate whose PEM is damaged: {error}") from None


def read_certificate(der: bytes) -> Certificate:
    """What stands in it. Raises TlsError."""
    try:
        outer = _Reader(der).enter(_SEQUENCE).enter(_SEQUENCE)
        if outer.peek() == _VERSION:
            outer.next()
        outer.next()  # serial number
        outer.next()  # signature's algorithm
        outer.next()  # issuer
        validity = outer.enter(_SEQUENCE)
        times = [_time(*validity.next()) for _ in range(2)]
        return Certificate(_name(outer.enter(_SEQUENCE)), times[0], times[1], der)
    except (IndexError, ValueError) as error:
        raise TlsError(f"a certificate that can't be read: {error}") from None


class _Reader:
    """Values of DER, one behind the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def __bool__(self) -> bool:
        return self._position < len(self._data)

    def peek(self) -> int:
        return self._data[self._position]

    def next(self) -> tuple[int, bytes]:
        """Tag and contents."""
        data, start = self._data, self._position
        tag, length, position = data[start], data[start + 1], start + 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("a length of DER that isn't one")
            length = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + length > len(data):
            raise ValueError("it ends too early")
        self._position = position + length
        return tag, data[position : position + length]

    def whole(self) -> tuple[int, bytes, bytes]:
        """Tag, contents, and both with the length between."""
        start = self._position
        tag, contents = self.next()
        return tag, contents, self._data[start : self._position]

    def enter(self, wanted: int) -> _Reader:
        tag, contents = self.next()
        if tag != wanted:
            raise ValueError(f"tag {tag:#x} where {wanted:#x} has to be")
        return _Reader(contents)


def _time(tag: int, contents: bytes) -> float:
    text = contents.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("a time that isn't one")
    if text == "99991231235959Z":  # RFC 5280: it never ends
        return datetime.max.replace(tzinfo=UTC).timestamp()
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _name(names: _Reader) -> str:
    relative = []
    while names:
        attributes = names.enter(_SET)
        relative.append("+".join(_attributes(attributes)))
    return ",".join(reversed(relative))


def _attributes(attributes: _Reader) -> Iterator[str]:
    while attributes:
        pair = attributes.enter(_SEQUENCE)
        tag, oid = pair.next()
        if tag != _OID:
            raise ValueError("an attribute without a type")
        dotted = _dotted(oid)
        tag, contents, whole = pair.whole()
        keyword = _KEYWORDS.get(dotted)
        if keyword is None or tag not in _STRINGS:
            yield f"{keyword or dotted}=#{whole.hex()}"
        else:
            yield f"{keyword}={_escaped(contents.decode('utf-8', 'replace'))}"


def _dotted(oid: bytes) -> str:
    numbers, number = [], 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _escaped(text: str) -> str:
    """As in RFC 2253, and in the order of Java's: also the blanks at both ends, and NUL."""
    out = "".join(
        "\\" + each if each in _ESCAPED else "\\00" if each == "\0" else each for each in text
    )
    lead = len(out) - len(out.lstrip(" \r"))
    trail = len(out) - len(out.rstrip(" \r"))
    if lead == len(out):
        trail = 0
    middle = out[lead : len(out) - trail]
    return (
        "".join("\\" + c for c in out[:lead])
        + middle
        + "".join("\\" + c for c in out[len(out) - trail :])
    )
