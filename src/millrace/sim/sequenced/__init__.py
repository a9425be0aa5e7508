"""Sequenced logs in the simulator: the real sequencers, recoveries and read streams in a world.

What a world needs of them is in `part.py`; beside it live their users, their own faults, the ledger
that checks every event, the verdict at the end, and the planted bugs.  Nodes, network, disks and
the faults that hurt all kinds of logs are those of the folder above.
"""
