-- name: is_runner
-- Lists arrive as JSON arrays.
(:runners IS NULL OR run.runner IN (SELECT value FROM json_each(:runners)));

-- name: is_named
-- Lists arrive as JSON arrays.
run.id IN (SELECT value FROM json_each(:run_ids));

-- name: owner_is_listed
-- Workers the claimant knows to be dead.
run.worker_id IN (SELECT value FROM json_each(:dead_workers));

-- name: run_lock
-- The transaction has the whole database already.
SELECT {run} FROM run WHERE run.id = :id;

-- name: run_lock_skip
-- Nobody else can hold it.
SELECT {run} FROM run WHERE run.id = :id;
