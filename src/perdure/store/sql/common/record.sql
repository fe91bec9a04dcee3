-- name: record_list
-- The stream: what was committed after a number.
SELECT {record} FROM record WHERE record.run_id = :run_id AND record.seq > :after ORDER BY record.seq LIMIT :limit;

-- name: record_load
-- The whole journal, for replay.
SELECT {record} FROM record WHERE record.run_id = :run_id ORDER BY record.seq;
