-- name: execution_advance
-- The next number of an execution kept by hand. Who puts into it waits here for who put before.
INSERT INTO execution (id, seq, status, synced_seq, created_at, updated_at) VALUES (:id, 1, :status, 0, :now, :now)
ON CONFLICT (id) DO UPDATE SET seq = execution.seq + 1, status = excluded.status, updated_at = excluded.updated_at
RETURNING seq;

-- name: execution_touch
-- Something was kept that is no checkpoint.
INSERT INTO execution (id, seq, status, synced_seq, created_at, updated_at) VALUES (:id, 0, 'completed', 0, :now, :now)
ON CONFLICT (id) DO UPDATE SET updated_at = excluded.updated_at;

-- name: run_position
-- How far a run is, if the execution is one.
SELECT run.seq FROM run WHERE run.id = :id;

-- name: checkpoint_get
-- One checkpoint put by hand; ids are unique in a store.
SELECT {checkpoint} FROM checkpoint WHERE checkpoint.id = :id;

-- name: checkpoint_oldest
-- From the beginning.
SELECT {checkpoint} FROM checkpoint WHERE checkpoint.run_id = :run_id ORDER BY checkpoint.seq LIMIT :limit;

-- name: checkpoint_newest
-- From the end: not the one with the latest clock.
SELECT {checkpoint} FROM checkpoint WHERE checkpoint.run_id = :run_id ORDER BY checkpoint.seq DESC LIMIT :limit;

-- name: checkpoint_after
-- What was put behind a number.
SELECT {checkpoint} FROM checkpoint WHERE checkpoint.run_id = :run_id AND checkpoint.seq > :after
ORDER BY checkpoint.seq LIMIT :limit;

-- name: write_insert
-- What a step wrote, beside its checkpoint.
INSERT INTO checkpoint_write (run_id, checkpoint_id, idx, data) VALUES (:run_id, :checkpoint_id, :idx, :data);

-- name: write_count
-- Writes are added behind those that are there.
SELECT count(*) FROM checkpoint_write WHERE run_id = :run_id AND checkpoint_id = :checkpoint_id;

-- name: write_list
-- In the order in which they were put.
SELECT data FROM checkpoint_write WHERE run_id = :run_id AND checkpoint_id = :checkpoint_id ORDER BY idx;

-- name: pending_insert
-- A question of an execution kept by hand.
INSERT INTO pending_interrupt (id, run_id, checkpoint_id, seq, status, content, created_at)
VALUES (:id, :run_id, :checkpoint_id, :seq, 'pending', :content, :now);

-- name: pending_get
-- One question kept by hand.
SELECT {pending_interrupt} FROM pending_interrupt WHERE pending_interrupt.id = :id;

-- name: pending_answered
-- Who has claimed has gone on: the claims of an execution end with its next checkpoint.
UPDATE pending_interrupt SET status = 'answered'
WHERE run_id = :run_id AND status = 'pending' AND claimed_at IS NOT NULL;

-- name: pending_is_free
-- A claim that nobody followed up lapses, so that who dies with it loses nothing.
(pending_interrupt.claimed_at IS NULL OR pending_interrupt.claimed_at <= :lapsed_at);

-- name: pending_list
-- Open and not claimed, oldest first.
SELECT {pending_interrupt} FROM pending_interrupt
WHERE pending_interrupt.status = 'pending' AND {pending_is_free}
ORDER BY pending_interrupt.created_at, pending_interrupt.run_id, pending_interrupt.seq, pending_interrupt.id
LIMIT :limit;

-- name: pending_list_of
-- The same of one execution.
SELECT {pending_interrupt} FROM pending_interrupt
WHERE pending_interrupt.run_id = :run_id AND pending_interrupt.status = 'pending' AND {pending_is_free}
ORDER BY pending_interrupt.created_at, pending_interrupt.seq, pending_interrupt.id
LIMIT :limit;

-- name: pending_claim
-- Under the lock of its execution.
UPDATE pending_interrupt SET claimed_at = :now WHERE id = :id;

-- name: interrupt_is_free
-- As of kept questions.
(interrupt.claimed_at IS NULL OR interrupt.claimed_at <= :lapsed_at);

-- name: interrupt_unclaimed
-- Open questions of runs that nobody has claimed, oldest first.
SELECT {interrupt}, run.runner FROM interrupt JOIN run ON run.id = interrupt.run_id
WHERE interrupt.status = 'pending' AND {interrupt_is_free}
ORDER BY interrupt.created_at, interrupt.run_id, interrupt.ordinal, interrupt.id
LIMIT :limit;

-- name: interrupt_unclaimed_of
-- The same of one run.
SELECT {interrupt}, run.runner FROM interrupt JOIN run ON run.id = interrupt.run_id
WHERE interrupt.run_id = :run_id AND interrupt.status = 'pending' AND {interrupt_is_free}
ORDER BY interrupt.created_at, interrupt.ordinal, interrupt.id
LIMIT :limit;

-- name: interrupt_claim
-- Under the run's lock. The status stays: an answer is taken while it is claimed, since who claims is who answers.
UPDATE interrupt SET claimed_at = :now WHERE id = :id;

-- name: idempotent_get
-- What was kept under a key.
SELECT data FROM idempotent WHERE run_id = :run_id AND key = :key;

-- name: idempotent_put
-- The first one stays.
INSERT INTO idempotent (run_id, key, data, created_at) VALUES (:run_id, :key, :data, :now)
ON CONFLICT (run_id, key) DO NOTHING;
