"""What a node keeps on disk: blocks, the copyset index beside them, fences and trim points.
One contract (`contract.py`), kept by LMDB here and by the simulator's disk in `sim/`.
"""
