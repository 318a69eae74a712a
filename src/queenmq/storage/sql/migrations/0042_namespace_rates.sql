-- How much may be asked for of the queues of a namespace, at each worker; null sets no limit. Servers of the version before know no limits of this kind.
ALTER TABLE queen.quotas ADD COLUMN requests_per_second integer, ADD COLUMN messages_per_second integer, ADD COLUMN long_polls integer;
