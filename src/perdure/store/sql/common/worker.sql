-- name: worker_insert
-- One start of a process.
INSERT INTO worker (id, host, boot_id, pid, beat, lock, started_at) VALUES (:id, :host, :boot_id, :pid, :beat, :lock, :now);

-- name: worker_get
-- One worker.
SELECT {worker} FROM worker WHERE worker.id = :id;

-- name: worker_beat
-- A heartbeat counts; nobody compares clocks.
UPDATE worker SET beat = beat + 1 WHERE id = :id AND ended_at IS NULL;

-- name: worker_list
-- Workers not ended, oldest first.
SELECT {worker}, (SELECT count(*) FROM run WHERE run.worker_id = worker.id AND run.status = 'running') FROM worker
WHERE worker.ended_at IS NULL
ORDER BY worker.started_at, worker.id;

-- name: worker_end
-- The end of a worker, by itself or by whoever found it dead.
UPDATE worker SET ended_at = :now WHERE id = :id AND ended_at IS NULL;

-- name: meta_get
-- A fact about the whole store.
SELECT value FROM meta WHERE key = :key;
