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
