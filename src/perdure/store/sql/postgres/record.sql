-- name: record_insert
-- Journal rows as one array per column: one statement however many they are.
INSERT INTO perdure.record (run_id, seq, type, path, idx, kind, name, digest, recovery, attempt, outcome, data, wait_s,
    clock_s, state, at)
SELECT * FROM unnest(:run_ids::text[], :seqs::int8[], :types::text[], :paths::text[], :idxs::int8[], :kinds::text[],
    :names::text[], :digests::text[], :recoveries::text[], :attempts::int8[], :outcomes::text[], :datas::text[],
    :waits_s::float8[], :clocks_s::float8[], :states::text[], :ats::float8[]);

-- name: record_list
-- The stream: what was committed after a number.
SELECT {record} FROM record WHERE record.run_id = :run_id AND record.seq > :after ORDER BY record.seq LIMIT :limit;

-- name: record_load
-- The whole journal, for replay.
SELECT {record} FROM record WHERE record.run_id = :run_id ORDER BY record.seq;

-- name: record_delete
-- The journal.
DELETE FROM record WHERE run_id = :run_id;
