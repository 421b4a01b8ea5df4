"""Sockets, frames, dispatch to handlers, and the memory that all of it may take."""
