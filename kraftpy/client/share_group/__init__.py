"""Members of share groups (KIP-932): `consumer` is what programs use.

* `membership`: heartbeats with the group's coordinator, and what it assigns
* `session`: what is asked of one leader, in the session that this member has with it
* `fetching`: the sessions with all leaders; what was leased and isn't handed out yet
* `acknowledgements`: what is said of records, until it is known what became of that
* `leased`: the records that an answer leases, and for how long
"""
