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
    ended_at          DOUBLE PRECISION
) WITH (fillfactor = 60);

-- Claims and lists of what is not over. Runs that have ended leave it, so it stays as small as the work in flight.
CREATE INDEX run_by_status ON run (status, created_at)
    WHERE status IN ('queued', 'pending', 'running', 'waiting', 'retry_wait', 'needs_attention');
CREATE INDEX run_by_due ON run (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX run_by_age ON run (created_at, id);
CREATE INDEX run_by_worker ON run (worker_id) WHERE worker_id IS NOT NULL;

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
    ordinal      BIGINT NOT NULL
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
