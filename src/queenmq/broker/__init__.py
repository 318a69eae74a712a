"""One file an operation, and the batching under them."""
