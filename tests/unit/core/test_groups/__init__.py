"""Tests of the group coordinator's rules, with explicit time and no I/O."""
