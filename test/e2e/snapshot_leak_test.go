package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/thaw"
	"github.com/fusevm/fuse/internal/testkit"
)

// weather is a server and the host agent of this machine, each a process that is
// killed now and then, and what random users do with captures there.
type weather struct {
	t            *testing.T
	dir          string
	registry     string
	server, host *daemon
	api          client.Snapshots
	rnd          *rand.Rand
	made         int
	log          []string
}

const (
	weatherVMs   = 3 // at most, and as many snapshots
	settleWithin = 4 * time.Minute
)

// TestNothingLeaksOfCaptures lets random users take, restore, fork, pause and
// delete real machines while server, host agent and processes of machines are
// killed. In the end records and host agree, every machine that is listed runs, and
// once all is removed the host has what it had before.
func TestNothingLeaksOfCaptures(t *testing.T) {
	t.Parallel()
	dir := machineDir(t)
	owns(t, dir)
	before := hostObjects(t)
	seed := uint64(time.Now().UnixNano())
	w := &weather{t: t, dir: dir, rnd: rand.New(rand.NewPCG(seed, 0))}
	t.Cleanup(func() { t.Logf("seed %d:\n%s", seed, strings.Join(w.log, "\n")) })
	w.start()
	for range testkit.Count(20, 200) {
		w.step()
		if t.Failed() {
			break
		}
	}
	w.removeAll()
	w.host.stop()
	w.server.stop()
	sameObjects(t, before)
}

// start brings up what does not run.
func (w *weather) start() {
	w.t.Helper()
	if w.host == nil {
		w.host = start(w.t, bins.fuse, w.dir, nil, "hostd", "--data-dir", w.dir, "--listen", "unix://"+filepath.Join(w.dir, "h.sock"),
			"--token", "a-token-for-tests-0123456789", "--host-cpus", "8", "--host-ram-mb", "8192", "--golden-disk-gb", "0")
		w.await(w.host, "host agent at ")
		registry, err := hostd.RegistryID(filepath.Join(w.dir, "host"))
		if err != nil {
			w.t.Fatal(err)
		}
		w.registry = registry
	}
	if w.server == nil {
		w.server = start(w.t, bins.fuse, w.dir, nil, "server", "--data-dir", filepath.Join(w.dir, "server"), "--listen", "127.0.0.1:0",
			"--auth-token", "weather", "--reconcile-interval", "1s", "--lease", "2s")
		url, _, _ := strings.Cut(w.await(w.server, "serving "), ",")
		api, err := client.New(url, client.Options{Token: "weather"})
		if err != nil {
			w.t.Fatal(err)
		}
		w.api.API = api
		register := gen.RegisterHost{ID: "local", URL: "unix://" + filepath.Join(w.dir, "h.sock"), Token: "a-token-for-tests-0123456789"}
		testkit.Eventually(w.t, settleWithin, "the host is registered", func() bool {
			_, err := w.api.API.RegisterHost(w.t.Context(), register)
			return err == nil
		})
	}
}

// await waits for a line of a process.
func (w *weather) await(d *daemon, prefix string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), settleWithin)
	defer cancel()
	rest, ok := d.out.line(ctx, prefix)
	if !ok {
		w.t.Fatalf("no %q:\n%s", prefix, d.out)
	}
	return rest
}

// listed is what the server lists.
type listed struct {
	running, paused []gen.Environment
	snaps           []gen.Snapshot
	calm            bool // nothing is on its way
}

func (w *weather) look() (l listed, err error) {
	l.calm = true
	for env, err := range w.api.API.All(w.t.Context(), gen.ListEnvironmentsParams{}) {
		switch {
		case err != nil:
			return l, err
		case env.State != "running":
			l.calm = false
		case env.Activity == "paused":
			l.paused = append(l.paused, env)
		case env.Activity != "" || env.Unverified:
			l.calm = false
		default:
			l.running = append(l.running, env)
		}
	}
	snaps, err := w.api.List(w.t.Context(), gen.ListSnapshotsParams{})
	for _, s := range snaps.Snapshots {
		switch s.State {
		case "ready":
			l.snaps = append(l.snaps, s)
		case "error": // its bytes were lost; it can only be deleted
		default:
			l.calm = false
		}
	}
	return l, err
}

// settled waits until nothing is on its way and records and host agree.
func (w *weather) settled() (l listed) {
	w.t.Helper()
	why := ""
	defer func() {
		if w.t.Failed() {
			w.t.Logf("not settled: %s", why)
		}
	}()
	testkit.Eventually(w.t, settleWithin, "records and host agree", func() bool {
		var err error
		if l, err = w.look(); err != nil || !l.calm {
			why = fmt.Sprintf("%+v, %v", l, err)
			return false
		}
		why = w.disagree(l)
		return why == ""
	})
	return l
}

// disagree is what the host has and no record explains, or the other way round.
func (w *weather) disagree(l listed) string {
	uids := []string{}
	for _, env := range slices.Concat(l.running, l.paused) {
		uids = append(uids, env.UID)
	}
	if has := hostVMs(w.t, w.dir); !same(has, uids) {
		return fmt.Sprintf("the host has machines %v, listed are %v", has, uids)
	}
	all, err := w.api.List(w.t.Context(), gen.ListSnapshotsParams{})
	if err != nil {
		return err.Error()
	}
	ids := []string{}
	for _, s := range all.Snapshots {
		if s.State == "ready" {
			ids = append(ids, s.ID)
		}
	}
	has := slices.DeleteFunc(artifacts(w.t, w.dir), func(id string) bool { // of a lost one there may be some left
		return slices.ContainsFunc(all.Snapshots, func(s gen.Snapshot) bool { return s.ID == id && s.State == "error" })
	})
	if !same(has, ids) {
		return fmt.Sprintf("the host has captures %v, listed are %v", has, ids)
	}
	for _, env := range l.running {
		res, err := w.api.API.Exec(w.t.Context(), env.ID, gen.ExecRequest{Cmd: []string{"cat", "/root/word"}})
		if err != nil || res.Stdout != "word\n" {
			return fmt.Sprintf("%s says %+v, %v", env.ID, res, err)
		}
	}
	running := 0
	for _, name := range w.processes() {
		if !strings.Contains(name, ".") { // of a capture or of its memory
			running++
		}
	}
	if running != len(l.running) {
		return fmt.Sprintf("%d machines have a process, %d run", running, len(l.running))
	}
	return ""
}

func same(a, b []string) bool {
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// processes are those of the host's registry, by pid.
func (w *weather) processes() map[int]string {
	w.t.Helper()
	found, err := proc.Named("fuse-" + w.registry + "-")
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

// step does something, and kills something meanwhile in every second case.
func (w *weather) step() {
	w.t.Helper()
	what, act := w.draw(w.settled())
	if w.rnd.IntN(2) == 0 {
		err := act()
		w.note("%s: %v", what, err)
		if !refusal(err) {
			w.t.Errorf("%s, with nothing killed: %v", what, err)
		}
		return
	}
	done := make(chan error, 1)
	go func() { done <- act() }()
	select {
	case err := <-done:
		w.note("%s ended before anything was killed: %v", what, err)
	case <-time.After(time.Duration(w.rnd.IntN(1500)) * time.Millisecond):
		victim := w.kill()
		w.note("%s killed during %s: %v", victim, what, <-done)
	}
	w.start()
}

func (w *weather) note(format string, args ...any) {
	w.log = append(w.log, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// refusal is that a call was answered as it should be, whatever else it is not.
func refusal(err error) bool {
	var answer *client.Error
	if err == nil || !errors.As(err, &answer) {
		return err == nil
	}
	switch answer.Status {
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout: // a busy machine takes too long
		return true
	}
	return answer.Status < 500 || slices.ContainsFunc(tooSlow, func(words string) bool { return strings.Contains(answer.Message, words) })
}

// tooSlow are the words with which a busy host says that a guest has not gone on in
// time, or not yet; what came of it is looked at after each step.
var tooSlow = []string{thaw.ErrLate.Error(), "is not known yet"}

// draw chooses what to do next.
func (w *weather) draw(l listed) (string, func() error) {
	ctx := w.t.Context()
	acts := map[string]func() error{}
	n := len(l.running) + len(l.paused)
	if n == 0 {
		return "create", func() error { return w.create(ctx) }
	}
	if n < weatherVMs {
		acts["create"] = func() error { return w.create(ctx) }
	}
	if len(l.snaps) > 0 {
		s := l.snaps[w.rnd.IntN(len(l.snaps))]
		acts["delete "+s.ID] = func() error { return w.api.Remove(ctx, s.ID) }
	}
	// One whose environment has ended can only be deleted, or begun with.
	usable := slices.DeleteFunc(slices.Clone(l.snaps), func(s gen.Snapshot) bool {
		return !slices.ContainsFunc(slices.Concat(l.running, l.paused), func(e gen.Environment) bool { return e.ID == s.VMID })
	})
	if len(usable) > 0 {
		s := usable[w.rnd.IntN(len(usable))]
		acts["restore "+s.ID] = func() error { return w.api.Restore(ctx, s.ID) }
		if n < weatherVMs {
			acts["fork of "+s.ID] = func() error {
				_, err := w.api.Fork(ctx, s.VMID, gen.ForkEnvironment{ReuseSnapshotID: s.ID, Live: s.Kind == "live"})
				return err
			}
		}
	}
	if len(l.running) > 0 {
		env := l.running[w.rnd.IntN(len(l.running))]
		if len(l.snaps) < weatherVMs {
			for _, live := range []bool{true, false} {
				acts[fmt.Sprintf("snapshot of %s, live %v", env.ID, live)] = func() error {
					_, err := w.api.Take(ctx, env.ID, gen.CreateSnapshot{Live: live})
					return err
				}
			}
		}
		if n < weatherVMs {
			acts["live fork of "+env.ID] = func() error {
				_, err := w.api.Fork(ctx, env.ID, gen.ForkEnvironment{Live: true})
				return err
			}
		}
		acts["pause of "+env.ID] = func() error { _, err := w.api.Pause(ctx, env.ID); return err }
		if n > 1 {
			acts["destroy of "+env.ID] = func() error { _, err := w.api.API.Destroy(ctx, env.ID); return err }
		}
	}
	if len(l.paused) > 0 {
		env := l.paused[w.rnd.IntN(len(l.paused))]
		acts["resume of "+env.ID] = func() error { _, err := w.api.Resume(ctx, env.ID); return err }
	}
	names := []string{}
	for name := range acts {
		names = append(names, name)
	}
	slices.Sort(names)
	name := names[w.rnd.IntN(len(names))]
	return name, acts[name]
}

func (w *weather) create(ctx context.Context) error {
	w.made++
	_, err := w.api.API.Create(ctx, gen.CreateEnvironment{
		TaskID: fmt.Sprint("w", w.made), StartupScript: "echo word > /root/word; sync", Spec: gen.Spec{CPUs: 1, RAMMB: 128, StorageGB: 1},
	}, client.CreateOptions{})
	return err
}

// kill ends the server, the host agent, or some process of a machine.
func (w *weather) kill() string {
	switch w.rnd.IntN(3) {
	case 0:
		w.server.kill()
		w.server = nil
		return "the server"
	case 1:
		w.host.kill()
		w.host = nil
		return "the host agent"
	}
	found := w.processes()
	pids := []int{}
	for pid := range found {
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return "nothing"
	}
	slices.Sort(pids)
	pid := pids[w.rnd.IntN(len(pids))]
	_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	return "the process of " + found[pid]
}

// removeAll removes everything, and holds the host agent's descriptors against
// those of one that has just been started.
func (w *weather) removeAll() {
	w.t.Helper()
	l := w.settled()
	w.note("in the end: %d run, %d are paused, %d snapshots", len(l.running), len(l.paused), len(l.snaps))
	testkit.Eventually(w.t, settleWithin, "all of it can be removed", func() bool {
		l, err := w.look()
		if err != nil {
			return false
		}
		for _, env := range slices.Concat(l.running, l.paused) {
			_, _ = w.api.API.Destroy(w.t.Context(), env.ID) // again
		}
		all, err := w.api.List(w.t.Context(), gen.ListSnapshotsParams{})
		for _, s := range all.Snapshots {
			_ = w.api.Remove(w.t.Context(), s.ID) // those that others build on go later
		}
		return err == nil && l.calm && len(l.running)+len(l.paused)+len(all.Snapshots) == 0 &&
			len(hostVMs(w.t, w.dir))+len(artifacts(w.t, w.dir))+len(w.processes()) == 0
	})
	h, err := w.api.API.Host(w.t.Context(), "local")
	if err != nil || h.Allocated.VMCount != 0 || h.Allocated.CPUs != 0 || h.Allocated.RAMMB != 0 {
		w.t.Errorf("the host's books say %+v, %v", h.Allocated, err)
	}
	used := w.descriptors()
	w.host.stop()
	w.host = nil
	w.start()
	testkit.Eventually(w.t, settleWithin, "the host agent is looked at again", func() bool {
		h, err := w.api.API.Host(w.t.Context(), "local")
		return err == nil && (h.Reachable == nil || *h.Reachable) && h.Misses == 0
	})
	if fresh := w.descriptors(); len(used) > len(fresh)+2 { // connections come and go
		w.t.Errorf("the host agent has descriptors %v, a new one %v", used, fresh)
	}
}

// descriptors are what the host agent has open, but for the runtime's own.
func (w *weather) descriptors() (out []string) {
	w.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", w.host.cmd.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil && !strings.HasPrefix(to, "anon_inode:[event") {
			out = append(out, to)
		}
		if strings.Contains(to, "memfd:") {
			w.t.Errorf("the host agent holds %s", to)
		}
	}
	return out
}
