"""Reading a sequenced log, whose blocks lie scattered over the nodes of a nodeset.

One idea in each module: the order and the buffer, which gap a missing position is, who is known to
be down, who is slow.  What a node sends lives in `core/send_streams.py` and `core/shipping.py`.
"""
