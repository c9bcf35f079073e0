package life_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/rescan"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
	guard "github.com/fusevm/fuse/test/playguard/rig"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// rig is the whole of Playguard in one process, before a real sshd and dockerd.
type rig struct {
	*service.Service
	t      *testing.T
	store  *state.Store
	ssh    *sshdtest.Server
	docker *dockertest.Daemon
	loop   *loop.Loop
	hosts  *reach.Hosts

	scanner *rescan.Scanner
}

func newRig(t *testing.T, f guard.Flavour) *rig {
	t.Helper()
	d := dockertest.Start(t)
	guard.Guard(t, d, filepath.Join(d.Dir, "opt", "fuse"))
	s := sshdtest.Start(t, guard.Sessions(t, d, f, filepath.Join(d.Dir, "sessions")))
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	key, err := secrets.ParseKey(strings.Repeat("5a", 32))
	if err != nil {
		t.Fatal(err)
	}
	sealer, policy, inst := secrets.NewSealer(key), model.DefaultPolicy(), records.Installation(store.FleetID())
	policy.HealthInterval = 300 * time.Millisecond
	policy.StrikeGap = time.Second
	hosts := &reach.Hosts{Pool: sshx.NewPool(sshx.Timeouts{}), Sealer: sealer, Installation: inst}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	l := loop.New(loop.Config{
		Store: store, Policy: policy, Logger: log, Drop: hosts.Drop, Host: func(m records.Marquee) work.Host { return hosts.Host(m) },
		Worker: work.New(work.Config{
			Store: store, Sealer: sealer, Installation: inst, Policy: policy, Logger: log,
			Lease: func() (time.Duration, error) { return time.Hour, nil },
		}),
	})
	svc, err := service.New(service.Config{Store: store, Sealer: sealer, Loop: l, Hosts: hosts, Installation: inst, Policy: policy, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		hosts.Pool.Close()
		if err := store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r := &rig{svc, t, store, s, d, l, hosts, rescan.New(rescan.Config{Store: store, Sealer: sealer, Loop: l, Hosts: hosts, Installation: inst})}
	testkit.Eventually(t, time.Minute, "the loop runs", func() bool {
		_, err := l.Check(t.Context(), "none")
		return err != nil
	})
	return r
}

func (r *rig) add() service.Marquee {
	r.t.Helper()
	req := service.NewMarquee{
		Name: "box", Hop: service.Hop{Address: r.ssh.Address, User: r.ssh.User}, Key: r.ssh.Key, Root: filepath.Join(r.docker.Dir, "opt", "fuse"),
	}
	_, err := r.AddMarquee(r.t.Context(), req)
	var refused *fleet.Error
	if fleet.CodeOf(err) != fleet.CodeConflict {
		r.t.Fatalf("an unconfirmed host key: %v", err)
	}
	if refused, _ = err.(*fleet.Error); refused == nil || refused.Details["host_key"] != r.ssh.HostKey { //nolint:errorlint // the outermost is meant
		r.t.Fatalf("details %v, want host key %s", refused, r.ssh.HostKey)
	}
	req.HostKey = refused.Details["host_key"]
	m, err := r.AddMarquee(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// forgetAndAdopt loses the record of a playground that runs, and takes it back
// from what lies on the host. Nothing there is touched.
func (r *rig) forgetAndAdopt(p service.Playground) {
	r.t.Helper()
	before, err := r.docker.Docker("ps", "-q", "--no-trunc")
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.Forget(r.t.Context(), "shop"); err != nil {
		r.t.Fatal(err)
	}
	testkit.Eventually(r.t, 3*time.Minute, "it is an orphan", func() bool {
		if check, err := r.CheckMarquee(r.t.Context(), "box"); err != nil || !check.OK {
			return false
		}
		m, err := r.Marquee(r.t.Context(), "box")
		return err == nil && len(m.Orphans) == 1 && m.Orphans[0].Project == p.Project
	})
	other := records.Playground{Name: "shop", Owner: p.Owner, Playground: model.Playground{ID: "other", Marquee: "elsewhere", State: model.StateStopped}}
	r.update(func(tx *state.Tx) error { return records.PutPlayground(tx, other) })
	if _, err := r.scanner.Adopt(r.t.Context(), "box", p.Project, "shop"); fleet.CodeOf(err) != fleet.CodeConflict {
		r.t.Errorf("adopted under a name that is taken: %v", err)
	}
	r.update(func(tx *state.Tx) error { return records.DeletePlayground(tx, other.ID) })
	id, err := r.scanner.Adopt(r.t.Context(), "box", p.Project, "shop")
	if err != nil {
		r.t.Fatal(err)
	}
	q, err := r.Playground(r.t.Context(), string(id))
	if err != nil {
		r.t.Fatal(err)
	}
	claimed := func() (is bool) {
		r.update(func(tx *state.Tx) error {
			p, _ := records.Playgrounds.Get(tx, string(id))
			is = p != nil && p.Claimed
			return nil
		})
		return is
	}
	if !claimed() {
		r.t.Error("its marker is taken for proof of whose it is")
	}
	if !q.KeepVolumes {
		r.t.Error("nobody knows what was to become of its volumes, and a destroy would remove them")
	}
	if q.ID != p.ID || q.State != model.StateRunning || q.Applied != p.Applied || len(q.Services) != 1 || q.Services[0] != p.Services[0] || len(q.Volumes) != 1 {
		r.t.Errorf("adopted %+v\nwas     %+v", q, p)
	}
	testkit.Eventually(r.t, 3*time.Minute, "a look shows what was adopted", func() bool { // one that came to its directory in time
		check, err := r.CheckMarquee(r.t.Context(), "box")
		d := r.loop.Decisions(q.ID)
		return err == nil && check.OK && len(d) > 0 && d[0].Step.Act != decide.Act(decide.Refuse{Guard: decide.GuardPartial})
	})
	if d := r.loop.Decisions(q.ID); d[0].Step.Does() != "keep" && d[0].Step.Rule != "note.sight" {
		r.t.Errorf("what was adopted is not at rest: %+v", d)
	}
	if after, _ := r.docker.Docker("ps", "-q", "--no-trunc"); after != before {
		r.t.Errorf("containers %s, were %s", after, before)
	}
}

// asideAndLost has the host set a playground aside as a sweep does, whose records
// are then lost: a rescan knows it again, and its directory can be brought back.
func (r *rig) asideAndLost(p service.Playground) {
	r.t.Helper()
	if err := r.Forget(r.t.Context(), "shop"); err != nil {
		r.t.Fatal(err)
	}
	var row records.Marquee
	r.update(func(tx *state.Tx) error {
		row = *slices.Collect(maps.Values(maps.Collect(records.Marquees.All(tx))))[0]
		return nil
	})
	host := r.hosts.Host(row)
	op := func(id string, op decide.Op) {
		r.t.Helper()
		if err := host.Start(r.t.Context(), runner.Request{Op: id, Epoch: row.Term.Epoch, Project: p.Project, Playground: p.ID, Verb: decide.VerbOf(op), Limit: time.Minute}); err != nil {
			r.t.Fatal(err)
		}
		testkit.Eventually(r.t, 3*time.Minute, id+" ends well", func() bool {
			pr, err := host.Poll(r.t.Context(), id)
			return err == nil && pr.Known && !pr.Running && !pr.Lost && pr.Status == 0
		})
	}
	op("sweep1", decide.Sweep{})
	report, err := r.scanner.Rescan(r.t.Context(), "box", rescan.Request{Adopt: true})
	if err != nil || len(report.Aside) != 1 || report.Aside[0].Project != p.Project || report.Aside[0].Last != "up" || report.Aside[0].Age > 5*time.Minute {
		r.t.Fatalf("%+v %v", report, err)
	}
	r.update(func(tx *state.Tx) error {
		m, _ := records.Marquees.Get(tx, string(row.ID))
		if a := m.Sweep.Aside; len(a) != 1 || a[0].Project != p.Project || a[0].Found.IsZero() {
			r.t.Errorf("%+v", a)
		}
		q := *m
		q.Sweep = model.Sweep{}
		return records.PutMarquee(tx, q)
	})
	op("restore1", decide.Restore{})
	if _, err := os.Stat(filepath.Join(row.Root, "playgrounds", p.Project.String(), ".fuse", "aside")); !os.IsNotExist(err) {
		r.t.Errorf("what was brought back says that it is set aside: %v", err)
	}
	if _, err := r.scanner.Adopt(r.t.Context(), "box", p.Project, "shop"); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) update(fn func(tx *state.Tx) error) {
	r.t.Helper()
	if _, err := r.store.Update(r.t.Context(), fn); err != nil {
		r.t.Fatal(err)
	}
}

// composed selects what Compose made.
const composed = "label=com.docker.compose.config-hash"

const stays = `trap "exit 0" TERM; sleep 100000 & wait`

func app(image, command string) service.UpRequest {
	file := "services:\n  web:\n    image: " + image + "\n    command: [sh, -c, '" + command + "']\n    network_mode: none\n    volumes: ['data:/tmp', './conf:/conf']\nvolumes:\n  data:\n"
	return service.UpRequest{Name: "shop", Files: []service.File{{Path: "compose.yml", Data: []byte(file)}, {Path: "conf/greeting", Data: []byte("hello ${NOT_HERE}\n")}}}
}

func (r *rig) wait(id model.PlaygroundID, want model.State) service.Playground {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 4*time.Minute)
	defer cancel()
	p, err := r.Wait(ctx, string(id))
	if err != nil || p.State != want {
		e, _ := r.Explain(r.t.Context(), string(id)) // only for the message
		r.t.Fatalf("state %s, want %s: %v\n%+v\n%+v", p.State, want, err, p, e)
	}
	return p
}

// The way of a playground from nothing to nothing, by Compose v1, and a bad
// definition that leaves the one before at work.
func TestALifeOnARealHost(t *testing.T) {
	t.Parallel()
	r := newRig(t, guard.V1)
	r.add()
	check, err := r.CheckMarquee(t.Context(), "box")
	if err != nil || !check.OK || len(check.Points) != 7 {
		t.Fatalf("%+v %v", check, err)
	}
	plan, err := r.Plan(t.Context(), app(dockertest.Image, stays))
	if err != nil || !plan.New || len(plan.Changes) != 3 {
		t.Fatalf("%+v %v", plan, err)
	}
	req := app(dockertest.Image, stays)
	req.Plan = plan.Token
	p, err := r.Up(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	p = r.wait(p.ID, model.StateRunning)
	first := p.Applied
	var out, errs bytes.Buffer
	status, err := r.Exec(t.Context(), "shop", service.ExecRequest{
		Service: "web", Command: []string{"sh", "-c", "cat /conf/greeting; echo $WHO; cat; exit 7"}, Env: map[string]string{"WHO": "it's me"},
		Stdin: []byte("in\n"), Stdout: &out, Stderr: &errs,
	})
	if err != nil || status != 7 || out.String() != "hello ${NOT_HERE}\nit's me\nin\n" {
		t.Errorf("exec: %d %v %q %q", status, err, out.String(), errs.String())
	}
	before, err := r.docker.Docker("ps", "-q", "--no-trunc")
	if err != nil {
		t.Fatal(err)
	}

	// An image that nobody has: nothing of the old is touched.
	if _, err := r.Up(t.Context(), app("no.such.registry.invalid/x:1", stays)); err != nil {
		t.Fatal(err)
	}
	p = r.wait(p.ID, model.StateRunning)
	if p.LastRollout == nil || p.LastRollout.Result != "failed" || p.Desired != first {
		t.Errorf("after a bad image: %+v", p)
	}
	if after, _ := r.docker.Docker("ps", "-q", "--no-trunc"); after != before {
		t.Errorf("containers %s, were %s", after, before)
	}
	// A program that fails: the one before comes back.
	if _, err := r.Up(t.Context(), app(dockertest.Image, "exit 3")); err != nil {
		t.Fatal(err)
	}
	p = r.wait(p.ID, model.StateRunning)
	if p.LastRollout == nil || p.LastRollout.Result != "failed" || p.LastRollout.Failure.Category != model.CategoryServiceExit || p.Desired != first {
		t.Errorf("after a bad program: %+v %+v", p, p.LastRollout)
	}

	if _, err := r.Act(t.Context(), "shop", service.ActionRequest{Action: model.ActionStop}); err != nil {
		t.Fatal(err)
	}
	r.wait(p.ID, model.StateStopped)
	if _, err := r.Act(t.Context(), "shop", service.ActionRequest{Action: model.ActionStart}); err != nil {
		t.Fatal(err)
	}
	r.wait(p.ID, model.StateRunning)
	out.Reset()
	if err := r.Logs(t.Context(), "shop", service.LogsRequest{Tail: 10}, &out); err != nil {
		t.Error(err)
	}
	e, err := r.Explain(t.Context(), "shop")
	if err != nil || e.Look == nil || len(e.Next) == 0 {
		t.Errorf("%+v %v", e, err)
	}
	r.forgetAndAdopt(p)
	r.asideAndLost(p)
	keep := false
	if _, err := r.Act(t.Context(), "shop", service.ActionRequest{Action: model.ActionDestroy, KeepVolumes: &keep}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 4*time.Minute, "nothing is left of it", func() bool {
		_, err := r.Playground(t.Context(), "shop")
		return fleet.CodeOf(err) == fleet.CodeNotFound
	})
	left, err := r.docker.Docker("ps", "-aq", "--filter", composed)
	vols, verr := r.docker.Docker("volume", "ls", "-q", "--filter", "label=com.docker.compose.volume")
	if err != nil || verr != nil || left != "" || vols != "" {
		t.Errorf("left: %q %q %v %v", left, vols, err, verr)
	}
	if err := r.RemoveMarquee(t.Context(), "box", false); err != nil {
		t.Error(err)
	}
}

// An up that waits for something that never comes does not hold up who wants the
// playground gone.
func TestADestroyEndsAnUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, guard.V2)
	r.add()
	file := "services:\n  db:\n    image: " + dockertest.Image + "\n    command: [sh, -c, '" + stays + "']\n    network_mode: none\n" +
		"    healthcheck: {test: [CMD, 'false'], interval: 1s, retries: 1000}\n" +
		"  web:\n    image: " + dockertest.Image + "\n    command: [sh, -c, '" + stays + "']\n    network_mode: none\n    depends_on: {db: {condition: service_healthy}}\n"
	p, err := r.Up(t.Context(), service.UpRequest{Name: "shop", Files: []service.File{{Path: "compose.yml", Data: []byte(file)}}})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 3*time.Minute, "up waits for the health of db", func() bool {
		out, err := r.docker.Docker("ps", "-q", "--filter", "label=com.docker.compose.service=db", "--filter", "health=starting")
		return err == nil && out != ""
	})
	if _, err := r.Act(t.Context(), "shop", service.ActionRequest{Action: model.ActionDestroy}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, model.DefaultPolicy().UpTimeout, "it is gone before the up's own limit and its container's end", func() bool {
		_, err := r.Playground(t.Context(), string(p.ID))
		return fleet.CodeOf(err) == fleet.CodeNotFound
	})
	if left, err := r.docker.Docker("ps", "-aq", "--filter", composed); err != nil || left != "" {
		t.Errorf("left: %q %v", left, err)
	}
}
