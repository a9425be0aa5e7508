"""Documents and their change streams (seed 001), pure.

A bucket's documents are spread over partitions; each has one master and some replicas.  Here are
the partition and its write queue, the two ends of a change stream, failover logs, the map of
partitions, and how they are moved.  Sockets, disks and clocks are elsewhere.
"""
