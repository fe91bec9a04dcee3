-- Runs in one transaction with search_path set to the store's schema.
-- Ids are compared byte by byte (COLLATE "C"), so that lock order is the same on every server and in Python.

CREATE TABLE meta (
    name  TEXT COLLATE "C" PRIMARY KEY,
    value TEXT NOT NULL
);

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
    cancel_requested  INTEGER NOT NULL DEFAULT 0,
    blocked_operation TEXT,
    error             TEXT,
    attempt           INTEGER NOT NULL DEFAULT 0,
    epoch             BIGINT NOT NULL DEFAULT 0,
    forked_from       TEXT COLLATE "C",
    forked_seq        BIGINT,
    created_at        DOUBLE PRECISION NOT NULL,
    updated_at        DOUBLE PRECISION NOT NULL,
    ended_at          DOUBLE PRECISION
) WITH (fillfactor = 60);

-- Claims and lists of open runs. Ended runs leave it, so it stays as small as the work in flight.
CREATE INDEX run_open ON run (status, created_at, id) WHERE ended_at IS NULL;
-- Lists, newest first.
CREATE INDEX run_created ON run (created_at, id);
-- What a worker owns: its facts, its funeral.
CREATE INDEX run_owner ON run (worker_id) WHERE worker_id IS NOT NULL AND ended_at IS NULL;

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
    bind         INTEGER NOT NULL,
    status       TEXT COLLATE "C" NOT NULL,
    created_at   DOUBLE PRECISION NOT NULL,
    answer       TEXT,
    answered_by  TEXT,
    answered_at  DOUBLE PRECISION,
    answer_seq   BIGINT,
    delivered_at DOUBLE PRECISION
);

CREATE INDEX interrupt_run ON interrupt (run_id);
CREATE INDEX interrupt_pending ON interrupt (created_at, id) WHERE status = 'pending';

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
