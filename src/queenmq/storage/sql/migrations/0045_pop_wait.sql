-- How often long polls of the queue are probed, where somebody has chosen it: a list in JSON, see core/options.py. Null: as the servers are set.
ALTER TABLE queen.queues ADD COLUMN pop_wait text;
