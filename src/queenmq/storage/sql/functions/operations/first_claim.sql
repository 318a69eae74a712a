-- The state of a new operation: claimed at once by its maker, or waiting for a worker if p_claim is null.
CREATE OR REPLACE FUNCTION queen.first_claim(
    p_worker text, p_claim uuid, OUT status text, OUT worker text, OUT claim uuid, OUT claimed_at timestamptz, OUT attempts integer)
LANGUAGE sql AS $$
    SELECT CASE WHEN p_claim IS NULL THEN 'pending' ELSE 'processing' END, CASE WHEN p_claim IS NOT NULL THEN p_worker END,
           p_claim, CASE WHEN p_claim IS NOT NULL THEN clock_timestamp() END, CASE WHEN p_claim IS NULL THEN 0 ELSE 1 END
$$;
