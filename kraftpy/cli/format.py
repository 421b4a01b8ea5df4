"""Printf-like formats of `produce -f` and `consume -f`, in the letters of kcat and rpk.

A format is literal text and fields; both directions share one grammar (`FORMAT_HELP`). When
reading, a record ends at the text behind the last field, and each field at the text behind it, so a
separator may occur in the last field but not in the others. Without text behind the last field all
of the input is one record.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kraftpy.protocol.records import Record

FORMAT_HELP = """\b
Fields of a format:
  %p partition      %t topic         %o offset (both: consume only)
  %k key            %v value         %s value, as kcat has it
  %K key length     %V value length  %S value length, as kcat has it (consume only)
  %T timestamp, milliseconds since 1970
  %h headers: name=value,name=value
  %% a percent sign
  {hex} or {base64} behind %k, %v or %s: the bytes in that encoding
Escapes: \\n newline, \\t tab, \\r return, \\0 zero byte, \\xHH a byte, \\\\ backslash
"""

MAX_RECORD_SIZE_BYTES = 64 * 1024 * 1024
_MAX_TIMESTAMP_MS = 2**62  # two of them differ by no more than 64 bits hold

_TOKEN = re.compile(r"%(?P<letter>.)(?:\{(?P<encoding>\w*)\})?|\\(?P<escape>x..|.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_WRITE_LETTERS = "tpokvsKVSTh"
_READ_LETTERS = "pkvsTh"


class FormatError(ValueError):
    """A format that cannot be understood, or input that does not follow it."""


@dataclass(frozen=True, slots=True)
class Field:
    """A letter and the encoding behind it ('' for none)."""

    letter: str
    encoding: str = ""


def parse_format(text: str, letters: str) -> list[bytes | Field]:
    """A format as literals and fields, adjacent literals joined; `FormatError`."""
    tokens: list[bytes | Field] = []
    position = 0
    for match in _TOKEN.finditer(text):
        _add_literal(tokens, _bytes(text[position : match.start()]))
        position = match.end()
        letter, encoding, escape = match["letter"], match["encoding"], match["escape"]
        if escape is not None:
            _add_literal(tokens, _unescape(escape))
        elif letter == "%":
            _add_literal(tokens, b"%" + (f"{{{encoding}}}".encode() if encoding else b""))
        elif letter not in letters:
            raise FormatError(f"%{letter} is not a field here; there are %{', %'.join(letters)}")
        elif encoding is not None and (letter not in "kvs" or encoding not in ("hex", "base64")):
            raise FormatError(
                f"{{{encoding}}} does not go with %{letter}; "
                "there are {hex} and {base64} behind %k, %v and %s"
            )
        else:
            tokens.append(Field("v" if letter == "s" else letter, encoding or ""))
    rest = text[position:]
    if rest.endswith("%"):
        raise FormatError("the format ends with a single %; write %% for a percent sign")
    _add_literal(tokens, _bytes(rest))
    return tokens


def _add_literal(tokens: list[bytes | Field], literal: bytes) -> None:
    if not literal:
        return
    last = tokens[-1] if tokens else None
    if isinstance(last, bytes):
        tokens[-1] = last + literal
    else:
        tokens.append(literal)


def _bytes(text: str) -> bytes:
    """Text as it was typed, also what is not UTF-8."""
    return text.encode(errors="surrogateescape")


def _unescape(escape: str) -> bytes:
    if escape[0] == "x":
        try:
            return bytes.fromhex(escape[1:])
        except ValueError:
            raise FormatError(f"\\{escape} is not \\x and two hexadecimal digits") from None
    if escape not in _ESCAPES:
        raise FormatError(f"\\{escape} is not an escape; there are \\n \\t \\r \\0 \\xHH \\\\")
    return _ESCAPES[escape]


# -- writing

_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "hex": binascii.hexlify,
    "base64": base64.b64encode,
}


def record_formatter(text: str) -> Callable[[str, int, Record], bytes]:
    """A function (topic, partition, record) -> the bytes that `consume -f` writes for it."""
    parts = [_writer(token) for token in parse_format(text, _WRITE_LETTERS)]

    def write(topic: str, partition: int, record: Record) -> bytes:
        return b"".join([part(topic, partition, record) for part in parts])

    return write


def _writer(token: bytes | Field) -> Callable[[str, int, Record], bytes]:
    if isinstance(token, bytes):
        return lambda t, p, r: token
    encode = _ENCODERS[token.encoding]
    writers: dict[str, Callable[[str, int, Record], bytes]] = {
        "t": lambda t, p, r: t.encode(),
        "p": lambda t, p, r: b"%d" % p,
        "o": lambda t, p, r: b"%d" % r.offset,
        "k": lambda t, p, r: encode(r.key or b""),
        "v": lambda t, p, r: encode(r.value or b""),
        "K": lambda t, p, r: b"%d" % len(r.key or b""),
        "V": lambda t, p, r: b"%d" % len(r.value or b""),
        "S": lambda t, p, r: b"%d" % len(r.value or b""),
        "T": lambda t, p, r: b"%d" % r.timestamp,
        "h": lambda t, p, r: b",".join(
            name.encode() + b"=" + (value or b"") for name, value in r.headers
        ),
    }
    return writers[token.letter]


# -- reading


@dataclass(slots=True)
class InputRecord:
    """What a line of input says about a record; None where the format has no such field."""

    value: bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: list[tuple[str, bytes | None]] | None = None


class RecordReader:
    """Cuts input into records: `feed` chunks as they come, `finish` at the end of the input."""

    def __init__(self, text: str) -> None:
        tokens = parse_format(text, _READ_LETTERS)
        fields = [token for token in tokens if isinstance(token, Field)]
        if len({field.letter for field in fields}) < len(fields):
            raise FormatError("a field occurs twice in the format")
        if not any(field.letter in "kv" for field in fields):
            raise FormatError("the format has neither %k nor %v: there would be nothing to send")
        for first, second in itertools.pairwise(tokens):
            if isinstance(first, Field) and isinstance(second, Field):
                raise FormatError(
                    f"nothing separates %{first.letter} from %{second.letter} in the format"
                )
        last = tokens[-1]
        self._end = last if isinstance(last, bytes) else b""
        self._tokens = tokens[:-1] if isinstance(last, bytes) else tokens
        self._plain = self._tokens == [Field("v")]
        self._rest: list[bytes] = []  # of a record that isn't complete; joined once, when it is
        self._rest_bytes = 0
        self._rest_end = b""  # where the beginning of a record's end may be
        self._count = 0

    def feed(self, chunk: bytes) -> Iterator[InputRecord]:
        """The records that are complete with this chunk; `FormatError` names a bad one.

        The iterator must be used up before the next chunk.
        """
        if self._rest_bytes > MAX_RECORD_SIZE_BYTES:
            raise FormatError(
                f"record {self._count + 1} does not end within {MAX_RECORD_SIZE_BYTES} bytes"
            )
        if not self._end or self._end not in self._rest_end + chunk:
            self._keep(chunk)
            return
        *complete, rest = b"".join([*self._rest, chunk]).split(self._end)
        self._rest, self._rest_bytes, self._rest_end = [], 0, b""
        self._keep(rest)
        for text in complete:
            yield self._record(text)

    def _keep(self, part: bytes) -> None:
        self._rest.append(part)
        self._rest_bytes += len(part)
        if len(self._end) > 1:
            self._rest_end = (self._rest_end + part)[1 - len(self._end) :]

    def finish(self) -> Iterator[InputRecord]:
        """The last record, if the input did not end with the record separator."""
        rest = b"".join(self._rest)
        if rest:
            yield self._record(rest)

    def _record(self, text: bytes) -> InputRecord:
        self._count += 1
        if self._plain:
            return InputRecord(value=text)
        record = InputRecord()
        tokens = self._tokens
        for index, token in enumerate(tokens):
            if isinstance(token, bytes):
                if not text.startswith(token):
                    raise FormatError(
                        f"record {self._count} has no {_shown(token)} where it should be"
                    )
                text = text[len(token) :]
            elif index + 1 < len(tokens):
                separator = tokens[index + 1]
                assert isinstance(separator, bytes)
                data, found, text = text.partition(separator)
                if not found:
                    raise FormatError(
                        f"record {self._count} has no {_shown(separator)} behind its "
                        f"%{token.letter}"
                    )
                text = found + text
                self._store(record, token, data)
            else:
                self._store(record, token, text)
        return record

    def _store(self, record: InputRecord, field: Field, data: bytes) -> None:
        try:
            match field.letter:
                case "v":
                    record.value = _decode(field.encoding, data)
                case "k":
                    record.key = _decode(field.encoding, data)
                case "p":
                    record.partition = int(data)
                case "T":
                    record.timestamp_ms = int(data)
                    if abs(record.timestamp_ms) > _MAX_TIMESTAMP_MS:
                        raise ValueError("a timestamp of more than 64 bits")
                case "h":
                    record.headers = _headers(data)
        except ValueError:
            raise FormatError(
                f"record {self._count}: {_shown(data[:80])} is no %{field.letter}"
                + (f"{{{field.encoding}}}" if field.encoding else "")
            ) from None


def _shown(data: bytes) -> str:
    """Bytes of the input as a person would quote them."""
    return repr(data.decode(errors="backslashreplace"))


def _decode(encoding: str, data: bytes) -> bytes:
    if encoding == "hex":
        return binascii.unhexlify(data)
    if encoding == "base64":
        return base64.b64decode(data, validate=True)
    return data


def _headers(data: bytes) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    for pair in data.split(b",") if data else ():
        name, separator, value = pair.partition(b"=")
        if not separator:
            raise ValueError("a header without =")
        headers.append((name.decode(), value))
    return headers
