"""The public API: `connect()`, `Log`, `Reader`; async, with a sync facade.
"""
