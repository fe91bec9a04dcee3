-- The journal and what stands beside it. `run` is small and hot: nothing long, and no index on what changes with each entry.
CREATE TABLE run (
  n INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  root_id TEXT NOT NULL,
  parent_id TEXT,
  runner TEXT NOT NULL,
  kind TEXT NOT NULL,
  version TEXT,
  status TEXT NOT NULL,
  fence INTEGER NOT NULL,
  worker_id TEXT,
  seq INTEGER NOT NULL,
  entry_n INTEGER NOT NULL,
  input_digest TEXT NOT NULL,
  due_at REAL,
  cancel_requested BOOLEAN NOT NULL,
  blocked_operation TEXT,
  error TEXT,
  attempt INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  forked_from TEXT,
  forked_seq INTEGER,
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL,
  ended_at REAL,
  project_id TEXT,
  -- What a connected plane has acknowledged; NULL when the run is over and all of it is.
  synced_seq INTEGER DEFAULT 0
);
CREATE INDEX run_by_status ON run (status, created_at);
CREATE INDEX run_by_due ON run (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX run_by_age ON run (created_at, id);
CREATE INDEX run_by_worker ON run (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX run_below ON run (root_id) WHERE root_id <> id;
CREATE INDEX run_unsynced ON run (created_at, id) WHERE synced_seq IS NOT NULL;

-- Append-only. The id is `run.n << 24 | seq`: a run's records lie together, in order, and there is one tree to write.
-- Not a key of (run_id, seq) without a rowid: what is longer than a quarter of a page would take a page of its own.
CREATE TABLE record (
  id INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  type TEXT NOT NULL,
  path TEXT NOT NULL,
  idx INTEGER NOT NULL,
  kind TEXT,
  name TEXT,
  digest TEXT,
  recovery TEXT,
  attempt INTEGER NOT NULL,
  outcome TEXT,
  data TEXT,
  wait_s REAL,
  clock_s REAL NOT NULL,
  state TEXT,
  at REAL NOT NULL,
  -- Encoded text has no NUL. SQLite would take one and cut the text in its functions; Postgres refuses it.
  CHECK (instr(data, char(0)) = 0),
  CHECK (instr(state, char(0)) = 0),
  CHECK (instr(name, char(0)) = 0),
  CHECK (instr(path, char(0)) = 0)
);

CREATE TABLE interrupt (
  id TEXT PRIMARY KEY NOT NULL,
  run_id TEXT NOT NULL,
  path TEXT NOT NULL,
  idx INTEGER NOT NULL,
  slot TEXT NOT NULL,
  reason TEXT NOT NULL,
  context TEXT NOT NULL,
  digest TEXT NOT NULL,
  bind BOOLEAN NOT NULL,
  status TEXT NOT NULL,
  answer TEXT,
  answered_by TEXT,
  created_at REAL NOT NULL,
  answered_at REAL,
  answer_seq INTEGER,
  delivered_at REAL,
  ordinal INTEGER NOT NULL,
  claimed_at REAL
);
CREATE INDEX interrupt_by_run ON interrupt (run_id);
CREATE INDEX interrupt_open ON interrupt (created_at, id) WHERE status = 'pending';

CREATE TABLE worker (
  id TEXT PRIMARY KEY NOT NULL,
  host TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  pid INTEGER NOT NULL,
  beat INTEGER NOT NULL,
  lock TEXT,
  started_at REAL NOT NULL,
  ended_at REAL
);

CREATE TABLE meta (
  key TEXT PRIMARY KEY NOT NULL,
  value TEXT NOT NULL
);
INSERT INTO meta (key, value) VALUES ('incarnation', '1');

-- What is left of a run that was pruned, so that its submission is recognised when it comes once more.
CREATE TABLE tombstone (
  run_id TEXT PRIMARY KEY NOT NULL,
  runner TEXT NOT NULL,
  input_digest TEXT NOT NULL,
  status TEXT NOT NULL,
  ended_at REAL NOT NULL,
  pruned_at REAL NOT NULL
);

-- Kept by hand: executions of topologies that no engine drives. Nothing of it is ever claimed by a worker.
CREATE TABLE execution (
  id TEXT PRIMARY KEY NOT NULL,
  seq INTEGER NOT NULL,
  status TEXT NOT NULL,
  synced_seq INTEGER NOT NULL,
  project_id TEXT,
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL
);
CREATE INDEX execution_by_age ON execution (updated_at, id);
CREATE INDEX execution_unsynced ON execution (created_at, id) WHERE seq > synced_seq;

-- `content` is what is read back. The generated columns take no room: they show its parts to people who query.
CREATE TABLE checkpoint (
  id TEXT PRIMARY KEY NOT NULL,
  run_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  after_seq INTEGER NOT NULL,
  status TEXT NOT NULL,
  content TEXT NOT NULL,
  put_at REAL NOT NULL,
  parent_checkpoint_id TEXT AS (json_extract(content, '$.parent_checkpoint_id')),
  chain_name TEXT AS (json_extract(content, '$.chain_name')),
  node_id TEXT AS (json_extract(content, '$.node_id')),
  node_index INTEGER AS (json_extract(content, '$.node_index')),
  step_type TEXT AS (json_extract(content, '$.step_type')),
  state_snapshot TEXT AS (json_extract(content, '$.state_snapshot')),
  node_input TEXT AS (json_extract(content, '$.node_input')),
  node_output TEXT AS (json_extract(content, '$.node_output')),
  iteration INTEGER AS (json_extract(content, '$.iteration')),
  iteration_counters TEXT AS (json_extract(content, '$.iteration_counters')),
  interrupt_reason TEXT AS (json_extract(content, '$.interrupt_reason')),
  interrupt_context TEXT AS (json_extract(content, '$.interrupt_context')),
  agent_path TEXT AS (json_extract(content, '$.agent_path')),
  created_at TEXT AS (json_extract(content, '$.created_at')),
  UNIQUE (run_id, seq)
);

CREATE TABLE checkpoint_write (
  run_id TEXT NOT NULL,
  checkpoint_id TEXT NOT NULL,
  idx INTEGER NOT NULL,
  data TEXT NOT NULL,
  PRIMARY KEY (run_id, checkpoint_id, idx)
) WITHOUT ROWID;

CREATE TABLE pending_interrupt (
  id TEXT PRIMARY KEY NOT NULL,
  run_id TEXT NOT NULL,
  checkpoint_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  status TEXT NOT NULL,
  content TEXT NOT NULL,
  created_at REAL NOT NULL,
  claimed_at REAL
);
CREATE INDEX pending_interrupt_by_run ON pending_interrupt (run_id);
CREATE INDEX pending_interrupt_open ON pending_interrupt (created_at, id) WHERE status = 'pending';

CREATE TABLE idempotent (
  run_id TEXT NOT NULL,
  key TEXT NOT NULL,
  data TEXT NOT NULL,
  created_at REAL NOT NULL,
  PRIMARY KEY (run_id, key)
) WITHOUT ROWID;

-- Checkpoints acknowledged by the plane beyond `synced_seq`, and those it will never take (`reason`).
CREATE TABLE replica (
  checkpoint_id TEXT PRIMARY KEY NOT NULL,
  run_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  is_kept BOOLEAN NOT NULL,
  reason TEXT,
  at REAL NOT NULL
);
CREATE INDEX replica_by_run ON replica (run_id);
