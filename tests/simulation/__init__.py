"""Several brokers under one seed: the rules of kraftpy/core against faults.

`core.metadata.MetadataState` and `core.replication` run here as they run in the server, with
everything around them made up: the clock, the network, the disks, the metadata quorum, the clients.

    world       one run: configuration drawn from the seed, faults, healing, final checks
    schedule    the clock and the events
    network     delay, loss, duplication, reordering, cut links
    quorum      the committed metadata log, its active controller, sessions of brokers
    log         a replica's log: batches in memory, of which a power cut takes what wasn't synced
    replica     one partition at one broker: what the server does around core.replication
    broker      one broker: lives of its process, registration, metadata, timers
    clients     idempotent producers, consumers, members that commit offsets
    faults      what goes wrong
    invariants  what must hold after every event
    transactions          coordinators, admission, markers, and producers that write in transactions
    transactional_world   a run with those, and what must hold then
    claims                the coordinator of members that share partitions, with its two logs
    members               those who claim: of a group that shares partitions, and alone
    cooperative_world     a run with those, and what must hold then
    leases                the tables of partitions' leaders, and the coordinator that keeps them
    leasing_world         members who are dealt records, and what must hold then
    scenario    the same parts under the control of a script (scenarios/*.txt)

`python -m tests.simulation --seed N` replays a run, with `--trace` line by line.
"""
