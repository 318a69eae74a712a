-- The groups in partitions whose head has failed: few rows, so that pops and acks of the others write nothing here.
CREATE INDEX CONCURRENTLY partition_consumers_failing ON queen.partition_consumers (queue_id, consumer_group) WHERE attempts > 0;
