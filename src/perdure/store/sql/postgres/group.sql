-- name: group_write
-- A whole group in one statement: one round trip, and in autocommit one fsync, whatever the number of runs.
-- Arrays: one element per batch (run_ids ...), per record (record_*), per question (question_*), per delivered answer.
--
-- Every CTE reads the statement's snapshot, so whatever another session commits between the snapshot and our lock is
-- seen only through the locked row: UPDATE checks its WHERE and computes its SET on the newest version of `run`. Hence
-- everything that decides here is in that row: fence, owner, entry_n, cancel_requested, and epoch, which every answer
-- raises. A subquery on `seen` reads the snapshot's version: another epoch means an answer that the snapshot lacks.
WITH clock AS MATERIALIZED (
    SELECT extract(epoch FROM clock_timestamp())::float8 AS now
), batch AS MATERIALIZED (
    SELECT * FROM unnest(:run_ids::text[], :fences::int8[], :worker_ids::text[], :first_ns::int8[], :last_ns::int8[],
        :record_counts::int8[], :statuses::text[], :releases::bool[], :dues_in_s::float8[], :blockeds::text[],
        :errors::text[], :creates::bool[])
    AS batch (run_id, fence, worker_id, first_n, last_n, record_count, status, is_release, due_in_s, blocked, error, is_new)
), locked AS MATERIALIZED (
    -- Ascending, and before anything is written: two groups over the same runs cannot wait for each other.
    SELECT run.id FROM perdure.run WHERE run.id = ANY (:run_ids::text[]) ORDER BY run.id FOR NO KEY UPDATE
), fresh AS (
    INSERT INTO perdure.run (id, root_id, parent_id, runner, kind, version, status, fence, worker_id, seq, entry_n,
        input_digest, due_at, cancel_requested, blocked_operation, error, attempt, epoch, forked_from, forked_seq, created_at, updated_at, ended_at)
    SELECT batch.run_id, new.root_id, new.parent_id, new.runner, new.kind, new.version, coalesce(batch.status, 'running'),
        batch.fence, CASE WHEN batch.is_release THEN NULL ELSE batch.worker_id END, batch.record_count, batch.last_n,
        new.input_digest, clock.now + batch.due_in_s, FALSE, batch.blocked, batch.error, 1, 0, new.forked_from, new.forked_seq,
        clock.now, clock.now, CASE WHEN batch.status IN ('completed', 'failed', 'cancelled') THEN clock.now END
    FROM clock, batch JOIN unnest(:new_ids::text[], :new_roots::text[], :new_parents::text[], :new_runners::text[],
        :new_kinds::text[], :new_versions::text[], :new_digests::text[], :new_forked_from::text[], :new_forked_seq::int8[])
    AS new (run_id, root_id, parent_id, runner, kind, version, input_digest, forked_from, forked_seq)
        ON new.run_id = batch.run_id
    WHERE batch.is_new AND (SELECT count(*) FROM locked) >= 0
        -- A run that is being pruned while we wait for its row is still in our snapshot; one that was has a tombstone.
        AND NOT EXISTS (SELECT FROM perdure.run AS known WHERE known.id = batch.run_id)
        AND NOT EXISTS (SELECT FROM perdure.tombstone WHERE tombstone.run_id = batch.run_id)
    ORDER BY batch.run_id
    ON CONFLICT (id) DO NOTHING
    RETURNING id, seq, status
), changed AS (
    UPDATE perdure.run SET
        seq = run.seq + batch.record_count,
        entry_n = batch.last_n,
        updated_at = clock.now,
        worker_id = CASE WHEN batch.is_release THEN NULL ELSE run.worker_id END,
        blocked_operation = CASE WHEN batch.status IS NULL THEN run.blocked_operation ELSE batch.blocked END,
        error = CASE WHEN batch.status IS NULL THEN run.error ELSE batch.error END,
        -- The same decision as `driver.settle`.
        (status, due_at, ended_at) = (
            SELECT settled.status,
                CASE WHEN batch.status IS NULL THEN run.due_at
                     WHEN settled.status = batch.status THEN clock.now + batch.due_in_s END,
                CASE WHEN settled.status IN ('completed', 'failed', 'cancelled') THEN clock.now ELSE run.ended_at END
            FROM (SELECT CASE
                WHEN batch.status IS NULL THEN run.status
                WHEN run.cancel_requested AND batch.status IN ('completed', 'failed', 'cancelled', 'needs_attention')
                    THEN 'cancelled'
                WHEN run.cancel_requested AND batch.status IN ('waiting', 'retry_wait') THEN 'pending'
                WHEN batch.status = 'waiting' AND (
                    (SELECT seen.epoch FROM perdure.run AS seen WHERE seen.id = run.id) <> run.epoch
                    OR EXISTS (
                        SELECT FROM perdure.interrupt WHERE interrupt.run_id = run.id AND interrupt.status = 'answered'
                        AND interrupt.delivered_at IS NULL AND interrupt.id <> ALL (:delivered_ids::text[] || :abandoned_ids::text[])
                    )) THEN 'pending'
                ELSE batch.status END AS status) AS settled
        )
    FROM clock, batch
    WHERE run.id = batch.run_id AND NOT batch.is_new AND (SELECT count(*) FROM locked) >= 0
        -- Not `=`: the runs of a worker are many, and its index is no way to one of them.
        AND run.fence = batch.fence AND run.worker_id IS NOT DISTINCT FROM batch.worker_id
        AND run.entry_n < batch.first_n
        AND (batch.status IS NULL OR run.status NOT IN ('completed', 'failed', 'cancelled'))
    RETURNING run.id, run.seq - batch.record_count AS base, run.status
), written AS MATERIALIZED (
    SELECT id, base, status FROM changed UNION ALL SELECT id, 0, status FROM fresh
), journal AS (
    INSERT INTO perdure.record (run_id, seq, type, path, idx, kind, name, digest, recovery, attempt, outcome, data,
        wait_s, clock_s, state, at)
    SELECT written.id, written.base + said.n, said.type, said.path, said.idx, said.kind, said.name, said.digest,
        said.recovery, said.attempt,
        CASE WHEN said.is_change THEN written.status ELSE said.outcome END,
        said.data, said.wait_s, said.clock_s, said.state, clock.now
    FROM clock, written JOIN unnest(:record_runs::text[], :record_ns::int8[], :record_is_change::bool[],
        :record_types::text[], :record_paths::text[], :record_idxs::int8[], :record_kinds::text[], :record_names::text[],
        :record_digests::text[], :record_recoveries::text[], :record_attempts::int8[], :record_outcomes::text[],
        :record_datas::text[], :record_waits_s::float8[], :record_clocks_s::float8[], :record_states::text[])
    AS said (run_id, n, is_change, type, path, idx, kind, name, digest, recovery, attempt, outcome, data, wait_s, clock_s, state)
        ON said.run_id = written.id
), asked AS (
    INSERT INTO perdure.interrupt (id, run_id, path, idx, slot, reason, context, digest, bind, status, created_at, ordinal)
    SELECT question.id, written.id, question.path, question.idx, question.slot, question.reason, question.context,
        question.digest, question.bind,
        CASE WHEN question.id = ANY (:abandoned_ids::text[]) THEN 'abandoned'
             WHEN written.status IN ('completed', 'failed', 'cancelled') THEN 'withdrawn' ELSE 'pending' END, clock.now, question.ordinal
    FROM clock, written JOIN unnest(:question_runs::text[], :question_ids::text[], :question_paths::text[],
        :question_idxs::int8[], :question_slots::text[], :question_reasons::text[], :question_contexts::text[],
        :question_digests::text[], :question_binds::bool[], :question_ordinals::int8[])
    AS question (run_id, id, path, idx, slot, reason, context, digest, bind, ordinal) ON question.run_id = written.id
), delivered AS (
    UPDATE perdure.interrupt SET delivered_at = clock.now
    FROM clock, written, unnest(:delivered_runs::text[], :delivered_ids::text[]) AS answer (run_id, id)
    WHERE interrupt.id = answer.id AND interrupt.run_id = answer.run_id AND written.id = answer.run_id
        AND interrupt.status = 'answered' AND interrupt.delivered_at IS NULL
        AND interrupt.id <> ALL (:abandoned_ids::text[])
), abandoned AS (
    UPDATE perdure.interrupt SET status = 'abandoned'
    FROM written, unnest(:abandoned_runs::text[], :abandoned_ids::text[]) AS given_up (run_id, id)
    WHERE interrupt.id = given_up.id AND interrupt.run_id = given_up.run_id AND written.id = given_up.run_id
        AND interrupt.status IN ('pending', 'answered') AND interrupt.delivered_at IS NULL
), withdrawn AS (
    -- Nobody can answer a question of a run that has ended. Not `= 'pending'`: the index of all open questions is no way
    -- to those of one run.
    UPDATE perdure.interrupt SET status = 'withdrawn' FROM changed
    WHERE interrupt.run_id = changed.id AND interrupt.status NOT IN ('answered', 'withdrawn', 'abandoned')
        AND interrupt.id <> ALL (:abandoned_ids::text[])
        AND changed.status IN ('completed', 'failed', 'cancelled')
)
SELECT written.id, written.status, CASE WHEN :channel::text <> '' THEN pg_notify(:channel::text, '') END FROM written;

-- name: group_lone
-- One run, a few records, no change: the usual group of a lone run, with the least that Postgres has to plan and parse.
-- `:records` is replaced by as many rows of values as there are records. No locking clause: one row, one lock.
WITH written AS (
    UPDATE perdure.run SET seq = run.seq + :record_count::int8, entry_n = :last_n::int8,
        updated_at = extract(epoch FROM clock_timestamp())::float8
    WHERE run.id = :run_id AND run.fence = :fence::int8 AND run.worker_id = :worker_id AND run.entry_n < :first_n::int8
    RETURNING run.id, run.seq - :record_count::int8 AS base, run.updated_at
)
INSERT INTO perdure.record (run_id, seq, type, path, idx, kind, name, digest, recovery, attempt, outcome, data, wait_s,
    clock_s, state, at)
SELECT written.id, written.base + said.n, said.type, said.path, said.idx, said.kind, said.name, said.digest,
    said.recovery, said.attempt, said.outcome, said.data, said.wait_s, said.clock_s, said.state, written.updated_at
FROM written, (VALUES :records)
AS said (n, type, path, idx, kind, name, digest, recovery, attempt, outcome, data, wait_s, clock_s, state);

-- name: group_state
-- What became of batches that were not written: stored by an earlier sending of the group, or lost to somebody else.
SELECT run.id, run.fence, run.worker_id, run.entry_n, run.status FROM perdure.run WHERE run.id = ANY (:run_ids::text[]);

-- name: group_tombstones
-- Which of the runs that could not be created were pruned.
SELECT {tombstone} FROM perdure.tombstone WHERE tombstone.run_id = ANY (:run_ids::text[]);

-- name: batch_state
-- What decides whether a batch may be written; under the run's lock.
SELECT run.id, run.fence, run.worker_id, run.entry_n, run.status, run.cancel_requested FROM run WHERE run.id = :id;

-- name: batch_count
-- The entries of a batch below a root count in the run's own row, its records in the root's.
UPDATE run SET entry_n = :entry_n, seq = :seq, updated_at = :now WHERE id = :id;
