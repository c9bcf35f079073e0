-- +goose Up
CREATE TABLE playground_secrets (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE git_hooks (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE playground_templates (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE playground_previews (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;
