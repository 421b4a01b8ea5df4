"""This broker as a member of its cluster: registration, heartbeats, proposals, events."""
