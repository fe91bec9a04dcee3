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

-- name: run_lock_free
-- Nobody else can hold them.
SELECT run.id FROM run WHERE {is_named} ORDER BY run.id;

-- name: run_lock_owned
-- Runs of a worker that ends.
SELECT run.id, run.root_id, run.status FROM run WHERE run.worker_id = :worker_id ORDER BY run.id;

-- name: run_lock_below
-- The rest of the trees of these roots.
SELECT {run} FROM run WHERE run.root_id IN (SELECT value FROM json_each(:run_ids)) AND run.root_id <> run.id ORDER BY run.id;

-- name: execution_lock
-- The transaction has the whole database already.
SELECT execution.id FROM execution WHERE execution.id = :id;

-- name: checkpoint_insert
-- The columns for people follow from the content.
INSERT INTO checkpoint (id, run_id, seq, after_seq, status, content, put_at)
VALUES (:id, :run_id, :seq, :after_seq, :status, :content, :now);
