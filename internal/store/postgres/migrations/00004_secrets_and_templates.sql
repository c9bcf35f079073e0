-- +goose Up
CREATE TABLE playground_secrets (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE git_hooks (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE playground_templates (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE playground_previews (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
