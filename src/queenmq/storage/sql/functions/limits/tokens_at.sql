-- What a part of a token bucket has at a moment. If the clock was set back, it is full. A timestamp plus an interval is not immutable, and PostgreSQL
-- would call this function for that instead of putting its expression in its place.
CREATE OR REPLACE FUNCTION queen.tokens_at(
    p_tokens double precision, p_rate double precision, p_burst double precision, p_refilled_at timestamptz, p_now timestamptz)
RETURNS double precision LANGUAGE sql IMMUTABLE COST 1 AS $$
    SELECT CASE WHEN p_refilled_at - p_now > interval '1 second' THEN p_burst
                ELSE least(p_burst, p_tokens + p_rate * greatest(0, date_part('epoch', p_now - p_refilled_at))) END
$$;
