-- Where a query of a stream engine reads and writes, by its id ($1) or its name ($2).
SELECT s.source_queue, s.sink_queue FROM queen.stream_queries s WHERE s.id = $1 OR s.name = $2
