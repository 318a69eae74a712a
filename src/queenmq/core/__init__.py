"""The domain, without any I/O."""
