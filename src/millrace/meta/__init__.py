"""The metadata repository: get, compare-and-set, watch, lease.  One contract (`contract.py`);
embedded in a node on LMDB, remote over the wire, in etcd, and in memory for the simulator.
"""
