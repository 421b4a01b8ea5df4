"""Jobs on Spark that load, move and check topics in bulk: `kraftpy pipeline ...`.

* `ranges`: what offsets of a topic are in a lake
* `folder`: files that are written once, durably, or not at all
* `manifests`, `lake`: a lake of Parquet files, and the versions that say which of them count
* `parquet`, `table`: from a task's Arrow batches to files of a lake, and back
* `bounds`, `door`, `session`: what a person asks for, the way to the topic, Spark
* `load`, `stream`, `rewrite`, `compaction`: the jobs that change a lake
* `target`, `parts`, `write`, `mirror`: the jobs that write to a topic; `alone`: one at a time
* `groups`: where a lake ends as the offsets of a group
* `inspector`, `audit`: what is wrong with a topic or a lake

Importing this package imports neither Spark nor Arrow.
"""
