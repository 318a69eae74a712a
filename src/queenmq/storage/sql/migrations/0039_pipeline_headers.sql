-- Headers of rows that Spark writes into queues; null for none. Drivers of the version before stage none.
ALTER TABLE queen.pipeline_staged ADD COLUMN headers text;
ALTER TABLE queen.pipeline_promoting ADD COLUMN headers text;
