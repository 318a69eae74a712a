-- queen.promote, and for an epoch that was committed before whether it is the same one: a checkpoint that was restored from an older copy, or
-- another write of the same name, comes with other rows under a number that is taken.
-- p_made_of is a digest of what the sources gave, null if it is not known, and decides if both know theirs, because the rows of one
-- batch need not be the same twice (random numbers, sums of floats); else the number of rows and p_checksum, a sum over them, do. A commit of an
-- older version has only the number. Without rows there is nothing to lose.
-- `differs`: nothing was done. `newest`: nothing was done, because this one was committed last, and it is a later epoch, or one that does not
-- come right before: Spark commits every epoch, so that the ones between were here once, before the database was restored from an older copy.
-- With p_strict false what differs is left out, as a repetition.
-- `unfinished`: it is decided, now or before, and queen.promote_step has to move rows.
-- Locks: as queen.promote.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.promote_once(
    p_sink text, p_epoch bigint, p_attempts bigint[], p_rows bigint, p_made_of text, p_checksum bigint, p_strict boolean,
    p_most bigint DEFAULT NULL, OUT written bigint, OUT duplicates bigint, OUT differs boolean, OUT newest bigint, OUT committed_at timestamptz,
    OUT unfinished boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_fresh boolean;
    v_commit queen.pipeline_commits;
BEGIN
    written := 0;
    duplicates := 0;
    differs := false;
    unfinished := false;
    SELECT * INTO v_commit FROM queen.pipeline_commits c WHERE c.sink = p_sink ORDER BY c.epoch DESC LIMIT 1;
    IF p_strict AND (
        v_commit.epoch > p_epoch AND p_rows > 0 AND NOT EXISTS (
            SELECT 1 FROM queen.pipeline_commits c WHERE c.sink = p_sink AND c.epoch = p_epoch)
        -- Older versions did not say what an epoch was made of, and nobody knows how they counted.
        OR v_commit.epoch < p_epoch - 1 AND v_commit.made_of IS NOT NULL AND p_made_of IS NOT NULL
    ) THEN
        newest := v_commit.epoch;
        RETURN;
    END IF;

    SELECT p.fresh, p.written, p.duplicates INTO v_fresh, written, duplicates
    FROM queen.promote(p_sink, p_epoch, p_attempts, p_rows, p_most) p;
    IF v_fresh THEN
        UPDATE queen.pipeline_commits c SET made_of = p_made_of, checksum = p_checksum
        WHERE c.sink = p_sink AND c.epoch = p_epoch
        RETURNING c.promotion IS NOT NULL INTO unfinished;
        RETURN;
    END IF;
    SELECT * INTO v_commit FROM queen.pipeline_commits c WHERE c.sink = p_sink AND c.epoch = p_epoch;
    committed_at := v_commit.committed_at;
    unfinished := v_commit.promotion IS NOT NULL;
    differs := p_strict AND p_rows > 0 AND CASE
        WHEN v_commit.made_of IS NOT NULL AND p_made_of IS NOT NULL THEN v_commit.made_of <> p_made_of
        ELSE v_commit.rows + v_commit.duplicates <> p_rows OR coalesce(v_commit.checksum, p_checksum) <> p_checksum END;
END $$;
