"""Compaction of logs: what is cleaned when, the process that does it, and the swap of the files."""
