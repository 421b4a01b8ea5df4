"""Kafka's wire protocol: bytes to messages and back, pure functions, no I/O."""
