-- How many deliveries a group finishes a second; null until it has been measured for half a minute. `rate_consumed` is what it had finished at
-- `rate_since`, from where the next rate is counted (see queen.sum_statistics).
ALTER TABLE queen.group_statistics ADD COLUMN finished_per_s double precision;
ALTER TABLE queen.group_statistics ADD COLUMN rate_since timestamptz;
ALTER TABLE queen.group_statistics ADD COLUMN rate_consumed bigint;
