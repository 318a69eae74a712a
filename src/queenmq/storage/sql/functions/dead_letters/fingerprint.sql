-- What errors of one cause have in common: their first 250 characters, with an asterisk for every number, id and quoted text.
CREATE OR REPLACE FUNCTION queen.fingerprint(p_error text)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT regexp_replace(left(p_error, 250),
        '"[^"]*"|''[^'']*''|\m[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}\M|\m0x[0-9a-fA-F]+\M|\m[0-9a-f]*[0-9][0-9a-f]{7,}\M|[0-9]+', '*', 'g')
$$;
