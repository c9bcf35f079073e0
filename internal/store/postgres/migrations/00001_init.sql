-- +goose Up
CREATE TABLE meta (
    one          boolean     NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    program      text        NOT NULL, -- 'fuse': whose tables these are
    fleet_id     text        NOT NULL,
    term         bigint      NOT NULL,
    claim_token  text        NOT NULL,
    holder       text        NOT NULL,
    revision     bigint      NOT NULL,
    seq          bigint      NOT NULL,
    committed_at timestamptz,
    -- Commits so far. Each names the number that it expects here, so that one
    -- which was given up for lost and arrives late changes nothing.
    n            bigint      NOT NULL
);

-- The newest batches, in a ring of fixed size: slot is n modulo the size. A
-- commit whose answer was lost is looked up here.
CREATE TABLE commits (
    slot         bigint      NOT NULL PRIMARY KEY,
    n            bigint      NOT NULL,
    batch_id     text COLLATE "C" NOT NULL,
    term         bigint      NOT NULL,
    revision     bigint      NOT NULL,
    committed_at timestamptz NOT NULL
);

-- Who owns the fleet, on this server's clock. A table of its own: a commit
-- under way must not keep the holder from renewing.
CREATE TABLE lease (
    one        boolean     NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    term       bigint      NOT NULL,
    candidate  json        NOT NULL,
    expires_at timestamptz NOT NULL
);

CREATE TABLE terms (
    term        bigint      NOT NULL PRIMARY KEY,
    claim_token text        NOT NULL,
    holder      text        NOT NULL,
    begun_at    timestamptz NOT NULL,
    revision    bigint      NOT NULL -- of the state as the term began
);

CREATE TABLE vms (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    uid        text COLLATE "C" NOT NULL,
    task_id    text        NOT NULL,
    host_id    text        NOT NULL,
    state      text        NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    generation bigint      NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);

CREATE TABLE hosts (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    state      text        NOT NULL,
    url        text        NOT NULL,
    backend    text        NOT NULL,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);

CREATE TABLE tasks (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    vm_id      text        NOT NULL,
    uid        text COLLATE "C" NOT NULL,
    run_status text        NOT NULL,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);

CREATE TABLE snapshots (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    vm_id      text        NOT NULL,
    host_id    text        NOT NULL,
    state      text        NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    size_bytes bigint      NOT NULL,
    created_at timestamptz NOT NULL,
    doc        json        NOT NULL
);

CREATE TABLE dead_letters (
    kind         text COLLATE "C" NOT NULL,
    entity_id    text COLLATE "C" NOT NULL,
    retry_count  bigint      NOT NULL,
    last_seen_at timestamptz NOT NULL,
    doc          json        NOT NULL,
    PRIMARY KEY (kind, entity_id)
);

CREATE TABLE lives (
    uid      text COLLATE "C" NOT NULL PRIMARY KEY,
    vm_id    text        NOT NULL,
    task_id  text        NOT NULL,
    state    text        NOT NULL,
    rule     text        NOT NULL,
    ended_at timestamptz NOT NULL,
    doc      json        NOT NULL
);

CREATE TABLE startup_logs (
    uid       text COLLATE "C" NOT NULL PRIMARY KEY,
    exit_code bigint      NOT NULL,
    ended_at  timestamptz NOT NULL,
    doc       json        NOT NULL,
    output    bytea       NOT NULL
);

CREATE TABLE idempotency (
    owner       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    resource_id text        NOT NULL,
    done        boolean     NOT NULL,
    created_at  timestamptz NOT NULL,
    doc         json        NOT NULL,
    PRIMARY KEY (owner, key)
);

CREATE TABLE events (
    seq         bigint      NOT NULL PRIMARY KEY,
    at          timestamptz NOT NULL,
    entity_type text        NOT NULL,
    entity_id   text COLLATE "C" NOT NULL,
    uid         text COLLATE "C" NOT NULL,
    type        text        NOT NULL,
    state       text        NOT NULL,
    doc         json        NOT NULL
);
CREATE INDEX events_entity ON events (entity_id, seq);
CREATE INDEX events_uid ON events (uid, seq) WHERE uid <> '';

-- +goose StatementBegin
CREATE FUNCTION commit_under(p_term bigint, p_n bigint, p_batch text, p_revision bigint, p_seq bigint, p_at timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    has_term bigint;
    has_n    bigint;
BEGIN
    UPDATE meta SET revision = p_revision, seq = p_seq, committed_at = p_at, n = p_n
        WHERE term = p_term AND n = p_n - 1;
    IF NOT FOUND THEN
        SELECT term, n INTO has_term, has_n FROM meta;
        RAISE EXCEPTION 'term %, commit %: the database is at term %, commit %', p_term, p_n, has_term, has_n
            USING ERRCODE = CASE WHEN has_term = p_term THEN 'FU002' ELSE 'FU001' END;
    END IF;
    INSERT INTO commits (slot, n, batch_id, term, revision, committed_at)
        VALUES (p_n % 64, p_n, p_batch, p_term, p_revision, p_at)
        ON CONFLICT (slot) DO UPDATE SET n = excluded.n, batch_id = excluded.batch_id, term = excluded.term,
            revision = excluded.revision, committed_at = excluded.committed_at;
END $$;
-- +goose StatementEnd
