-- How long a message waits that has failed p_times times, by the delays of queen.retry_rule.
CREATE OR REPLACE FUNCTION queen.retry_delay(p_delays_ms bigint[], p_jitter double precision, p_times integer)
RETURNS interval LANGUAGE sql VOLATILE COST 1 AS $$
    SELECT make_interval(secs => p_delays_ms[least(p_times, cardinality(p_delays_ms))] / 1000.0 * (1 - p_jitter * random()))
$$;
