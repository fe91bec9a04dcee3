-- name: tombstone_insert
-- Of a run about to be deleted.
INSERT INTO tombstone (run_id, runner, input_digest, status, ended_at, pruned_at)
SELECT run.id, run.runner, run.input_digest, run.status, run.ended_at, :now FROM run WHERE run.id = :run_id;

-- name: tombstone_get
-- What is left of a pruned run.
SELECT {tombstone} FROM tombstone WHERE tombstone.run_id = :run_id;

-- name: prune_candidates
-- Roots that are over and old enough, oldest first. The page goes on after a place: what stays is passed over once.
-- Whatever ended before the cutoff began before it, which is the range of the index by age. A run that is not over has
-- no end; to ask for its status would only lead to the other index, and to sorting.
SELECT run.id, run.created_at, run.seq FROM run
WHERE run.created_at <= :cutoff AND (run.created_at, run.id) > (:after_at, :after_id)
  AND run.root_id = run.id AND run.ended_at <= :cutoff
  AND (run.status <> 'failed' OR :has_failed)
  AND NOT EXISTS (SELECT 1 FROM run AS below
                  WHERE below.root_id = run.id AND below.root_id <> below.id
                    AND (below.ended_at IS NULL OR below.ended_at > :cutoff))
ORDER BY run.created_at, run.id
LIMIT :limit;

-- name: execution_is_over
-- Old enough, waiting for nobody, and not a run, whose own end decides.
(execution.updated_at <= :cutoff AND execution.status <> 'interrupted'
 AND (execution.status <> 'failed' OR :has_failed)
 AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = execution.id)
 AND NOT EXISTS (SELECT 1 FROM pending_interrupt
                 WHERE pending_interrupt.run_id = execution.id AND pending_interrupt.status = 'pending'));

-- name: prune_execution_candidates
-- Executions kept by hand, oldest first.
SELECT execution.id, execution.updated_at, execution.seq FROM execution
WHERE (execution.updated_at, execution.id) > (:after_at, :after_id) AND {execution_is_over}
ORDER BY execution.updated_at, execution.id
LIMIT :limit;

-- name: prune_execution_check
-- The same once more, under its lock.
SELECT 1 FROM execution WHERE execution.id = :id AND {execution_is_over};

-- name: run_delete
-- The last of a run's rows.
DELETE FROM run WHERE id = :run_id;

-- name: interrupt_delete
-- Its questions.
DELETE FROM interrupt WHERE run_id = :run_id;

-- name: checkpoint_delete
-- What was put by hand.
DELETE FROM checkpoint WHERE run_id = :run_id;

-- name: write_delete
-- What steps wrote.
DELETE FROM checkpoint_write WHERE run_id = :run_id;

-- name: pending_delete
-- Questions put by hand.
DELETE FROM pending_interrupt WHERE run_id = :run_id;

-- name: idempotent_delete
-- Results under keys.
DELETE FROM idempotent WHERE run_id = :run_id;

-- name: replica_delete
-- What the plane has said of it.
DELETE FROM replica WHERE run_id = :run_id;

-- name: execution_delete
-- The last of the rows kept by hand.
DELETE FROM execution WHERE id = :run_id;

-- name: tombstone_delete
-- Who deletes a run wants nothing left of it.
DELETE FROM tombstone WHERE run_id = :run_id;
