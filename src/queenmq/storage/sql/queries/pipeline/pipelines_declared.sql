-- What is declared, and what was removed.
SELECT name, kind, version, declaration, state_number, wanted FROM queen.pipelines ORDER BY name
