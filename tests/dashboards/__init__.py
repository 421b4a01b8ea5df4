"""Boards and rules of dashboards/ against a real Prometheus that reads a real cluster."""
