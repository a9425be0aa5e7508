"""Worlds of documents: `documents:<seed>` is a cluster with a bucket, its users, and its troubles.

Nodes run what real ones run (`server/partitions/`) on virtual disks, lines and time; change streams
cross the network as real frames.  `histories.py` and `ledger.py` know what was ever written and
check G10 and G11 at every event, `verdict.py` when the faults are over; `canaries.py` proves that
they see.
"""
