"""The only owner of data files and of fsync: segments, indexes, recovery, checkpoints."""
