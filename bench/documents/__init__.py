"""What documents cost: keys and values beside memcached, change streams beside the loopback, and
snapshots of the write queue.  `run.py` begins here; `report.py` tells what was found."""
