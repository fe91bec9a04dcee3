-- Runs in one transaction with search_path set to the store's schema.
-- Ids are compared byte by byte (COLLATE "C"), so that lock order is the same on every server and in Python.

CREATE TABLE meta (
    key   TEXT COLLATE "C" PRIMARY KEY,
    value TEXT NOT NULL
);
INSERT INTO meta (key, value) VALUES ('incarnation', '1');

-- The hot row: each entry updates seq, entry_n and updated_at. None of them is in an index and pages keep room,
-- so these updates stay on the page (HOT) and touch no index.
CREATE TABLE run (
    id                TEXT COLLATE "C" PRIMARY KEY,
    root_id           TEXT COLLATE "C" NOT NULL,
    parent_id         TEXT COLLATE "C",
    runner            TEXT COLLATE "C" NOT NULL,
    kind              TEXT NOT NULL,
    version           TEXT,
    status            TEXT COLLATE "C" NOT NULL,
    fence             BIGINT NOT NULL,
    worker_id         TEXT COLLATE "C",
    seq               BIGINT NOT NULL,
    entry_n           BIGINT NOT NULL,
    input_digest      TEXT NOT NULL,
    due_at            DOUBLE PRECISION,
    cancel_requested  BOOLEAN NOT NULL,
    blocked_operation TEXT,
    error             TEXT,
    attempt           INTEGER NOT NULL,
    epoch             BIGINT NOT NULL,
    forked_from       TEXT COLLATE "C",
    forked_seq        BIGINT,
    created_at        DOUBLE PRECISION NOT NULL,
    updated_at        DOUBLE PRECISION NOT NULL,
    ended_at          DOUBLE PRECISION,
    project_id        TEXT,
    -- What a connected plane has acknowledged; NULL when the run is over and all of it is.
    synced_seq        BIGINT DEFAULT 0
) WITH (fillfactor = 60);

-- Claims and lists of what is not over. Runs that have ended leave it, so it stays as small as the work in flight.
CREATE INDEX run_by_status ON run (status, created_at)
    WHERE status IN ('queued', 'pending', 'running', 'waiting', 'retry_wait', 'needs_attention');
CREATE INDEX run_by_due ON run (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX run_by_age ON run (created_at, id);
CREATE INDEX run_by_worker ON run (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX run_below ON run (root_id) WHERE root_id <> id;
CREATE INDEX run_unsynced ON run (created_at, id) WHERE synced_seq IS NOT NULL;

CREATE TABLE record (
    run_id   TEXT COLLATE "C" NOT NULL,
    seq      BIGINT NOT NULL,
    type     TEXT NOT NULL,
    path     TEXT NOT NULL,
    idx      BIGINT NOT NULL,
    kind     TEXT,
    name     TEXT,
    digest   TEXT,
    recovery TEXT,
    attempt  INTEGER NOT NULL,
    outcome  TEXT,
    data     TEXT,
    wait_s   DOUBLE PRECISION,
    clock_s  DOUBLE PRECISION NOT NULL,
    state    TEXT,
    at       DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (run_id, seq)
);

CREATE TABLE interrupt (
    id           TEXT COLLATE "C" PRIMARY KEY,
    run_id       TEXT COLLATE "C" NOT NULL,
    path         TEXT NOT NULL,
    idx          BIGINT NOT NULL,
    slot         TEXT NOT NULL,
    reason       TEXT NOT NULL,
    context      TEXT NOT NULL,
    digest       TEXT NOT NULL,
    bind         BOOLEAN NOT NULL,
    status       TEXT COLLATE "C" NOT NULL,
    created_at   DOUBLE PRECISION NOT NULL,
    answer       TEXT,
    answered_by  TEXT,
    answered_at  DOUBLE PRECISION,
    answer_seq   BIGINT,
    delivered_at DOUBLE PRECISION,
    ordinal      BIGINT NOT NULL,
    claimed_at   DOUBLE PRECISION
);

CREATE INDEX interrupt_by_run ON interrupt (run_id);
CREATE INDEX interrupt_open ON interrupt (created_at, id) WHERE status = 'pending';

CREATE TABLE worker (
    id         TEXT COLLATE "C" PRIMARY KEY,
    host       TEXT NOT NULL,
    boot_id    TEXT NOT NULL,
    pid        BIGINT NOT NULL,
    beat       BIGINT NOT NULL,
    lock       TEXT,
    started_at DOUBLE PRECISION NOT NULL,
    ended_at   DOUBLE PRECISION
) WITH (fillfactor = 60);

-- What is left of a run that was pruned, so that its submission is recognised when it comes once more.
CREATE TABLE tombstone (
    run_id       TEXT COLLATE "C" PRIMARY KEY,
    runner       TEXT NOT NULL,
    input_digest TEXT NOT NULL,
    status       TEXT NOT NULL,
    ended_at     DOUBLE PRECISION NOT NULL,
    pruned_at    DOUBLE PRECISION NOT NULL
);

-- Kept by hand: executions of topologies that no engine drives. Nothing of it is ever claimed by a worker.
CREATE TABLE execution (
    id         TEXT COLLATE "C" PRIMARY KEY,
    seq        BIGINT NOT NULL,
    status     TEXT COLLATE "C" NOT NULL,
    synced_seq BIGINT NOT NULL,
    project_id TEXT,
    created_at DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL
);

CREATE INDEX execution_by_age ON execution (updated_at, id);
CREATE INDEX execution_unsynced ON execution (created_at, id) WHERE seq > synced_seq;

-- `content` is what is read back, exactly. The columns behind it are for people who query: JSONB keeps neither the order
-- of keys nor 1.0, and has no NUL and no lone surrogate, which stand there as the six characters of their escape.
CREATE TABLE checkpoint (
    id                   TEXT COLLATE "C" PRIMARY KEY,
    run_id               TEXT COLLATE "C" NOT NULL,
    seq                  BIGINT NOT NULL,
    after_seq            BIGINT NOT NULL,
    status               TEXT COLLATE "C" NOT NULL,
    content              TEXT NOT NULL,
    put_at               DOUBLE PRECISION NOT NULL,
    parent_checkpoint_id TEXT,
    chain_name           TEXT,
    node_id              TEXT,
    node_index           BIGINT,
    step_type            TEXT,
    state_snapshot       JSONB,
    node_input           JSONB,
    node_output          JSONB,
    iteration            BIGINT,
    iteration_counters   JSONB,
    interrupt_reason     TEXT,
    interrupt_context    JSONB,
    agent_path           TEXT,
    created_at           TIMESTAMPTZ,
    UNIQUE (run_id, seq)
);

CREATE TABLE checkpoint_write (
    run_id        TEXT COLLATE "C" NOT NULL,
    checkpoint_id TEXT COLLATE "C" NOT NULL,
    idx           BIGINT NOT NULL,
    data          TEXT NOT NULL,
    PRIMARY KEY (run_id, checkpoint_id, idx)
);

CREATE TABLE pending_interrupt (
    id            TEXT COLLATE "C" PRIMARY KEY,
    run_id        TEXT COLLATE "C" NOT NULL,
    checkpoint_id TEXT NOT NULL,
    seq           BIGINT NOT NULL,
    status        TEXT COLLATE "C" NOT NULL,
    content       TEXT NOT NULL,
    created_at    DOUBLE PRECISION NOT NULL,
    claimed_at    DOUBLE PRECISION
);

CREATE INDEX pending_interrupt_by_run ON pending_interrupt (run_id);
CREATE INDEX pending_interrupt_open ON pending_interrupt (created_at, id) WHERE status = 'pending';

CREATE TABLE idempotent (
    run_id     TEXT COLLATE "C" NOT NULL,
    key        TEXT COLLATE "C" NOT NULL,
    data       TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (run_id, key)
);

-- Checkpoints acknowledged by the plane beyond `synced_seq`, and those it will never take (`reason`).
CREATE TABLE replica (
    checkpoint_id TEXT COLLATE "C" PRIMARY KEY,
    run_id        TEXT COLLATE "C" NOT NULL,
    seq           BIGINT NOT NULL,
    is_kept       BOOLEAN NOT NULL,
    reason        TEXT,
    at            DOUBLE PRECISION NOT NULL
);

CREATE INDEX replica_by_run ON replica (run_id);
