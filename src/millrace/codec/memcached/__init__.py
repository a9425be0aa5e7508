"""memcached's protocols to values and back: binary, text, DCP's streams, columnar extensions.

Pure, and strict: whatever bytes arrive, they are read, waited for, or refused with the protocol's
own error.  What a command means is elsewhere (`core/documents/operations.py`).
"""
