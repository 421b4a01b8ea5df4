"""kraftpy with transactions, as long as no release serves them.

`python -m tests.transactions dev ...` is like `kraftpy dev ...`. Requests lead to the coordinator,
and its markers into the logs.
"""
