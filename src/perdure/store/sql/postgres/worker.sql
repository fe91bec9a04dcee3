-- name: worker_relock
-- A heartbeat counts, and says under which lock: a worker that had to lock again is found under the new name.
UPDATE perdure.worker SET beat = beat + 1, lock = :lock WHERE id = :id AND ended_at IS NULL;
