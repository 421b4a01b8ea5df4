"""TLS for whoever needs it: settings by Kafka's keys, keys and certificates, contexts, watching.

A leaf: client, quorum, metrics and server use it, and it knows none of them. `settings` is what a
context is made from, `contexts` makes one, `watching` makes it anew when its files have changed;
`stores` reads PEM and PKCS12, `certificates` what stands in a certificate, `mapping` makes a name
of its subject, `failures` says why a connection failed.
"""

from __future__ import annotations
