-- name: unsynced_runs
-- Runs with records beyond what the plane has acknowledged, oldest first. Those that are over and acknowledged are in no
-- index that is looked at.
SELECT run.id, run.synced_seq, run.project_id, run.created_at FROM run
WHERE run.synced_seq IS NOT NULL AND run.seq > run.synced_seq
  AND (CAST(:project_id AS text) IS NULL OR run.project_id = CAST(:project_id AS text))
ORDER BY run.created_at, run.id
LIMIT :limit;

-- name: unsynced_executions
-- The same of executions kept by hand.
SELECT execution.id, execution.synced_seq, execution.project_id, execution.created_at FROM execution
WHERE execution.seq > execution.synced_seq
  AND (CAST(:project_id AS text) IS NULL OR execution.project_id = CAST(:project_id AS text))
ORDER BY execution.created_at, execution.id
LIMIT :limit;

-- name: run_synced_seq
-- How far a run is acknowledged.
SELECT run.seq, run.synced_seq FROM run WHERE run.id = :id;

-- name: execution_synced_seq
-- The same of an execution kept by hand.
SELECT execution.seq, execution.synced_seq FROM execution WHERE execution.id = :id;

-- name: replica_list
-- What is said of checkpoints one by one.
SELECT replica.checkpoint_id FROM replica WHERE replica.run_id = :run_id;

-- name: replica_reasons
-- What the plane will never take.
SELECT replica.checkpoint_id, replica.reason FROM replica WHERE replica.run_id = :run_id AND replica.reason IS NOT NULL
ORDER BY replica.seq, replica.checkpoint_id;

-- name: replica_acknowledge
-- Told once or often, before or after it was set aside: the first word stays.
INSERT INTO replica (checkpoint_id, run_id, seq, is_kept, at) VALUES (:checkpoint_id, :run_id, :seq, :is_kept, :now)
ON CONFLICT (checkpoint_id) DO NOTHING;

-- name: replica_quarantine
-- Why it can never be sent.
INSERT INTO replica (checkpoint_id, run_id, seq, is_kept, reason, at)
VALUES (:checkpoint_id, :run_id, :seq, :is_kept, :reason, :now)
ON CONFLICT (checkpoint_id) DO UPDATE SET reason = excluded.reason;

-- name: replica_forget
-- Covered by the high-water mark now. Reasons are kept.
DELETE FROM replica WHERE run_id = :id AND is_kept = :is_kept AND seq <= :seq AND reason IS NULL;

-- name: run_synced
-- Everything up to here. NULL when nothing more will come, unless the run is retried.
UPDATE run SET synced_seq =
  CASE WHEN seq = :seq AND status IN ('completed', 'failed', 'cancelled') THEN NULL ELSE :seq END
WHERE id = :id AND synced_seq < :seq;

-- name: execution_synced
-- The same of an execution kept by hand.
UPDATE execution SET synced_seq = :seq WHERE id = :id AND synced_seq < :seq;
