-- name: interrupt_insert
-- A question, or the copy of one.
INSERT INTO interrupt (id, run_id, path, idx, slot, reason, context, digest, bind, status, created_at, answer, answered_by,
                       answered_at, answer_seq, delivered_at, ordinal)
VALUES (:id, :run_id, :path, :idx, :slot, :reason, :context, :digest, :bind, :status, :created_at, :answer, :answered_by,
        :answered_at, :answer_seq, :delivered_at, :ordinal);

-- name: interrupt_list
-- Oldest first, with the runner's name, which is what people know.
SELECT {interrupt}, run.runner FROM interrupt JOIN run ON run.id = interrupt.run_id
WHERE (CAST(:run_id AS text) IS NULL OR interrupt.run_id = CAST(:run_id AS text))
  AND (CAST(:status AS text) IS NULL OR interrupt.status = CAST(:status AS text))
ORDER BY interrupt.created_at, interrupt.run_id, interrupt.ordinal, interrupt.id
LIMIT :limit;

-- name: interrupt_load
-- All questions of a run, for replay.
SELECT {interrupt}, run.runner FROM interrupt JOIN run ON run.id = interrupt.run_id
WHERE interrupt.run_id = :run_id
ORDER BY interrupt.created_at, interrupt.ordinal, interrupt.id;

-- name: interrupt_get
-- One question of a run, under the run's lock.
SELECT {interrupt} FROM interrupt WHERE interrupt.id = :id AND interrupt.run_id = :run_id;

-- name: interrupt_answer
-- Law 5: only an open question takes an answer.
UPDATE interrupt SET status = 'answered', answer = :answer, answered_by = :answered_by, answered_at = :now, answer_seq = :seq
WHERE id = :id AND run_id = :run_id AND status = 'pending';

-- name: interrupt_delivered
-- The answer has entered the run.
UPDATE interrupt SET delivered_at = :now
WHERE id = :id AND run_id = :run_id AND status = 'answered' AND delivered_at IS NULL;

-- name: interrupt_abandoned
-- The code no longer waits. An answer that came too late stays with the question: a retry may ask again.
UPDATE interrupt SET status = 'abandoned'
WHERE id = :id AND run_id = :run_id AND status IN ('pending', 'answered') AND delivered_at IS NULL;

-- name: interrupt_withdraw
-- The run is over: kept for the audit, not to be answered.
UPDATE interrupt SET status = 'withdrawn' WHERE run_id = :run_id AND status = 'pending';

-- name: interrupt_reopen
-- A retry asks again under the same ids, and finds the answers that had not entered the run. What its code gave up
-- and gives up again, it gives up at the replay.
UPDATE interrupt SET status = CASE WHEN answer IS NULL THEN 'pending' ELSE 'answered' END, claimed_at = NULL
WHERE run_id = :run_id AND status IN ('withdrawn', 'abandoned');

-- name: facts_answers
-- Answers that wait for the runs a worker owns, in order of arrival.
SELECT {interrupt}, run.runner FROM interrupt JOIN run ON run.id = interrupt.run_id
WHERE run.worker_id = :worker_id AND interrupt.status = 'answered' AND interrupt.delivered_at IS NULL
ORDER BY interrupt.run_id, interrupt.answer_seq;

-- name: facts_cancels
-- Runs a worker owns and is asked to cancel.
SELECT run.id FROM run
WHERE run.worker_id = :worker_id AND run.cancel_requested AND run.status NOT IN ('completed', 'failed', 'cancelled')
ORDER BY run.id;
