"""Frameworks on Queen, one module each. A module needs the extra of its name and imports nothing but the client."""
