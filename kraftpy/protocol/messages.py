"""The message classes, named after Kafka's schemas: `ProduceRequest`, `ProduceResponse`, ...

One class per message whatever the version; nested structs are attributes of it
(`ProduceRequest.TopicProduceData`), fields are Kafka's names in snake_case. A class is built from
its schema when it is first used, so importing this module costs nothing; `messages.pyi` (written by
`python -m kraftpy.protocol.stubs`) tells type checkers what the classes look like.

What a message object promises:

* Constructors take every field by keyword or in schema order, with Kafka's defaults; arrays default
  to a new empty list, a `uuid` is 16 bytes.
* A field that the encoded version does not have is left out silently, and has its default after
  decoding; the caller picks the version and knows what it can say.
* A tagged struct that was not sent is None (its fields all have their defaults).
* `records` comes out as a memoryview into the input (valid as long as that buffer is) and goes in
  as any buffer, or as a list of buffers or of objects with `len()`; the encoder passes them on.
* `_tags` keeps the tagged fields that the schema does not know (KIP-482), number -> bytes, or None.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kraftpy.protocol import generator

    try:
        cls = generator.message_class(name)
    except KeyError:
        raise AttributeError(f"Kafka has no message {name!r}") from None
    globals()[name] = cls
    return cls
