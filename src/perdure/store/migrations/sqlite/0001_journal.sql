-- The journal and what stands beside it. `run` is small and hot: nothing long, and no index on what changes with each entry.
CREATE TABLE run (
  id TEXT PRIMARY KEY NOT NULL,
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
  ended_at REAL
);
CREATE INDEX run_by_status ON run (status, created_at);
CREATE INDEX run_by_due ON run (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX run_by_age ON run (created_at, id);
CREATE INDEX run_by_worker ON run (worker_id) WHERE worker_id IS NOT NULL;

-- Append-only. Without a rowid a run's records lie together, in order, and there is one tree to write.
CREATE TABLE record (
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
  PRIMARY KEY (run_id, seq),
  -- Encoded text has no NUL. SQLite would take one and cut the text in its functions; Postgres refuses it.
  CHECK (instr(data, char(0)) = 0),
  CHECK (instr(state, char(0)) = 0),
  CHECK (instr(name, char(0)) = 0),
  CHECK (instr(path, char(0)) = 0)
) WITHOUT ROWID;

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
  ordinal INTEGER NOT NULL
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
