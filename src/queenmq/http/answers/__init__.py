"""The bodies of answers to what is only read, as they stand on the wire.

The same rules as in `schemas` hold: nothing has a default, so that the document calls everything required.
"""
