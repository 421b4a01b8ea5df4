"""Consumer groups whose coordinator assigns partitions (KIP-848)."""
