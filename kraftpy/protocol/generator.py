"""Builds message classes and codecs from the schema tables, each on first use, and keeps them.

This is the one place in kraftpy that executes generated source. The source is made of names and
numbers from our own tables (`kraftpy.protocol.schemas`), never of data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import Any, cast

from kraftpy.protocol import schema as schemas
from kraftpy.protocol.decoding import DecoderWriter
from kraftpy.protocol.encoding import EncoderWriter
from kraftpy.protocol.error_counting import write_error_counter
from kraftpy.protocol.message import Message
from kraftpy.protocol.schema import Field, Schema

Decoder = Callable[[memoryview | bytes, int], tuple[Any, int]]
Encoder = Callable[[Any, Callable[[Any], None]], None]
SlicedDecoder = Callable[
    [memoryview | bytes, int, Callable[[str, int], None]], Generator[None, None, tuple[Any, int]]
]
SlicedEncoder = Callable[[Any, Callable[[Any], None], Counter[int]], Iterator[None]]
ErrorCounter = Callable[[Any, Counter[int]], None]


@cache
def message_class(name: str) -> type[Message]:
    """Returns the class of the message `name`; `KeyError` when there is no such message."""
    return message_classes(name)[name]


@cache
def message_classes(name: str) -> dict[str, type[Message]]:
    """Returns the classes of the message `name` and of its structs, by struct name."""
    schema = schemas.load(name)
    classes: dict[str, type[Message]] = {}
    for struct in schema.structs:
        classes[struct] = _make_class(schema, struct, classes)
        if struct != name:
            setattr(classes[name], struct, classes[struct])
    return classes


def _make_class(schema: Schema, struct: str, classes: dict[str, type[Message]]) -> type[Message]:
    """One class; its constructor is compiled when it is first called, as codecs are.

    `classes` are those of the message, once all are made.
    """
    fields = schema.structs[struct]

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        namespace: dict[str, Any] = {**classes, "EMPTY": ()}
        _execute(_init_source(fields), f"{schema.name} {struct} constructor", namespace)
        cls.__init__ = namespace["__init__"]
        cls.__init__(self, *args, **kwargs)

    contents: dict[str, Any] = {
        "__slots__": (*(field.name for field in fields), "_tags"),
        "__module__": "kraftpy.protocol.messages",
        "__qualname__": struct if struct == schema.name else f"{schema.name}.{struct}",
        "__init__": init,
    }
    if struct == schema.name and schema.api_key is not None:
        contents["API_KEY"] = schema.api_key
    cls: Any = type(struct, (Message,), contents)
    return cast("type[Message]", cls)


def _init_source(fields: tuple[Field, ...]) -> str:
    parameters = "".join(
        f"{field.name}={'EMPTY' if field.default == () else repr(field.default)}, "
        for field in fields
    )
    lines = [
        f"def __init__(self, {parameters}_tags=None):",
        *(f"  self.{field.name} = {_initial(field)}" for field in fields),
        "  self._tags = _tags",
    ]
    return "\n".join(lines)


def _initial(field: Field) -> str:
    """An expression for the attribute's first value; arrays and structs must not be shared."""
    if field.default == ():
        return f"[] if {field.name} is EMPTY else {field.name}"
    if field.is_struct and field.nullable_from is None and field.tag is None:
        return f"{field.type}() if {field.name} is None else {field.name}"
    return field.name


def check_version(name: str, version: int) -> Schema:
    """Returns the schema of `name`; `KeyError` without one, `ValueError` for an unknown version."""
    schema = schemas.load(name)
    if not schema.first_version <= version <= schema.last_version:
        known = f"{schema.first_version} to {schema.last_version}"
        raise ValueError(f"{name} has no version {version}; the schema has {known}")
    return schema


@cache
def decoder(name: str, version: int) -> Decoder:
    """Builds the decoder of one message version; errors as `check_version`."""
    decode: Decoder = _build_decoder(name, version, "decoder")
    return decode


@cache
def decoder_of_few(name: str, version: int) -> Decoder:
    """Builds the decoder of few elements of one message version; errors as `check_version`."""
    decode: Decoder = _build_decoder(name, version, "decoder of few", few=True)
    return decode


@cache
def sliced_decoder(name: str, version: int) -> SlicedDecoder:
    """Builds the decoder in slices of one message version; errors as `check_version`."""
    decode: SlicedDecoder = _build_decoder(name, version, "decoder in slices", sliced=True)
    return decode


@cache
def encoder(name: str, version: int) -> Encoder:
    """Builds the encoder of one message version; errors as `check_version`."""
    encode: Encoder = _build_encoder(name, version, "encoder")
    return encode


@cache
def sliced_encoder(name: str, version: int) -> SlicedEncoder:
    """Builds the encoder in slices of one message version; errors as `check_version`."""
    encode: SlicedEncoder = _build_encoder(name, version, "encoder in slices", sliced=True)
    return encode


def _build_decoder(name: str, version: int, what: str, **options: bool) -> Any:
    classes = message_classes(name)
    writer = DecoderWriter(check_version(name, version), version, classes, **options)
    _execute(writer.write(), f"{name} v{version} {what}", writer.namespace)
    return writer.namespace["decode"]


def _build_encoder(name: str, version: int, what: str, **options: bool) -> Any:
    classes = message_classes(name)
    writer = EncoderWriter(check_version(name, version), version, classes, **options)
    _execute(writer.write(), f"{name} v{version} {what}", writer.namespace)
    return writer.namespace["encode"]


@cache
def error_counter(name: str, version: int, parts_max: int) -> ErrorCounter | None:
    """Builds what adds up the error codes of a message: its own, and those of its parts.

    It looks at `parts_max` parts of each kind. None without a field for errors; errors as
    `check_version`.
    """
    source = write_error_counter(check_version(name, version), version, parts_max)
    if source is None:
        return None
    namespace: dict[str, Any] = {}
    _execute(source, f"{name} v{version} error counter", namespace)
    count: ErrorCounter = namespace["count"]
    return count


def _execute(source: str, what: str, namespace: dict[str, Any]) -> None:
    exec(compile(source, f"<{what}>", "exec"), namespace)  # noqa: S102 - see the module's docstring
