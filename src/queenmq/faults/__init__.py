"""A cluster that is started to be harmed: servers, PostgreSQL with a standby, and the network between them.

`queen verify run --faults` runs its workloads on one. What its clients see is judged by `queenmq.verify`, which knows
nothing of this package.
"""
