-- name: run_get
-- One run.
SELECT {run} FROM run WHERE run.id = :id;

-- name: run_list
-- Newest first; the page goes on after a run, not at an offset, so that new runs do not shift it.
SELECT {run} FROM run
WHERE (CAST(:status AS text) IS NULL OR run.status = CAST(:status AS text))
  AND (CAST(:runner AS text) IS NULL OR run.runner = CAST(:runner AS text))
  AND (CAST(:after AS text) IS NULL
       OR (run.created_at, run.id) < (SELECT prior.created_at, prior.id FROM run AS prior WHERE prior.id = CAST(:after AS text)))
ORDER BY run.created_at DESC, run.id DESC
LIMIT :limit;

-- name: run_insert
-- A new run, unless one of this id was pruned. Its number of records is known at once.
INSERT INTO run (id, root_id, parent_id, runner, kind, version, status, fence, worker_id, seq, entry_n, input_digest,
                 cancel_requested, attempt, epoch, forked_from, forked_seq, created_at, updated_at)
SELECT :id, :root_id, :parent_id, :runner, :kind, :version, :status, :fence, :worker_id, :seq, :entry_n, :input_digest,
       FALSE, 1, 0, :forked_from, :forked_seq, :now, :now
WHERE NOT EXISTS (SELECT 1 FROM tombstone WHERE tombstone.run_id = :id);

-- name: seq_take
-- Numbers for records, from the root, so that one order covers the whole tree. Returns the last one.
UPDATE run SET seq = seq + :count WHERE id = :root_id RETURNING seq;

-- name: seq_take_one_each
-- The same for many roots, a number each.
UPDATE run SET seq = seq + 1 WHERE {is_named} RETURNING id, seq;

-- name: seq_note
-- A run below a root remembers its own last number.
UPDATE run SET seq = :seq WHERE id = :id;

-- name: owner_is_gone
-- Nobody lives who may write this run.
(run.worker_id IS NULL
 OR {owner_is_listed}
 OR NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = run.worker_id AND worker.ended_at IS NULL));

-- name: has_news
-- Something from outside has not entered the run yet.
(run.cancel_requested
 OR EXISTS (SELECT 1 FROM interrupt
            WHERE interrupt.run_id = run.id AND interrupt.status = 'answered' AND interrupt.delivered_at IS NULL));

-- name: claimable
-- What a worker may take. A run named by its claimant is also taken out of its sleep by news.
(run.status IN ('queued', 'pending', 'running')
 OR (run.status IN ('waiting', 'retry_wait') AND run.due_at <= :now)
 OR (:is_naming AND run.status IN ('waiting', 'retry_wait') AND {has_news}))
AND {owner_is_gone};

-- name: run_candidates
-- Oldest first, without locks. Two arms, so that each is an index range: runs asleep may be very many.
SELECT run.id, run.created_at FROM run
WHERE run.status IN ('queued', 'pending', 'running') AND {owner_is_gone} AND {is_runner}
UNION ALL
SELECT run.id, run.created_at FROM run
WHERE run.status IN ('waiting', 'retry_wait') AND run.due_at <= :now AND {owner_is_gone} AND {is_runner}
ORDER BY 2, 1
LIMIT :limit;

-- name: run_candidates_named
-- The same among runs the claimant names.
SELECT run.id, run.created_at FROM run
WHERE {is_named} AND {claimable} AND {is_runner}
ORDER BY 2, 1
LIMIT :limit;

-- name: run_take
-- Under the runs' locks the condition is checked again. A new claim counts its entries from 1.
UPDATE run SET fence = fence + 1, worker_id = :worker_id, status = 'running', entry_n = 0, due_at = NULL, updated_at = :now
WHERE {is_named} AND {claimable}
RETURNING id, root_id, runner, fence;

-- name: run_due_in
-- Seconds until something can be claimed.
SELECT CASE
  WHEN EXISTS (SELECT 1 FROM run WHERE run.status IN ('queued', 'pending', 'running') AND {owner_is_gone} AND {is_runner})
  THEN 0.0
  ELSE (SELECT min(run.due_at) - :now FROM run
        WHERE run.status IN ('waiting', 'retry_wait') AND run.due_at IS NOT NULL AND {owner_is_gone} AND {is_runner})
END;

-- name: run_running_count
-- Runs that somebody else runs now.
SELECT count(*) FROM run
WHERE run.status = 'running' AND {is_runner}
  AND (CAST(:worker_id AS text) IS NULL OR run.worker_id <> CAST(:worker_id AS text));

-- name: run_is_orphan
-- Whether nobody owns the run.
SELECT 1 FROM run WHERE run.id = :id AND {owner_is_gone};

-- name: run_answered
-- Law 4: an answer makes the run runnable in the same transaction.
UPDATE run SET epoch = epoch + 1, updated_at = :now,
  due_at = CASE WHEN status = 'waiting' THEN NULL ELSE due_at END,
  status = CASE WHEN status = 'waiting' THEN 'pending' ELSE status END
WHERE id = :id;

-- name: run_cancel
-- An owned run is marked; its owner writes the end.
UPDATE run SET cancel_requested = TRUE, updated_at = :now WHERE id = :id;

-- name: run_cancelled
-- Nobody's run ends here.
UPDATE run SET cancel_requested = TRUE, status = 'cancelled', worker_id = NULL, due_at = NULL, updated_at = :now, ended_at = :now
WHERE id = :id;

-- name: run_continue
-- Runnable again after a person's decision; a plane that had everything of it gets what comes now.
UPDATE run SET status = 'pending', worker_id = NULL, epoch = epoch + 1, attempt = attempt + :attempts, due_at = NULL,
  blocked_operation = NULL, error = NULL, ended_at = NULL, updated_at = :now, synced_seq = coalesce(synced_seq, :seq)
WHERE id = :id;

-- name: run_change
-- What the owner's entry says of the run, with the status settled under the lock.
UPDATE run SET status = :status, due_at = :due_at, blocked_operation = :blocked_operation, error = :error,
  worker_id = CASE WHEN :is_release THEN NULL ELSE worker_id END, ended_at = :ended_at, updated_at = :now
WHERE id = :id;

-- name: run_release
-- Runs lose their owner; one that ran can be taken again.
UPDATE run SET worker_id = NULL, status = CASE WHEN status = 'running' THEN 'pending' ELSE status END, updated_at = :now
WHERE {is_named} AND worker_id = :worker_id;

-- name: run_has_answers
-- Whether an answer waits to enter the run.
SELECT 1 FROM interrupt
WHERE interrupt.run_id = :id AND interrupt.status = 'answered' AND interrupt.delivered_at IS NULL
LIMIT 1;
