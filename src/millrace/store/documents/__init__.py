"""What a node keeps of its buckets on disk: documents by key and by seq, and partitions' rows.
One contract (`contract.py`), kept by LMDB here and by the simulator's disk in `sim/documents/`.
"""
