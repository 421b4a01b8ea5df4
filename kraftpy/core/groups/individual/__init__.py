"""What a group has done of a partition out of order (seed 001, "Individual Commit").

A *claim* says: of the records with offsets first to last and hashes lo to hi, all that exist are
done. A *slice* is a range of hashes. The *stable offset* is the lowest offset that isn't claimed
for all hashes; it is the group's ordinary committed offset, the next one to read.
"""
