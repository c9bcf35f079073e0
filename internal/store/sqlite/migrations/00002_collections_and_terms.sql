-- +goose Up
-- Every term that began, so that a host which knows an older one can tell that
-- this database continued from it. The newest 256 are kept.
CREATE TABLE terms (
    term        INTEGER NOT NULL PRIMARY KEY,
    claim_token TEXT    NOT NULL,
    holder      TEXT    NOT NULL,
    begun_at    TEXT    NOT NULL,
    revision    INTEGER NOT NULL -- of the state as the term began
) STRICT;
INSERT INTO terms SELECT term, claim_token, holder, committed_at, 0 FROM meta WHERE term > 0;

CREATE TABLE api_keys (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE webhooks (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE deliveries (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE settings (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE marquees (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE playgrounds (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE playground_operations (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;
