"""Commit logs in simulated worlds: their users, their troubles, and what is true of them.

The counterpart of `sim/sequenced/`: the same nodes, disks and network, and the real cores.
"""
