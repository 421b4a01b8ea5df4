"""Jobs on Spark that load, move and check topics in bulk: `kraftpy pipeline ...`.

* `ranges`: what offsets of a topic are in a lake
* `folder`: files that are written once, durably, or not at all
* `manifests`, `lake`: a lake of Parquet files, and the versions that say which of them count
* `parquet`: from a task's Arrow batches to files of a lake

Importing this package imports neither Spark nor Arrow.
"""
