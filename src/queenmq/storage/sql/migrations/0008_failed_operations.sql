-- Failed operations are messages that were accepted and not stored: they are counted at every scrape, among all the completed ones.

CREATE INDEX operation_queue_failed ON queen.operation_queue (number) WHERE status = 'failed';
