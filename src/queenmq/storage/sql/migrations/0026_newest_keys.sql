-- Phase: contract.
-- Keys without a generation have to visit all old versions of a row at every change (see newest_version_first), so they give way. Functions of the version before
-- needed them for ON CONFLICT. That a group has one row in a partition is from now on seen to where rows are made: queen.place_group and the
-- trigger of partitions, both under the lock of the queue's row, and the trigger of partition_consumers for everybody else.
ALTER TABLE queen.partition_lookup
    DROP CONSTRAINT partition_lookup_pkey, ADD CONSTRAINT partition_lookup_pkey PRIMARY KEY USING INDEX partition_lookup_newest;
ALTER TABLE queen.partition_consumers
    DROP CONSTRAINT partition_consumers_pkey, ADD CONSTRAINT partition_consumers_pkey PRIMARY KEY USING INDEX partition_consumers_newest;

-- Nobody is left who makes groups ready in the past without forgetting their floors: from here on they move (see ready_floors).
INSERT INTO queen.ready_fences (passed_at, pending_at, holders)
SELECT NULL, 'infinity', '{}' WHERE NOT EXISTS (SELECT 1 FROM queen.ready_fences);
