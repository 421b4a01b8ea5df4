"""Grafana boards from short descriptions, and the table of metrics from the catalogue.

`python -m dashboards.generator` (`make docs`) writes them. The boards are `overview`, `topics`,
`groups`, `quorum`, `broker` and `probe`; `grafana` turns each into the JSON that Grafana imports.
The files are made from here and never by hand; a test (tests/dashboards) notices if they aren't.
"""
