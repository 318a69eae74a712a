"""What is done later. An operation is a row of `queen.operation_queue` with a kind: a push that was deferred, or a
delete queue, clear, seek, redrive or retention run that takes several steps.

This package knows the database and nothing above it. It returns what a transaction has changed; the broker, which runs
the operations, wakes long polls and updates its caches.
"""
