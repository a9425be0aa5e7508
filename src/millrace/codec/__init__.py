"""Blocks and messages to bytes and back.  Pure, and strict: bad bytes give `Corruption` or
`ProtocolError`, never a crash.  Knows nothing of sockets, files or clocks.
"""
