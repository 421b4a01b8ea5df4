"""A node as processes: how it starts and stops, and what its metrics endpoint shows."""
