-- +goose Up
CREATE TABLE trick_schedules (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE notification_routes (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE notifications (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE notification_states (
    id         TEXT NOT NULL PRIMARY KEY,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;
