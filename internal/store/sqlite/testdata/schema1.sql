PRAGMA application_id = 1182102373;
BEGIN TRANSACTION;
CREATE TABLE goose_db_version (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL,
		tstamp TIMESTAMP DEFAULT (datetime('now'))
	);
INSERT INTO goose_db_version VALUES(1,0,1,'2026-11-29 23:07:21');
INSERT INTO goose_db_version VALUES(2,1,1,'2026-11-29 23:07:21');
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
INSERT INTO meta VALUES(1,'01M8MS082VF6ZR3W4VKAGY845H',1795993641051,'83c70eb43b74cb379227034d3f1f7ee3','first release',4,2,'2026-11-29T23:07:21.068603Z');
CREATE TABLE commits (
    slot         INTEGER NOT NULL PRIMARY KEY,
    n            INTEGER NOT NULL,
    batch_id     TEXT    NOT NULL,
    term         INTEGER NOT NULL,
    revision     INTEGER NOT NULL,
    committed_at TEXT    NOT NULL
) STRICT;
INSERT INTO commits VALUES(1,1,'01M8MS083BMVMBZ0X61CVQXDA6',1795993641051,1,'2026-11-29T23:07:21.066985Z');
INSERT INTO commits VALUES(2,2,'01M8MS083BMVMBZ0X61G7NK39Q',1795993641051,2,'2026-11-29T23:07:21.067666Z');
INSERT INTO commits VALUES(3,3,'01M8MS083CPRPNWX7FX0QS16NQ',1795993641051,3,'2026-11-29T23:07:21.068281Z');
INSERT INTO commits VALUES(4,4,'01M8MS083CPRPNWX7FX1N61WWM',1795993641051,4,'2026-11-29T23:07:21.068603Z');
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
INSERT INTO vms VALUES('fuse-a','01J0000000000000000000000A','a','h1','running',replace('s2005 é"\\n','\n',char(10)),2004,'2024-05-06T07:08:09.002096Z','2026-11-29T23:07:21.068281Z','{"v":1,"id":"fuse-a","uid":"01J0000000000000000000000A","generation":2004,"owner":"s2005 é\"\\\n","state":"running","task_id":"a","host_id":"h1","url":"s2009 é\"\\\n","spec":{"name":"s2011 é\"\\\n","cpus":2,"ram_mb":512,"storage_gb":4,"region":"s2015 é\"\\\n","arch":"s2016 é\"\\\n","gpu_kind":"s2018 é\"\\\n","host_id":"s2026 é\"\\\n","labels":{"s2028 é\"\\\n":"s2029 é\"\\\n"},"max_runtime":2030,"idle_timeout":2031,"image":"s2032 é\"\\\n","seed_snapshot_id":"s2033 é\"\\\n","resume_seed":true,"huge_pages":true,"pinned_host_id":"s2036 é\"\\\n","egress":{"mode":"s2038 é\"\\\n","provider":"s2039 é\"\\\n","protocol":"s2040 é\"\\\n"},"hitl":{"policy":{"s2044 é\"\\\n":"any2045"}},"ancestors":["s2047 é\"\\\n","s2048 é\"\\\n"]},"auth_token_sealed":"MjM=","boot_sealed":"NTY=","cert_pem":"ODk=","drain_command":"s2058 é\"\\\n","image_digest":"s2059 é\"\\\n","placement":{"host_id":"s2062 é\"\\\n","policy":"s2063 é\"\\\n","candidates":2064,"headroom_cpus":2065,"headroom_ram":2066,"artifact_local":true,"artifact_holders":2068},"endpoints":[{"as":"s2071 é\"\\\n","url":"s2072 é\"\\\n","port":2073,"protocol":"s2074 é\"\\\n"},{"as":"s2076 é\"\\\n","url":"s2077 é\"\\\n","port":2078,"protocol":"s2079 é\"\\\n"}],"boot":{"mode":"s2081 é\"\\\n","steps":[{"step":"s2084 é\"\\\n","took":2085},{"step":"s2087 é\"\\\n","took":2088}]},"last_error":"s2089 é\"\\\n","drain_result":"s2090 é\"\\\n","end":{"actor":"s2093 é\"\\\n","rule":"s2094 é\"\\\n","evidence":"s2095 é\"\\\n"},"created_at":"2024-05-06T07:08:09.002096Z","updated_at":"2026-11-29T23:07:21.068281Z","revision":3}');
CREATE TABLE hosts (
    id         TEXT NOT NULL PRIMARY KEY,
    state      TEXT NOT NULL,
    url        TEXT NOT NULL,
    backend    TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;
INSERT INTO hosts VALUES('h1','active',replace('s1004 é"\\n','\n',char(10)),replace('s1010 é"\\n','\n',char(10)),'2026-11-29T23:07:21.066985Z','{"v":1,"id":"h1","owner":"s1003 é\"\\\n","url":"s1004 é\"\\\n","token_sealed":"Bgc=","cert_sha256":"s1008 é\"\\\n","region":"s1009 é\"\\\n","backend":"s1010 é\"\\\n","labels":{"s1012 é\"\\\n":"s1013 é\"\\\n"},"state":"active","facts":{"registry_id":"s1016 é\"\\\n","machine_id":"s1017 é\"\\\n","boot_id":"s1018 é\"\\\n","driver":"s1019 é\"\\\n","accelerator":"s1020 é\"\\\n","version":"s1021 é\"\\\n","wire_version":1022,"kernel":"s1023 é\"\\\n","driver_version":"s1024 é\"\\\n","cpu_model":"s1025 é\"\\\n","overhead_mb":1026,"capabilities":["s1028 é\"\\\n","s1029 é\"\\\n"],"missing":["s1031 é\"\\\n","s1032 é\"\\\n"]},"capacity":{"cpus":8,"ram_mb":8192,"storage_gb":100,"vm_count":10},"warnings":["s1136 é\"\\\n","s1137 é\"\\\n"],"created_at":"2024-05-06T07:08:09.001138Z","updated_at":"2026-11-29T23:07:21.066985Z","revision":1}');
CREATE TABLE tasks (
    id         TEXT NOT NULL PRIMARY KEY,
    vm_id      TEXT NOT NULL,
    uid        TEXT NOT NULL,
    run_status TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    doc        TEXT NOT NULL
) STRICT;
INSERT INTO tasks VALUES('a','fuse-a','01J0000000000000000000000A','assigned','2026-11-29T23:07:21.068281Z','{"v":1,"task_id":"a","vm_id":"fuse-a","uid":"01J0000000000000000000000A","run_status":"assigned","retry_count":0,"assigned_at":"2026-11-29T23:07:21.068281Z","updated_at":"2026-11-29T23:07:21.068281Z"}');
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
INSERT INTO snapshots VALUES(replace('s3002 é"\\n','\n',char(10)),replace('s3003 é"\\n','\n',char(10)),replace('s3007 é"\\n','\n',char(10)),replace('s3015 é"\\n','\n',char(10)),replace('s3005 é"\\n','\n',char(10)),3016,'2024-05-06T07:08:09.003034Z','{"v":1,"snapshot_id":"s3002 é\"\\\n","vm_id":"s3003 é\"\\\n","uid":"s3004 é\"\\\n","owner":"s3005 é\"\\\n","task_id":"s3006 é\"\\\n","host_id":"s3007 é\"\\\n","tenant_id":"s3008 é\"\\\n","parent_snapshot_id":"s3009 é\"\\\n","mode":"s3010 é\"\\\n","layer_key":"s3011 é\"\\\n","arch":"s3012 é\"\\\n","digest":"s3013 é\"\\\n","kind":"s3014 é\"\\\n","state":"s3015 é\"\\\n","size_bytes":3016,"retention_until":"2024-05-06T07:08:09.003018Z","metadata":{"n":3019},"exports":[{"destination":"s3022 é\"\\\n","status":"s3023 é\"\\\n","requested_at":"2024-05-06T07:08:09.003024Z","updated_at":"2024-05-06T07:08:09.003025Z","last_error":"s3026 é\"\\\n"},{"destination":"s3028 é\"\\\n","status":"s3029 é\"\\\n","requested_at":"2024-05-06T07:08:09.00303Z","updated_at":"2024-05-06T07:08:09.003031Z","last_error":"s3032 é\"\\\n"}],"last_error":"s3033 é\"\\\n","created_at":"2024-05-06T07:08:09.003034Z","updated_at":"2026-11-29T23:07:21.068603Z","revision":4}');
CREATE TABLE dead_letters (
    kind         TEXT    NOT NULL,
    entity_id    TEXT    NOT NULL,
    retry_count  INTEGER NOT NULL,
    last_seen_at TEXT    NOT NULL,
    doc          TEXT    NOT NULL,
    PRIMARY KEY (kind, entity_id)
) STRICT;
INSERT INTO dead_letters VALUES(replace('s6002 é"\\n','\n',char(10)),replace('s6003 é"\\n','\n',char(10)),6006,'2026-11-29T23:07:21.068603Z','{"v":1,"kind":"s6002 é\"\\\n","entity_id":"s6003 é\"\\\n","task_id":"s6004 é\"\\\n","reason":"s6005 é\"\\\n","retry_count":6006,"payload":{"n":6007},"first_seen_at":"2024-05-06T07:08:09.006008Z","last_seen_at":"2026-11-29T23:07:21.068603Z"}');
CREATE TABLE lives (
    uid      TEXT NOT NULL PRIMARY KEY,
    vm_id    TEXT NOT NULL,
    task_id  TEXT NOT NULL,
    state    TEXT NOT NULL,
    rule     TEXT NOT NULL,
    ended_at TEXT NOT NULL,
    doc      TEXT NOT NULL
) STRICT;
INSERT INTO lives VALUES(replace('s4002 é"\\n','\n',char(10)),replace('s4003 é"\\n','\n',char(10)),replace('s4004 é"\\n','\n',char(10)),replace('s4007 é"\\n','\n',char(10)),replace('s4010 é"\\n','\n',char(10)),'2024-05-06T07:08:09.004053Z','{"v":1,"uid":"s4002 é\"\\\n","vm_id":"s4003 é\"\\\n","task_id":"s4004 é\"\\\n","host_id":"s4005 é\"\\\n","owner":"s4006 é\"\\\n","state":"s4007 é\"\\\n","reason":{"actor":"s4009 é\"\\\n","rule":"s4010 é\"\\\n","evidence":"s4011 é\"\\\n"},"error":"s4012 é\"\\\n","spec":{"name":"s4014 é\"\\\n","cpus":4015,"ram_mb":4016,"storage_gb":4017,"region":"s4018 é\"\\\n","arch":"s4019 é\"\\\n","gpus":4020,"gpu_kind":"s4021 é\"\\\n","gpu_profile":"s4022 é\"\\\n","gpu_uuids":["s4024 é\"\\\n","s4025 é\"\\\n"],"mig_instance_uuids":["s4027 é\"\\\n","s4028 é\"\\\n"],"host_id":"s4029 é\"\\\n","labels":{"s4031 é\"\\\n":"s4032 é\"\\\n"},"max_runtime":4033,"idle_timeout":4034,"image":"s4035 é\"\\\n","seed_snapshot_id":"s4036 é\"\\\n","resume_seed":true,"huge_pages":true,"pinned_host_id":"s4039 é\"\\\n","egress":{"mode":"s4041 é\"\\\n","provider":"s4042 é\"\\\n","protocol":"s4043 é\"\\\n"},"hitl":{"policy":{"s4047 é\"\\\n":"any4048"}},"ancestors":["s4050 é\"\\\n","s4051 é\"\\\n"]},"created_at":"2024-05-06T07:08:09.004052Z","ended_at":"2024-05-06T07:08:09.004053Z","ended_seq":54}');
CREATE TABLE startup_logs (
    uid       TEXT    NOT NULL PRIMARY KEY,
    exit_code INTEGER NOT NULL,
    ended_at  TEXT    NOT NULL,
    doc       TEXT    NOT NULL,
    output    BLOB    NOT NULL
) STRICT;
INSERT INTO startup_logs VALUES(replace('s5002 é"\\n','\n',char(10)),5003,'2024-05-06T07:08:09.005009Z','{"v":1,"uid":"s5002 é\"\\\n","exit_code":5003,"timed_out":true,"truncated":true,"output":null,"ended_at":"2024-05-06T07:08:09.005009Z"}',X'0708');
CREATE TABLE idempotency (
    owner       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    resource_id TEXT    NOT NULL,
    done        INTEGER NOT NULL,
    created_at  TEXT    NOT NULL,
    doc         TEXT    NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT;
INSERT INTO idempotency VALUES(replace('s7002 é"\\n','\n',char(10)),replace('s7003 é"\\n','\n',char(10)),replace('s7008 é"\\n','\n',char(10)),1,'2024-01-02T03:04:05.000000Z','{"v":1,"owner":"s7002 é\"\\\n","key":"s7003 é\"\\\n","body_hash":"s7004 é\"\\\n","method":"s7005 é\"\\\n","path":"s7006 é\"\\\n","status":7007,"resource_id":"s7008 é\"\\\n","exit_code":7010,"created_at":"2024-01-02T03:04:05Z","done":true}');
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
INSERT INTO events VALUES(1,'2026-11-29T23:07:21.067666Z','vm','fuse-a','01J0000000000000000000000A','provisioning','provisioning','{"v":1,"seq":1,"entity_type":"vm","entity_id":"fuse-a","uid":"01J0000000000000000000000A","type":"provisioning","state":"provisioning","at":"2026-11-29T23:07:21.067666Z"}');
INSERT INTO events VALUES(2,'2026-11-29T23:07:21.068281Z','vm','fuse-a','01J0000000000000000000000A','running','running','{"v":1,"seq":2,"entity_type":"vm","entity_id":"fuse-a","uid":"01J0000000000000000000000A","type":"running","state":"running","at":"2026-11-29T23:07:21.068281Z"}');
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('goose_db_version',2);
CREATE INDEX events_entity ON events (entity_id, seq);
CREATE INDEX events_uid ON events (uid, seq) WHERE uid <> '';
COMMIT;
