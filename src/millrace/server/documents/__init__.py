"""The documents' front end: memcached's protocols on a socket, and what they ask of the node.

What commands mean is in `core/documents/`, their bytes in `codec/memcached/`.
"""
