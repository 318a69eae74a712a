"""The HTTP front: protocol, routes, request and response schemas."""
