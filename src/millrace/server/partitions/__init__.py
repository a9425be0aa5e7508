"""The partitions that a node holds: on its disk, as a master, as a replica, and streamed to others.

Everything here runs in one thread and is told by callbacks what happened, so the simulator runs
the same code with its own network, disk and time (`surroundings.py`).  The front end that clients
talk to is in `server/documents/`.
"""
