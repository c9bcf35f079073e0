-- +goose Up
CREATE TABLE trick_schedules (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE notification_routes (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE notifications (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
CREATE TABLE notification_states (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    updated_at timestamptz NOT NULL,
    doc        json        NOT NULL
);
