-- name: record_list
-- The stream: what was committed after a number. A run's records are a range of ids.
SELECT {record} FROM run JOIN record ON record.id > (run.n << 24) + :after AND record.id < (run.n + 1) << 24
WHERE run.id = :run_id ORDER BY record.id LIMIT :limit;

-- name: record_load
-- The whole journal, for replay.
SELECT {record} FROM run JOIN record ON record.id > run.n << 24 AND record.id < (run.n + 1) << 24
WHERE run.id = :run_id ORDER BY record.id;

-- name: record_delete
-- The journal.
DELETE FROM record WHERE id > (SELECT run.n FROM run WHERE run.id = :run_id) << 24
  AND id < ((SELECT run.n FROM run WHERE run.id = :run_id) + 1) << 24;

-- name: run_number
-- What the ids of a run's records begin with.
SELECT run.n FROM run WHERE run.id = :run_id;
