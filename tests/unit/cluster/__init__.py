"""The cluster layer without sockets."""
