-- name: is_runner
-- Lists arrive as text[].
(CAST(:runners AS text[]) IS NULL OR run.runner = ANY (CAST(:runners AS text[])));

-- name: is_named
-- Lists arrive as text[].
run.id = ANY (CAST(:run_ids AS text[]));

-- name: owner_is_listed
-- Workers the claimant knows to be dead.
run.worker_id = ANY (CAST(:dead_workers AS text[]));

-- name: run_lock
-- Roots first, ascending, then runs, ascending: see the store's lock order.
SELECT {run} FROM run WHERE run.id = :id FOR NO KEY UPDATE;

-- name: run_lock_free
-- A claim takes what is free and never waits: who waits holds up everybody behind it.
SELECT run.id FROM run WHERE {is_named} ORDER BY run.id FOR NO KEY UPDATE SKIP LOCKED;

-- name: run_lock_owned
-- Runs of a worker that ends.
SELECT run.id, run.root_id, run.status FROM run WHERE run.worker_id = :worker_id ORDER BY run.id FOR NO KEY UPDATE;

-- name: run_lock_below
-- The rest of the trees of these roots, whose own rows are locked already.
SELECT {run} FROM run WHERE run.root_id = ANY (CAST(:run_ids AS text[])) AND run.root_id <> run.id
ORDER BY run.id FOR NO KEY UPDATE;

-- name: execution_lock
-- After the run's, if there is one.
SELECT execution.id FROM execution WHERE execution.id = :id FOR NO KEY UPDATE;

-- name: checkpoint_insert
-- The columns for people are taken from `:shown`, the content without what JSONB refuses.
INSERT INTO checkpoint (id, run_id, seq, after_seq, status, content, put_at, parent_checkpoint_id, chain_name, node_id,
    node_index, step_type, state_snapshot, node_input, node_output, iteration, iteration_counters, interrupt_reason,
    interrupt_context, agent_path, created_at)
SELECT :id, :run_id, :seq, :after_seq, :status, :content, :now, part ->> 'parent_checkpoint_id', part ->> 'chain_name',
    part ->> 'node_id', CAST(part ->> 'node_index' AS bigint), part ->> 'step_type', part -> 'state_snapshot',
    part -> 'node_input', part -> 'node_output', CAST(part ->> 'iteration' AS bigint), part -> 'iteration_counters',
    part ->> 'interrupt_reason', part -> 'interrupt_context', part ->> 'agent_path',
    coalesce(CAST(:created_at AS timestamptz), to_timestamp(:now))
FROM (SELECT CAST(:shown AS jsonb) AS part) AS shown;
