"""Writes encoders: schema and version in, the source of `encode(message, append)` out.

An encoder hands the message to `append` piece by piece; joined, the pieces are the bytes. Buffers
and file slices given as `records` are passed on untouched, so nothing large is copied.

* A field that cannot be encoded (None where the version has no null, a number out of its type's
  range, a uuid that is not 16 bytes, text that UTF-8 cannot hold) is a `ValueError` with its name.
* In a response a name that may be null from a later version on is empty where it is None before
  that: a client that asked for an id in an old version named nothing either.
* A tagged field with its default value is not written (KIP-482); tags are written in order.

An encoder in slices, `encode(message, append, errors)`, is a generator that writes the same bytes
and yields behind each element of an array of structs, so that its caller may do something else in
between. Such an array may be anything with a length that can be gone through once, and is gone
through as it is written. Error codes other than 0 are counted in `errors` on the way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from kraftpy.protocol.message import Message
from kraftpy.protocol.schema import FIXED_FORMATS, ZERO_UUID, Field, Schema
from kraftpy.protocol.source import ARRAY_ELEMENT, SHORT_ARRAY, CodeWriter
from kraftpy.protocol.varint import ONE_BYTE, encode_uvarint

_INT16_MAX = 2**15 - 1


def null_field(field: str) -> ValueError:
    return ValueError(f"{field} must not be None in this version")


def bad_uuid(field: str) -> ValueError:
    return ValueError(f"{field} must be 16 bytes")


def write_tags(tags: Mapping[int, bytes], append: Callable[[bytes], None]) -> None:
    """Writes the tagged fields section."""
    append(encode_uvarint(len(tags)))
    for tag in sorted(tags):
        content = tags[tag]
        append(encode_uvarint(tag) + encode_uvarint(len(content)))
        append(content)


def encoded(encode: Callable[[Any, Callable[[bytes], None]], None], value: Any) -> bytes:
    """Returns what `encode` writes for `value`."""
    parts: list[bytes] = []
    encode(value, parts.append)
    return b"".join(parts)


def bad_field(schema: Schema, version: int, struct_name: str, message: Any) -> str | None:
    """Says which field of `message` cannot be encoded and why; None if no field stands out.

    `struct` and `len` know neither field nor message; this looks for them after the fact.
    """
    for field in schema.structs[struct_name]:
        value = getattr(message, field.name)
        what = f"{struct_name}.{field.name}"
        if not field.exists_in(version):
            continue
        if value is None:
            if field.nullable_in(version) or (field.is_struct and field.tag is not None):
                continue
            if _is_empty_before_null(schema, field):
                continue
            return str(null_field(what))
        for element in value if field.is_array else (value,):
            bad = None
            if field.type[0].isupper():
                bad = bad_field(schema, version, field.type, element)
            elif field.type in FIXED_FORMATS:
                bad = _unpackable(what, FIXED_FORMATS[field.type], element)
            elif field.type == "string" and len(element.encode()) > _INT16_MAX:
                bad = f"{what} is longer than {_INT16_MAX} bytes"
            if bad:
                return bad
    return None


def _unpackable(what: str, fmt: str, value: Any) -> str | None:
    try:
        struct.pack(">" + fmt, value)
    except struct.error as error:
        return f"{what} = {value!r}: {error}"
    return None


_RUNTIME = {
    "ONE_BYTE": ONE_BYTE,
    "bad_uuid": bad_uuid,
    "encode_uvarint": encode_uvarint,
    "encoded": encoded,
    "null_field": null_field,
    "pack": struct.pack,
    "struct_error": struct.error,
    "write_tags": write_tags,
}


class EncoderWriter(CodeWriter):
    """Writes one encoder. In the source, `m` is the message and `w` takes the pieces.

    `_pending` holds (expression, format) of the fixed-size values not written yet. With `sliced`
    it writes an encoder in slices.
    """

    def __init__(
        self,
        schema: Schema,
        version: int,
        classes: Mapping[str, type[Message]],
        *,
        sliced: bool = False,
    ) -> None:
        super().__init__(schema, version, classes)
        self._sliced = sliced

    def write(self) -> str:
        """Returns the source of `encode` and its helpers; `namespace` has the names they use."""
        self.namespace.update(_RUNTIME)
        self.namespace["blame"] = partial(bad_field, self.schema, self.version, self.schema.name)
        what = f"{self.schema.name} v{self.version}"
        with self.function("encode(m, w, errors)" if self._sliced else "encode(m, w)"):
            with self.block("try:"):
                self._write_struct("m", self.schema.name)
                self._flush()
                self.emit("yield" if self._sliced else "pass")
            with self.block("except (struct_error, TypeError) as x:"):
                self.emit(f"raise ValueError('{what}: ' + (blame(m) or str(x))) from x")
            with self.block("except ValueError as x:"):
                self.emit(f"raise ValueError(f'{what}: {{x}}') from x")
        return self.source()

    def _take(self, *more: tuple[str, str]) -> str:
        """Returns an expression for the bytes of the pending values and `more`; forgets them."""
        values = [*self._pending, *more]
        self._pending = []
        if all(value.lstrip("-").isdigit() for value, _ in values):
            formats = "".join(fmt for _, fmt in values)
            return repr(struct.pack(">" + formats, *[int(value) for value, _ in values]))
        pack = self.struct_method("pack", "".join(fmt for _, fmt in values))
        return f"{pack}({', '.join(value for value, _ in values)})"

    def _flush(self, *more: tuple[str, str]) -> None:
        if self._pending or more:
            self.emit(f"w({self._take(*more)})")

    def _write_length(self, n: str, *, wide: bool) -> None:
        """Writes the length in the variable `n` behind the pending values.

        In flexible versions `n` holds the length plus one already, and null is 0; else null is -1.
        """
        if not self.flexible:
            self._flush((n, "i" if wide else "h"))
        elif self._pending:
            pending = list(self._pending)
            short = self._take((n, "B"))
            self._pending = pending
            long = f"{self._take()} + encode_uvarint({n})"
            self.emit(f"w({short} if {n} < 128 else {long})")
        else:
            self.emit(f"w(ONE_BYTE[{n}] if {n} < 128 else encode_uvarint({n}))")

    def _write_struct(self, obj: str, struct_name: str) -> None:
        regular, tagged, _ = self.split(struct_name)
        for field in regular:
            if self._sliced and field.name == "error_code":
                self.emit(f"if {obj}.error_code: errors[{obj}.error_code] += 1")
            self._write_field(f"{obj}.{field.name}", field, f"{struct_name}.{field.name}")
        if not self.flexible:
            return
        conditions = [f"{obj}._tags is None", *(_is_default(obj, field) for field in tagged)]
        pending = list(self._pending)
        with self.block(f"if {' and '.join(conditions)}:"):
            self._flush(("0", "B"))
        self._pending = pending
        with self.block("else:"):
            self._flush()
            if tagged:
                self.emit(f"{self._write_tags_helper(struct_name, tagged)}({obj}, w)")
            else:
                self.emit(f"write_tags({obj}._tags, w)")

    def _write_tags_helper(self, struct_name: str, tagged: list[Field]) -> str:
        helper = self.fresh("tags")
        writers = {field.name: self.fresh("tag") for field in tagged}
        sliced, self._sliced = self._sliced, False  # their functions are none that yield
        for field in tagged:
            with self.function(f"{writers[field.name]}(v, w)"):
                self._write_field("v", field, f"{struct_name}.{field.name}")
                self._flush()
        with self.function(f"{helper}(m, w)"):
            for field in tagged:
                if field.is_struct and not field.is_array and self.is_fixed_size(field.type):
                    self._write_tag_alone(field, tagged)
            self.emit("tags = {**m._tags} if m._tags else {}")
            for field in tagged:
                test = f"m.{field.name} == C_{field.type}()" if field.is_struct else "False"
                with self.block(f"if not ({_is_default('m', field)} or {test}):"):
                    self.emit(f"tags[{field.tag}] = encoded({writers[field.name]}, m.{field.name})")
            self.emit("write_tags(tags, w)")
        self._sliced = sliced
        return helper

    def _write_tag_alone(self, field: Field, tagged: list[Field]) -> None:
        """Writes a struct of numbers, and returns, if it is the only tagged field."""
        regular, _, _ = self.split(field.type)
        if any(each.type == "uuid" for each in regular):
            return
        formats = "".join(FIXED_FORMATS[each.type] for each in regular) + "B"
        size = struct.calcsize(">" + formats)
        assert max(field.tag or 0, size) < 128, field
        others = (_is_default("m", each) for each in tagged if each is not field)
        is_default = " and ".join(_is_default("v", each) for each in regular)
        pack = self.struct_method("pack", "BBB" + formats)
        values = "".join(f"v.{each.name}, " for each in regular)
        self.emit(f"v = m.{field.name}")
        alone = ["m._tags is None", *others, "v is not None", "v._tags is None"]
        with self.block(f"if {' and '.join(alone)} and not ({is_default}):"):
            self.emit(f"w({pack}(1, {field.tag}, {size}, {values}0))")
            self.emit("return")

    def _write_field(self, value: str, field: Field, what: str) -> None:
        if field.is_array:
            self._write_array(value, field, what)
        elif field.type in FIXED_FORMATS:
            if field.type == "uuid":
                self.emit(f"if len({value}) != 16: raise bad_uuid('{what}')")
            self._pending.append((value, FIXED_FORMATS[field.type]))
        elif field.is_struct:
            self._write_single_struct(value, field, what)
        else:
            self._write_sized(value, field, what)

    def _write_single_struct(self, value: str, field: Field, what: str) -> None:
        obj = self.fresh("m")
        self.emit(f"{obj} = {value}")
        if not field.nullable_in(self.version):
            self.emit(f"if {obj} is None: raise null_field('{what}')")
            self._write_struct(obj, field.type)
            return
        pending = list(self._pending)
        with self.block(f"if {obj} is None:"):
            self._flush(("-1", "b"))
        self._pending = pending
        with self.block("else:"):
            self._pending.append(("1", "b"))
            self._write_struct(obj, field.type)
            self._flush()

    def _write_null(self, v: str, field: Field, what: str, *, wide: bool) -> None:
        """Writes the null branch for the value in the variable `v`."""
        if not field.nullable_in(self.version):
            if not _is_empty_before_null(self.schema, field):
                self.emit(f"if {v} is None: raise null_field('{what}')")
            return
        pending = list(self._pending)
        with self.block(f"if {v} is None:"):
            self._flush(("0", "B") if self.flexible else ("-1", "i" if wide else "h"))
        self._pending = pending

    def _write_sized(self, value: str, field: Field, what: str) -> None:
        """Writes a string, bytes or records."""
        v, n = self.fresh("v"), self.fresh("n")
        wide = field.type != "string"
        size = f"len({v})"
        if field.type == "records":
            size = f"(len({v}) if {v}.__class__ is not list else sum(map(len, {v})))"
        self.emit(f"{v} = {value}")
        self._write_null(v, field, what, wide=wide)
        with self.block("else:") if field.nullable_in(self.version) else nullcontext():
            if field.type == "string":
                or_empty = " or ''" if _is_empty_before_null(self.schema, field) else ""
                self.emit(f"{v} = ({v}{or_empty}).encode()")
            self.emit(f"{n} = {size}{' + 1' if self.flexible else ''}")
            self._write_length(n, wide=wide)
            if field.type == "records":
                self.emit(f"if {v}.__class__ is list:")
                self.emit(f" for x in {v}: w(x)")
                self.emit(f"else: w({v})")
            else:
                self.emit(f"w({v})")

    def _write_array(self, value: str, field: Field, what: str) -> None:
        v, n = self.fresh("v"), self.fresh("n")
        self.emit(f"{v} = {value}")
        self._write_null(v, field, what, wide=True)
        with self.block("else:") if field.nullable_in(self.version) else nullcontext():
            self.emit(f"{n} = len({v}){' + 1' if self.flexible else ''}")
            self._write_length(n, wide=True)
            self._write_elements(v, field, what)

    def _write_elements(self, v: str, field: Field, what: str) -> None:
        fmt = FIXED_FORMATS.get(field.type)
        if fmt and fmt != "16s":
            short = self.short_array_methods("pack", fmt)
            many = f"pack('>%d{fmt}' % len({v}), *{v})"
            self.emit(f"w({short}[len({v})](*{v}) if len({v}) < {SHORT_ARRAY} else {many})")
            return
        y = self.fresh("y")
        with self.block(f"for {y} in {v}:"):
            if field.type[0].isupper():
                self._write_struct(y, field.type)
            else:
                self._write_field(y, ARRAY_ELEMENT._replace(type=field.type), what)
            self._flush()
            if self._sliced and field.type[0].isupper():
                self.emit("yield")


def _is_empty_before_null(schema: Schema, field: Field) -> bool:
    """Whether None is written as "" in versions in which the field can't be null yet."""
    return schema.kind == "response" and field.nullable_from is not None and field.type == "string"


def _is_default(obj: str, field: Field) -> str:
    """An expression: the tagged `field` has its default and is left out.

    A struct that is not None is written anyway unless all its fields have their defaults; the
    helper that writes the tags looks at that.
    """
    value = f"{obj}.{field.name}"
    if field.default is None:
        return f"{value} is None"
    if field.type == "uuid":
        return f"{value} == {ZERO_UUID!r}"
    if field.default == () or field.default in ("", b"", 0):
        return f"not {value}"
    return f"{value} == {field.default!r}"
