-- Where the catalog of Iceberg tables is; its tables are made by the library that uses them.
CREATE SCHEMA IF NOT EXISTS queen_iceberg
