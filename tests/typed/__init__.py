"""Programs of users, which `make check` reads as strictly as mypy can and nobody runs.

What must be refused has a `type: ignore` with the error, and one that isn't needed is an error: so
a check that lets a mistake pass fails.
"""
