"""A small asyncio client on kraftpy's own codec, for the command line, consumers and tests.

It stands on `kraftpy.protocol` alone and talks to any broker that speaks the Kafka protocol. The
parts, each usable by itself:

* `connection`: one socket; requests in flight by correlation id; versions as the broker offers them
* `cluster`: the brokers, who leads which partition, one connection each, retries with backoff
* `admin`: topics, partitions, configurations; `cluster_admin`: brokers, replicas, the quorum;
  `group_admin`: groups and their offsets, from outside
* `producer`: `batches`, partitioner, compression, idempotence
* `transactional_producer`: records and offsets that count together; `transactions` asks the
  coordinators, `transaction_state` knows how far it is. `transaction_admin` looks from outside
* `fetcher`: offsets by time, and records from given offsets on; `isolation`: which of them count
* `simple_consumer`: single answers from an offset, offsets before a time
* `consumer`: partitions shared with a group: `coordinator` (which broker, committed offsets),
  `group` (membership), `assignors` (who gets what), `commits` (when, in which order),
  `consumer_records` (what was fetched ahead), `reading` (positions)
* parts of partitions: `shares` and `sharing` (who gets which), `ledger` (what is read and done of
  them), `claims` (telling the group), `consumer_shares` (those of one consumer)
"""
