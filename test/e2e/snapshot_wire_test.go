package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestSnapshotWire holds the routes of snapshots, forks and standstills against the
// public wire: statuses, codes, names of states and kinds, and who sees what.
func TestSnapshotWire(t *testing.T) {
	d := dev(t, bins.fuse, t.TempDir(), nil, "--driver", "sim", "--host-cpus", "3", "--reconcile-interval", "1s")
	const env = "/v1/environments/"
	call := func(status int, code, method, path, body string, header ...string) map[string]any {
		t.Helper()
		a, err := d.http(method, path, body, header...)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if e, ok := a.body["error"].(map[string]any); ok {
			got, _ = e["code"].(string)
		}
		if a.status != status || got != code {
			t.Errorf("%s %s %s: %d %q, want %d %q: %s", method, path, body, a.status, got, status, code, a.raw)
		}
		return a.body
	}
	str := func(m map[string]any, k string) string { s, _ := m[k].(string); return s }
	ids := func(query string, header ...string) (out []string) {
		t.Helper()
		list, _ := call(200, "", "GET", "/v1/snapshots"+query, "", header...)["snapshots"].([]any)
		for _, s := range list {
			out = append(out, str(s.(map[string]any), "id"))
		}
		return out
	}
	if err := d.create("a"); err != nil {
		t.Fatal(err)
	}

	disk := call(201, "", "POST", env+"fuse-a/snapshots", `{"comment":"c","mode":"auto","retention_seconds":3600,"metadata":{"name":"n1"},"export_ref":"s3://b/k","layer_key":""}`)
	live := call(201, "", "POST", env+"fuse-a/snapshots", `{"live":true}`)
	first, second := str(disk, "id"), str(live, "id")
	for k, want := range map[string]any{
		"vm_id": "fuse-a", "task_id": "a", "tenant_id": "a", "mode": "auto", "state": "ready", "kind": "disk", "comment": "c", "name": "n1", "arch": "amd64", "export_ref": "s3://b/k",
	} {
		if disk[k] != want {
			t.Errorf("%s is %v, want %v", k, disk[k], want)
		}
	}
	for _, k := range []string{"id", "digest", "size_bytes", "created_at", "updated_at", "retention_until", "exports"} {
		if disk[k] == nil {
			t.Errorf("%s is missing in %v", k, disk)
		}
	}
	if exports, _ := disk["exports"].([]any); len(exports) != 1 || str(exports[0].(map[string]any), "status") != "pending" {
		t.Errorf("exports %v", disk["exports"])
	}
	if live["kind"] != "live" || live["mode"] != "manual" || live["parent_snapshot_id"] != first || live["retention_until"] != nil {
		t.Errorf("live %v", live)
	}

	if got := ids(""); len(got) != 2 || got[0] != second {
		t.Errorf("not the newest first: %v", got)
	}
	for query, n := range map[string]int{
		"?vm_id=fuse-a": 2, "?vm_id=x": 0, "?task_id=a": 2, "?tenant_id=a": 2, "?tenant_id=b": 0, "?state=ready": 2, "?state=nonsense": 0, "?mode=auto": 1, "?name=n1": 1,
		"?arch=x86_64": 2, "?arch=arm64": 0, "?layer_key=k": 0, "?limit=1": 1, "?limit=nonsense": 2,
	} {
		if got := ids(query); len(got) != n {
			t.Errorf("%s: %v, want %d", query, got, n)
		}
	}
	page := call(200, "", "GET", "/v1/snapshots?limit=1", "")
	if got := ids("?cursor=" + str(page, "next_cursor")); len(got) != 1 || got[0] != first {
		t.Errorf("the second page: %v", got)
	}
	call(400, "invalid_argument", "GET", "/v1/snapshots?cursor=rubbish", "")
	call(200, "", "GET", "/v1/snapshots/"+first, "")
	call(404, "not_found", "GET", "/v1/snapshots/snap-none", "")
	call(400, "invalid_argument", "GET", "/v1/snapshots/resolve?layer_key=k", "")
	if got := call(200, "", "GET", "/v1/snapshots/resolve?layer_key=k&arch=amd64", ""); got["found"] != false || got["snapshot"] != nil {
		t.Errorf("resolve %v", got)
	}

	call(404, "not_found", "POST", env+"fuse-none/snapshots", `{}`)
	call(400, "invalid_argument", "POST", env+"fuse-a/snapshots", `{"retention_seconds":-1}`)
	call(400, "invalid_argument", "POST", env+"fuse-a/snapshots", `{"retention_seconds":9223372036854775807}`)
	call(400, "invalid_argument", "POST", env+"fuse-a/snapshots", `{"mode":"a b"}`)
	call(409, "conflict", "DELETE", "/v1/snapshots/"+first, "") // it has a child
	call(400, "invalid_argument", "POST", "/v1/snapshots/"+first, "")
	call(400, "invalid_argument", "POST", "/v1/snapshots/"+first+"?action=nonsense", "")
	call(404, "not_found", "POST", "/v1/snapshots/snap-none?action=restore", "")
	call(204, "", "POST", "/v1/snapshots/"+first+"?action=restore", "")
	call(204, "", "POST", "/v1/snapshots/"+second+"?action=restore", "")

	call(409, "conflict", "POST", env+"fuse-a?action=fork", fmt.Sprintf(`{"reuse_snapshot_id":%q}`, second)) // live, asked for as disk
	call(404, "not_found", "POST", env+"fuse-a?action=fork", `{"reuse_snapshot_id":"snap-none"}`)
	call(400, "invalid_argument", "POST", env+"fuse-a?action=fork", `{"count":65}`)
	call(400, "invalid_argument", "POST", env+"fuse-a?action=fork", `{"count":-1}`)
	one := call(201, "", "POST", env+"fuse-a?action=fork", fmt.Sprintf(`{"reuse_snapshot_id":%q,"comment":"c"}`, first))
	if str(one, "state") != "running" || !strings.HasPrefix(str(one, "id"), "fuse-fork-") || str(one, "seed_snapshot_id") != first {
		t.Errorf("fork %v", one)
	}
	many := call(201, "", "POST", env+"fuse-a?action=fork", `{"count":3,"live":true}`)
	made, _ := many["environments"].([]any)
	failed, _ := many["failures"].([]any)
	if len(made) != 1 || len(failed) != 2 || !strings.Contains(fmt.Sprint(failed[0]), "the source's host local is full: 1 cpus needed, 0 of 3 free") ||
		!strings.Contains(fmt.Sprint(failed[0]), "--cpu-overcommit") || !strings.Contains(fmt.Sprint(failed[0]), "fork fewer") {
		t.Errorf("forks %v", many)
	}
	if o := d.fuse("fork", "fuse-a"); o.code == 0 || !strings.Contains(o.err, "the source's host local is full") || !strings.Contains(o.err, "--cpu-overcommit") {
		t.Errorf("a fork on a full host: %+v", o)
	}
	call(503, "unavailable", "POST", env+"fuse-a?action=fork", ``)
	call(409, "conflict", "DELETE", "/v1/snapshots/"+first, "") // in use

	key := call(201, "", "POST", "/v1/api-keys", `{"label":"bob","role":"user"}`)
	bob := []string{"Authorization", "Bearer " + str(key, "key")}
	if got := ids("", bob...); len(got) != 0 {
		t.Errorf("a stranger sees %v", got)
	}
	for _, c := range [][3]string{
		{"GET", "/v1/snapshots/" + first}, {"DELETE", "/v1/snapshots/" + first}, {"POST", "/v1/snapshots/" + first + "?action=restore"},
		{"POST", env + "fuse-a/snapshots"}, {"POST", env + "fuse-a?action=fork"}, {"POST", env + "fuse-a?action=pause"}, {"POST", env + "fuse-a?action=resume"},
		{"POST", "/v1/environments", `{"task_id":"stolen","seed_snapshot_id":"` + first + `","spec":{"cpus":1,"ram_mb":64,"storage_gb":1}}`},
	} {
		call(404, "not_found", c[0], c[1], c[2], bob...)
	}

	// The memory of one that stands still is taken meanwhile.
	if got := call(200, "", "POST", env+"fuse-a?action=pause", ""); got["state"] != "running" || got["activity"] != "paused" {
		t.Errorf("paused %v", got)
	}
	if err := d.create("b"); err != nil {
		t.Error(err)
	}
	call(409, "conflict", "POST", env+"fuse-a/snapshots", `{}`)
	call(409, "conflict", "POST", "/v1/snapshots/"+first+"?action=restore", "")
	for _, action := range []string{"resume", "exec"} {
		a, err := d.http("POST", env+"fuse-a?action="+action, `{"cmd":["true"]}`)
		if err != nil || a.status != http.StatusServiceUnavailable || !strings.Contains(a.raw, "which has the memory of the paused environment, is full: 1 cpus needed") {
			t.Errorf("%s on a full host: %v %d %s", action, err, a.status, a.raw)
		}
	}
	call(204, "", "DELETE", env+"fuse-b", "")
	if got := call(200, "", "POST", env+"fuse-a?action=resume", ""); got["activity"] != nil {
		t.Errorf("resumed %v", got)
	}

	// Snapshots outlive their environment, and can be deleted after it.
	call(204, "", "DELETE", env+"fuse-a", "")
	call(404, "not_found", "POST", "/v1/snapshots/"+second+"?action=restore", "")
	call(204, "", "DELETE", "/v1/snapshots/"+second, "")
	call(404, "not_found", "DELETE", "/v1/snapshots/"+second, "")
	d.must("rm", str(one, "id"), str(made[0].(map[string]any), "id"))
	call(204, "", "DELETE", "/v1/snapshots/"+first, "")
	d.gone(time.Minute)
}
