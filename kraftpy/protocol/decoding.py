"""Writes decoders: schema and version in, the source of `decode(b, p) -> (message, position)` out.

Rules that every generated decoder keeps, whatever the bytes are:

* It raises `DecodeError` and nothing else.
* A length is compared with the bytes that are left before it is used, a count with the bytes that
  its elements need at least. No element has size 0, so time and memory are linear in the input.
* Lengths below zero mean null, as in Kafka; null where the schema forbids it is an error.
* Tagged fields may come in any order, and the last of a repeated tag counts, as in Kafka; a known
  one must fill its size exactly. Unknown ones are kept in `_tags` (KIP-482). A struct has at most
  TAGS_MAX: the known messages have less than ten.
* `bytes` are copied out of the input, `records` are slices of it.

A decoder in slices, `decode(b, p, count)`, is a generator that returns the same and yields every
SLICE_ELEMENTS elements of an array, so that its caller may do something else in between. It calls
`count(field, n)` before it builds the elements of an array, or tagged fields: who calls it sets
limits there, by raising `DecodeError`. A decoder of few is like the first, but raises
`ManyElements` where these come to more than FEW_ELEMENTS, which costs next to nothing.

What makes them fast: neighbouring fixed-size fields, and the length or tag count behind them, are
read by one `struct` call straight into the object's slots; objects are made without `__init__`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.message import Message
from kraftpy.protocol.schema import FIXED_FORMATS, Default, Field, Schema
from kraftpy.protocol.source import ARRAY_ELEMENT, SHORT_ARRAY, CodeWriter
from kraftpy.protocol.varint import decode_uvarint, finish_uvarint

SLICE_ELEMENTS = 256
FEW_ELEMENTS = 2_000
TAGS_MAX = 100
_FEW_TAGS = 8  # for which nobody yields


class ManyElements(DecodeError):
    """A decoder of few met more than that; the bytes may be fine."""


def overrun(field: str, size: int, left: int) -> DecodeError:
    return DecodeError(f"{field} claims {size} bytes, {left} are left")


def too_many(field: str, count: int, left: int) -> DecodeError:
    return DecodeError(f"{field} claims {count} elements, {left} bytes are left")


def null_field(field: str) -> DecodeError:
    return DecodeError(f"{field} is null, which this version does not allow")


def trailing(field: str, left: int) -> DecodeError:
    return DecodeError(f"{field} ends {left} bytes before its tagged field does")


def read_tags(b: memoryview, p: int, count: int, end: int) -> tuple[dict[int, memoryview], int]:
    """Returns ({tag: content}, position) of tagged fields; `count`'s first byte has been read."""
    if count > 127:
        count, p = finish_uvarint(b, p, count)
    if count * 2 > end - p:
        raise too_many("tagged fields", count, end - p)
    if count > TAGS_MAX:
        raise DecodeError(f"{count} tagged fields, more than {TAGS_MAX}")
    tags: dict[int, memoryview] = {}
    for _ in range(count):
        tag, p = decode_uvarint(b, p)
        size, p = decode_uvarint(b, p)
        if size > end - p:
            raise overrun(f"tagged field {tag}", size, end - p)
        tags[tag] = b[p : p + size]
        p += size
    return tags, p


def read_unknown_tags(
    b: memoryview, p: int, count: int, end: int
) -> tuple[dict[int, bytes] | None, int]:
    """Like `read_tags`, with the contents copied; None instead of an empty dict."""
    tags, p = read_tags(b, p, count, end)
    return copy_tags(tags), p


def copy_tags(tags: dict[int, memoryview]) -> dict[int, bytes] | None:
    return {tag: bytes(content) for tag, content in tags.items()} or None


_RUNTIME = {
    "DecodeError": DecodeError,
    "ManyElements": ManyElements,
    "copy_tags": copy_tags,
    "finish_uvarint": finish_uvarint,
    "new": object.__new__,
    "null_field": null_field,
    "overrun": overrun,
    "read_tags": read_tags,
    "read_unknown_tags": read_unknown_tags,
    "struct_error": struct.error,
    "too_many": too_many,
    "trailing": trailing,
    "unpack_from": struct.unpack_from,
}


class DecoderWriter(CodeWriter):
    """Writes one decoder. In the source, `b` is the buffer, `p` the position, `e` the end.

    With `sliced` it writes a decoder in slices, with `few` one of few elements (those within
    tagged fields aside).
    """

    def __init__(
        self,
        schema: Schema,
        version: int,
        classes: Mapping[str, type[Message]],
        *,
        sliced: bool = False,
        few: bool = False,
    ) -> None:
        super().__init__(schema, version, classes)
        self._counts = sliced
        self._yields = sliced
        self._few = few

    def write(self) -> str:
        """Returns the source of `decode` and its helpers; `namespace` has the names they use."""
        self.namespace.update(_RUNTIME)
        name = self.schema.name
        with self.function("decode(b, p, count)" if self._counts else "decode(b, p)"):
            self.emit("if b.__class__ is not memoryview: b = memoryview(b)")
            self.emit("e = len(b)")
            if self._few:
                self.emit("few = 0")
            with self.block("try:"):
                self.emit(f"m = new(C_{name})")
                self._read_struct("m", name)
                self._flush()
                if self._yields:
                    self.emit("yield")
            what = f"{name} v{self.version}"
            with self.block("except (struct_error, IndexError):"):
                self.emit(f"raise DecodeError('{what}: the bytes end too early') from None")
            if self._few:
                self.emit("except ManyElements: raise")
            with self.block("except ValueError as x:"):
                self.emit(f"raise DecodeError(f'{what}: {{x}}') from None")
            self.emit("return m, p")
        return self.source()

    def _flush(self, target: str | None = None, fmt: str = "") -> None:
        """Reads the pending fixed-size fields, and one more into `target`, with one call."""
        reads = self._pending if target is None else [*self._pending, (target, fmt)]
        self._pending = []
        if not reads:
            return
        if len(reads) == 1 and reads[0][1] == "B":
            self.emit(f"{reads[0][0]} = b[p]; p += 1")
            return
        formats = "".join(fmt for _, fmt in reads)
        unpack = self.struct_method("unpack_from", formats)
        targets = "".join(f"{target}, " for target, _ in reads)
        self.emit(f"{targets}= {unpack}(b, p); p += {struct.calcsize('>' + formats)}")

    def _default(self, field: Field) -> str:
        if field.is_struct and field.tag is None and field.nullable_from is None:
            return f"C_{field.type}()"
        return _literal(field.default)

    def _read_struct(self, obj: str, struct_name: str) -> None:
        """Fills the fresh object in the variable `obj`."""
        regular, tagged, absent = self.split(struct_name)
        self._assign_defaults(obj, [*absent, *tagged], tags=not self.flexible or bool(tagged))
        for field in regular:
            self._read_field(f"{obj}.{field.name}", field, f"{struct_name}.{field.name}")
        if not self.flexible:
            return
        count = self.fresh("t")
        self._flush(count, "B")
        what = f"{struct_name}'s tagged fields"
        if self._counts:
            self.emit(f'if {count}: count("{what}", {count})')
        if self._few:
            with self.block(f"if {count}:"):
                self.emit(f"few += {count}")
                self.emit(f'if few > {FEW_ELEMENTS}: raise ManyElements("{what}")')
        if self._yields:
            self.emit(f"if {count} > {_FEW_TAGS}: yield")
        if tagged:
            helper = self._write_tags_helper(struct_name, tagged)
            self.emit(f"if {count}: p = {helper}({obj}, b, p, {count}, e{self._counter})")
        else:
            self.emit(f"if {count}: {obj}._tags, p = read_unknown_tags(b, p, {count}, e)")
            self.emit(f"else: {obj}._tags = None")

    def _assign_defaults(self, obj: str, fields: list[Field], *, tags: bool) -> None:
        targets: dict[str, list[str]] = {}
        for field in fields:
            targets.setdefault(self._default(field), []).append(f"{obj}.{field.name}")
        if tags:
            targets.setdefault("None", []).append(f"{obj}._tags")
        for value, names in targets.items():
            if value[0] in "[C":  # mutable: one each
                for name in names:
                    self.emit(f"{name} = {value}")
            else:
                self.emit(f"{' = '.join(names)} = {value}")

    def _write_tags_helper(self, struct_name: str, tagged: list[Field]) -> str:
        helper = self.fresh("tags")
        readers = {field.name: self.fresh("tag") for field in tagged}
        # Their functions are none that yield, and don't know the count.
        yields, self._yields = self._yields, False
        few, self._few = self._few, False
        for field in tagged:
            with self.function(f"{readers[field.name]}(b{self._counter})"):
                what = f"{struct_name}.{field.name}"
                self.emit("e = len(b); p = 0")
                self._read_field("v", field, what)
                self._flush()
                self.emit(f"if p != e: raise trailing('{what}', e - p)")
                self.emit("return v")
        with self.function(f"{helper}(m, b, p, n, e{self._counter})"):
            for field in tagged:
                if field.is_struct and not field.is_array and self.is_fixed_size(field.type):
                    self._read_tag_alone(field)
            self.emit("tags, p = read_tags(b, p, n, e)")
            for field in tagged:
                self.emit(f"v = tags.pop({field.tag}, None)")
                read = f"{readers[field.name]}(v{self._counter})"
                self.emit(f"if v is not None: m.{field.name} = {read}")
            self.emit("m._tags = copy_tags(tags)")
            self.emit("return p")
        self._yields, self._few = yields, few
        return helper

    def _read_tag_alone(self, field: Field) -> None:
        """Reads a struct of fixed size, and returns, if it is the only tagged field."""
        regular, _, absent = self.split(field.type)
        formats = "".join(FIXED_FORMATS[each.type] for each in regular) + "B"
        size = struct.calcsize(">" + formats)
        assert max(field.tag or 0, size) < 128, field
        unpack = self.struct_method("unpack_from", formats)
        targets = "".join(f"v.{each.name}, " for each in regular)
        alone = f"n == 1 and e - p >= {size + 2} and b[p] == {field.tag} and b[p + 1] == {size}"
        with self.block(f"if {alone}:"):
            self.emit(f"v = new(C_{field.type})")
            self.emit(f"{targets}t = {unpack}(b, p + 2)")
            with self.block("if not t:"):
                self._assign_defaults("v", absent, tags=True)
                self.emit(f"m.{field.name} = v; m._tags = None")
                self.emit(f"return p + {size + 2}")

    @property
    def _counter(self) -> str:
        """The last parameter or argument of helpers, if there is one."""
        return ", count" if self._counts else ""

    @contextmanager
    def _repeat(self, n: str) -> Iterator[None]:
        """A loop over the `n` elements of an array, which yields now and then if it is to."""
        if not self._yields:
            with self.block(f"for _ in range({n}):"):
                yield
            return
        i = self.fresh("i")
        with self.block(f"for {i} in range({n}):"):
            self.emit(f"if {i} & {SLICE_ELEMENTS - 1} == {SLICE_ELEMENTS - 1}: yield")
            yield

    def _read_field(self, target: str, field: Field, what: str) -> None:
        if field.is_array:
            self._read_array(target, field, what)
        elif field.type in FIXED_FORMATS:
            self._pending.append((target, FIXED_FORMATS[field.type]))
        elif field.is_struct:
            self._read_single_struct(target, field)
        else:
            self._read_sized(target, field, what)

    def _read_single_struct(self, target: str, field: Field) -> None:
        obj = self.fresh("m")
        if not field.nullable_in(self.version):
            self.emit(f"{target} = {obj} = new(C_{field.type})")
            self._read_struct(obj, field.type)
            return
        present = self.fresh("n")
        self._flush(present, "b")
        self.emit(f"if {present} < 0: {target} = None")
        with self.block("else:"):
            self.emit(f"{target} = {obj} = new(C_{field.type})")
            self._read_struct(obj, field.type)
            self._flush()

    def _read_length(self, *, wide: bool) -> str:
        """Reads a length or count into a new variable: below zero means null."""
        n = self.fresh("n")
        if self.flexible:
            self._flush(n, "B")
            self.emit(f"if {n} > 127: {n}, p = finish_uvarint(b, p, {n})")
            self.emit(f"{n} -= 1")
        else:
            self._flush(n, "i" if wide else "h")
        return n

    def _write_null(self, target: str, field: Field, what: str) -> None:
        if field.nullable_in(self.version):
            self.emit(f"else: {target} = None")
        else:
            self.emit(f"else: raise null_field('{what}')")

    def _read_sized(self, target: str, field: Field, what: str) -> None:
        """Reads a string, bytes or records."""
        n = self._read_length(wide=field.type != "string")
        convert = {"string": ".tobytes().decode()", "bytes": ".tobytes()", "records": ""}
        with self.block(f"if {n} > 0:" if field.type == "string" else f"if {n} >= 0:"):
            self.emit(f"q = p + {n}")
            self.emit(f"if q > e: raise overrun('{what}', {n}, e - p)")
            self.emit(f"{target} = b[p:q]{convert[field.type]}; p = q")
        if field.type == "string":
            self.emit(f"elif {n} == 0: {target} = ''")
        self._write_null(target, field, what)

    def _read_array(self, target: str, field: Field, what: str) -> None:
        n = self._read_length(wide=True)
        fmt = FIXED_FORMATS.get(field.type)
        if fmt:
            size = struct.calcsize(">" + fmt)
        elif field.type == "string":
            size = 1 if self.flexible else 2
        else:
            size = self.min_size(field.type)
        assert size > 0, f"{what}: an element without bytes would amplify the input"
        with self.block(f"if {n} > 0:"):
            check = f"{n} * {size}" if size > 1 else n
            self.emit(f"if {check} > e - p: raise too_many('{what}', {n}, e - p)")
            if self._counts:
                self.emit(f"count('{what}', {n})")
            if self._few:
                self.emit(f"few += {n}")
                self.emit(f"if few > {FEW_ELEMENTS}: raise ManyElements('{what}')")
            if fmt == "16s":
                self.emit(f"q = p + 16 * {n}")
                self.emit(f"{target} = [b[i:i + 16].tobytes() for i in range(p, q, 16)]; p = q")
            elif fmt:
                short = self.short_array_methods("unpack_from", fmt)
                many = f"unpack_from('>%d{fmt}' % {n}, b, p)"
                self.emit(f"{target} = list({short}[{n}](b, p) if {n} < {SHORT_ARRAY} else {many})")
                self.emit(f"p += {size} * {n}")
            elif field.type == "string":
                self._read_strings(target, n, what)
            elif self.is_fixed_size(field.type):
                self._read_fixed_structs(target, field.type, n)
            else:
                self._read_structs(target, field.type, n)
        self.emit(f"elif {n} == 0: {target} = []")
        self._write_null(target, field, what)

    def _read_strings(self, target: str, n: str, what: str) -> None:
        add = self.fresh("a")
        self.emit(f"l = []; {add} = l.append; {target} = l")
        with self._repeat(n):
            element = ARRAY_ELEMENT._replace(type="string")
            self._read_sized("s", element, what)
            self.emit(f"{add}(s)")

    def _read_structs(self, target: str, struct_name: str, n: str) -> None:
        add = self.fresh("a")
        obj = self.fresh("m")
        self.emit(f"l = []; {add} = l.append; {target} = l")
        with self._repeat(n):
            self.emit(f"{obj} = new(C_{struct_name}); {add}({obj})")
            self._read_struct(obj, struct_name)
            self._flush()

    def _read_fixed_structs(self, target: str, struct_name: str, n: str) -> None:
        """Reads the whole array with `iter_unpack`; again one by one if an element has tags."""
        regular, _, absent = self.split(struct_name)
        formats = "".join(FIXED_FORMATS[f.type] for f in regular) + "B" * self.flexible
        iterate = self.struct_method("iter_unpack", formats)
        add, obj, count = self.fresh("a"), self.fresh("m"), self.fresh("t")
        values = [self.fresh("v") for _ in regular]
        targets = "".join(f"{v}, " for v in [*values, *[count] * self.flexible])
        self.emit(f"q = p + {struct.calcsize('>' + formats)} * {n}")
        self.emit(f"l = []; {add} = l.append; {target} = l")
        slices = self.fresh("i")
        if self._yields:
            self.emit(f"{slices} = 0")
        with self.block(f"for {targets}in {iterate}(b[p:q]):"):
            if self.flexible:
                self.emit(f"if {count}: break")
            if self._yields:
                self.emit(f"{slices} += 1")
                self.emit(f"if {slices} & {SLICE_ELEMENTS - 1} == 0: yield")
            self.emit(f"{obj} = new(C_{struct_name}); {add}({obj})")
            for field, value in zip(regular, values, strict=True):
                self.emit(f"{obj}.{field.name} = {value}")
            self._assign_defaults(obj, absent, tags=True)
        if not self.flexible:
            self.emit("p = q")
            return
        self.emit("else: p = q")
        with self.block(f"if {count}:"):
            self._read_structs(target, struct_name, n)


def _literal(default: Default) -> str:
    return "[]" if default == () else repr(default)
