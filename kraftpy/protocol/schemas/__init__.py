"""Kafka's messages as tables, one module per family; `kraftpy.protocol.schema` has the grammar."""
