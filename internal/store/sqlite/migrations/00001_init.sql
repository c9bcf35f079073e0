-- +goose Up

CREATE TABLE meta (
    one          INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    fleet_id     TEXT    NOT NULL,
    term         INTEGER NOT NULL,
    claim_token  TEXT    NOT NULL,
    holder       TEXT    NOT NULL,
    revision     INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    committed_at TEXT    NOT NULL
) STRICT;

-- The newest batches, in a ring of fixed size: n counts on, slot is n modulo
-- the size. A commit whose answer was lost is looked up here.
CREATE TABLE commits (
    slot         INTEGER NOT NULL PRIMARY KEY,
    n            INTEGER NOT NULL,
    batch_id     TEXT    NOT NULL,
    term         INTEGER NOT NULL,
    revision     INTEGER NOT NULL,
    committed_at TEXT    NOT NULL
) STRICT;

CREATE TABLE vms (
    id         TEXT    NOT NULL PRIMARY KEY,
    uid        TEXT    NOT NULL,
    task_id    TEXT    NOT NULL,
    host_id    TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    generation INTEGER NOT NULL,
    created_at TEXT    NOT NULL,
    updated_at TEXT    NOT NULL,
    doc        TEXT    NOT NULL
) STRICT;

CREATE TABLE hosts (
    id         TEXT NOT NULL PRIMARY KEY,
    state      TEXT NOT NULL,
    url        TEXT NOT NULL,
    backend    TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE tasks (
    id         TEXT NOT NULL PRIMARY KEY,
    vm_id      TEXT NOT NULL,
    uid        TEXT NOT NULL,
    run_status TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE snapshots (
    id         TEXT    NOT NULL PRIMARY KEY,
    vm_id      TEXT    NOT NULL,
    host_id    TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    size_bytes INTEGER NOT NULL,
    created_at TEXT    NOT NULL,
    doc        TEXT    NOT NULL
) STRICT;

CREATE TABLE dead_letters (
    kind         TEXT    NOT NULL,
    entity_id    TEXT    NOT NULL,
    retry_count  INTEGER NOT NULL,
    last_seen_at TEXT    NOT NULL,
    doc          TEXT    NOT NULL,
    PRIMARY KEY (kind, entity_id)
) STRICT;

CREATE TABLE lives (
    uid      TEXT NOT NULL PRIMARY KEY,
    vm_id    TEXT NOT NULL,
    task_id  TEXT NOT NULL,
    state    TEXT NOT NULL,
    rule     TEXT NOT NULL,
    ended_at TEXT NOT NULL,
    doc      TEXT NOT NULL
) STRICT;

CREATE TABLE startup_logs (
    uid       TEXT    NOT NULL PRIMARY KEY,
    exit_code INTEGER NOT NULL,
    ended_at  TEXT    NOT NULL,
    doc       TEXT    NOT NULL,
    output    BLOB    NOT NULL
) STRICT;

CREATE TABLE idempotency (
    owner       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    resource_id TEXT    NOT NULL,
    done        INTEGER NOT NULL,
    created_at  TEXT    NOT NULL,
    doc         TEXT    NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT;

CREATE TABLE events (
    seq         INTEGER NOT NULL PRIMARY KEY,
    at          TEXT    NOT NULL,
    entity_type TEXT    NOT NULL,
    entity_id   TEXT    NOT NULL,
    uid         TEXT    NOT NULL,
    type        TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    doc         TEXT    NOT NULL
) STRICT;

CREATE INDEX events_entity ON events (entity_id, seq);

CREATE INDEX events_uid ON events (uid, seq) WHERE uid <> '';
