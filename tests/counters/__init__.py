"""A coordinator that nobody needs: replicated counters, to show that the runtime is anybody's.

`machine` is its machine, `coordinator` its operations, and `python -m tests.counters NAME dev ...`
is kraftpy with it: each broker also answers on a socket of its own, to which `client` talks.
"""
