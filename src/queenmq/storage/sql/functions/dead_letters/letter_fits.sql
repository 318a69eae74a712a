-- Whether a dead letter with this error, which failed at this moment, is one of those that a redrive of a part of them is about: with a text in
-- the error (`error`, in any case), an error of one cause (`fingerprint`, see queen.fingerprint), failed from `since` until `until`, each if given.
CREATE OR REPLACE FUNCTION queen.letter_fits(p_which jsonb, p_error text, p_failed_at timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT (NOT p_which ? 'since' OR p_failed_at >= (p_which ->> 'since')::timestamptz)
       AND (NOT p_which ? 'until' OR p_failed_at <= (p_which ->> 'until')::timestamptz)
       AND (NOT p_which ? 'error' OR coalesce(strpos(lower(p_error), lower(p_which ->> 'error')) > 0, false))
       AND (NOT p_which ? 'fingerprint' OR coalesce(queen.fingerprint(p_error) = p_which ->> 'fingerprint', false))
$$;
