"""One module per API family; each notes its handlers with `registry.handles` when imported.

Which versions are answered is in `kraftpy.protocol.api`.
"""
