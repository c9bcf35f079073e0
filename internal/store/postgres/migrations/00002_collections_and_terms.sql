-- +goose Up
CREATE TABLE api_keys (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE webhooks (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE deliveries (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE settings (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE marquees (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE playgrounds (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE playground_operations (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
