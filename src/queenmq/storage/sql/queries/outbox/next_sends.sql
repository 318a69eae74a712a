SELECT *, extract(epoch FROM clock_timestamp() - sent_at)::float8 AS waited_s FROM queen.next_sends($1, $2, $3, $4, $5)
