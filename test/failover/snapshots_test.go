package failover

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/cluster"
)

// midway are verbs on captures and standstills, each with how it shows that it is
// under way; SNAP stands for a snapshot of fuse-src. paused is whether fuse-src
// stands still before.
var midway = []struct {
	name, method, path string
	paused             bool
	state              string // of a snapshot
	activity           string // of fuse-src
}{
	{name: "take", method: http.MethodPost, path: "/v1/environments/fuse-src/snapshots", state: "creating"},
	{name: "restore", method: http.MethodPost, path: "/v1/snapshots/SNAP?action=restore", state: "restoring"},
	{name: "fork", method: http.MethodPost, path: "/v1/environments/fuse-src?action=fork", state: "creating"},
	{name: "pause", method: http.MethodPost, path: "/v1/environments/fuse-src?action=pause", activity: "pausing"},
	{name: "resume", method: http.MethodPost, path: "/v1/environments/fuse-src?action=resume", paused: true, activity: "resuming"},
}

// TestTakeoverInTheMiddleOfSnapshots kills or suspends the leader while a host
// takes, restores, forks, pauses or resumes for it. The next one brings each to an
// end: nothing stays on its way, the source runs, records and bytes agree, and the
// verb works through the new leader. One that was suspended changes nothing any more.
func TestTakeoverInTheMiddleOfSnapshots(t *testing.T) {
	const slow = "2s..2001ms"
	p, _, _ := onPostgres(t, "boot=1ms,snapshot="+slow+",restore="+slow+",fork="+slow+",pause="+slow+",resume="+slow)
	ask(t, p.leader, http.MethodPost, "/v1/environments", `{"task_id":"src","spec":{"cpus":1,"ram_mb":64,"storage_gb":1}}`)
	var snap gen.Snapshot
	call(t, p.leader, http.MethodPost, "/v1/environments/fuse-src/snapshots").JSON(t, &snap)
	for i, v := range midway {
		for j, how := range []string{"killed", "suspended"} {
			if testkit.Count(1, 2) == 1 && i%2 != j {
				continue
			}
			path := v.path
			if v.name == "restore" {
				path = "/v1/snapshots/" + snap.ID + "?action=restore"
			}
			answered := make(chan int, 1)
			begun := func() bool {
				if v.paused {
					call(t, p.leader, http.MethodPost, "/v1/environments/fuse-src?action=pause")
				}
				go func(s *cluster.Server) {
					a, err := s.Do(v.method, path, "")
					if err != nil {
						a.Status = 0
					}
					answered <- a.Status
				}(p.leader)
				p.leader.Eventually(time.Minute, v.name+" is under way", func() bool {
					envs, snaps := fleetOf(t, p.leader)
					return len(answered) > 0 ||
						slices.ContainsFunc(snaps, func(s gen.Snapshot) bool { return v.state != "" && s.State == v.state }) ||
						slices.ContainsFunc(envs, func(e gen.Environment) bool { return v.activity != "" && e.Activity == v.activity })
				})
				return len(answered) == 0
			}
			for try := 0; !begun(); try++ { // on a busy machine it may be over before it was seen
				if status := <-answered; status/100 != 2 || try == 5 {
					t.Fatalf("%s, %s: never seen under way; answered with %d", v.name, how, status)
				}
				if v.name == "pause" {
					call(t, p.leader, http.MethodPost, "/v1/environments/fuse-src?action=resume")
				}
				settles(t, p, v.name+", not seen under way")
			}
			old := p.leader
			if how == "killed" {
				old.Kill()
			} else {
				old.Freeze()
			}
			p.other.WaitReady()
			if how == "killed" {
				p.leader, p.other = p.other, old.Again()
			} else {
				p.leader, p.other = p.other, old
				old.Thaw()
			}
			p.other.WaitStandby()
			if status := <-answered; status/100 == 2 {
				t.Errorf("%s, %s: answered with %d", v.name, how, status)
			}
			settles(t, p, fmt.Sprintf("%s, %s", v.name, how))
		}
	}
	for _, v := range midway { // all of it works
		if !v.paused && v.name != "restore" {
			call(t, p.leader, v.method, v.path)
		}
	}
}

func call(t *testing.T, s *cluster.Server, method, path string) cluster.Answer {
	t.Helper()
	return ask(t, s, method, path, "")
}

// ask is a call with a body. On a busy machine the lead may change meanwhile: it is
// made again then.
func ask(t *testing.T, s *cluster.Server, method, path, body string) (a cluster.Answer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s.Eventually(2*time.Minute, method+" "+path+" is served", func() bool {
		var err error
		if a, err = s.DoCtx(ctx, method, path, body); err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		return a.Status != http.StatusServiceUnavailable
	})
	if a.Status/100 != 2 {
		t.Fatalf("%s %s: %d %s", method, path, a.Status, a.Body)
	}
	return a
}

func fleetOf(t *testing.T, s *cluster.Server) ([]gen.Environment, []gen.Snapshot) {
	t.Helper()
	var envs gen.EnvironmentList
	var snaps gen.SnapshotList
	for path, into := range map[string]any{"/v1/environments?limit=200": &envs, "/v1/snapshots?limit=200": &snaps} {
		if a, err := s.Do(http.MethodGet, path, ""); err == nil && a.Status == http.StatusOK {
			if err := json.Unmarshal([]byte(a.Body), into); err != nil {
				t.Fatal(err)
			}
		}
	}
	return envs.Environments, snaps.Snapshots
}

// settles is that everything runs, snapshots are ready, none is kept for forks
// that are not there, and the host keeps what the records say.
func settles(t *testing.T, p *pair, what string) {
	t.Helper()
	p.leader.Eventually(3*time.Minute, what+": all is settled", func() bool {
		envs, snaps := fleetOf(t, p.leader)
		seeds := map[string]bool{}
		for _, e := range envs {
			if e.State != "running" || e.Activity != "" {
				return false
			}
			seeds[e.SeedSnapshotID] = true
		}
		var ids []string
		for _, s := range snaps {
			if s.State != "ready" || s.Ephemeral && !seeds[s.ID] {
				return false
			}
			ids = append(ids, s.ID)
		}
		slices.Sort(ids)
		return len(envs) == len(dirs(t, p.host, "vms")) && slices.Equal(ids, dirs(t, p.host, "snapshots"))
	})
	ask(t, p.leader, http.MethodPost, "/v1/environments/fuse-src?action=exec", `{"cmd":["true"]}`)
}

func dirs(t *testing.T, h *cluster.Host, name string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(h.Dir, "host", name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	slices.Sort(out)
	return out
}
