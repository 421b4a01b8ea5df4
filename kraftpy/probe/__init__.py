"""The end-to-end probe: do messages go through the cluster, how fast, and do all of them arrive?

It is a client like any other, in a process of its own, in the manner of kminion's end-to-end test.
The parts: `tracker` (what became of every message; no clock, no I/O), `spread` (which partition
lies where, so that each broker leads one), `heartbeat` (the topic), `prober` (sends, receives and
commits), `serving` (/metrics), `summary` (for people and for CI).
"""
