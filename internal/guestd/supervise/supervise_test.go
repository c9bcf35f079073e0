package supervise

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestd/procs"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is a machine whose programs are functions of the run.
type world struct {
	mu       sync.Mutex
	files    map[string]string
	did      []string
	runs     map[string]int
	ill      map[string]bool
	deaf     map[string]bool // to TERM
	programs map[string]func(run int) (exit int, ends bool)
	sup      *Supervisor
}

type handle struct {
	w    *world
	name string
	sig  chan syscall.Signal
}

func (h handle) PID() int                  { return 7 }
func (h handle) Resize(process.Size) error { return nil }
func (h handle) Signal(sig syscall.Signal, _ bool) error {
	h.w.note("%s %s", sig, h.name)
	if sig == syscall.SIGKILL || !h.w.deaf[h.name] {
		h.sig <- sig
	}
	return nil
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.did = append(w.did, fmt.Sprintf(format, args...))
}

func (w *world) events() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.did
	w.did = nil
	return out
}

func (w *world) Run(ctx context.Context, spec fleet.ExecSpec, stdio process.IO, _ func(int)) (fleet.ExecStatus, error) {
	name := spec.Argv[0]
	w.mu.Lock()
	w.runs[name]++
	program, run := w.programs[name], w.runs[name]
	w.mu.Unlock()
	if program == nil {
		return fleet.ExecStatus{}, fleet.Errorf(fleet.CodeInvalidArgument, "no user")
	}
	h := handle{w, name, make(chan syscall.Signal, 4)}
	w.note("start %s", strings.Join(append(spec.Argv, spec.Env["X"]), " "))
	stdio.Started(h)
	if exit, ends := program(run); ends {
		return fleet.ExecStatus{ExitCode: exit}, nil
	}
	select {
	case sig := <-h.sig:
		w.note("end %s", name)
		return fleet.ExecStatus{ExitCode: 128 + int(sig)}, nil
	case <-ctx.Done():
		return fleet.ExecStatus{}, ctx.Err()
	}
}

func stays(int) (int, bool) { return 0, false }

// in runs f in a machine with that manifest.
func in(t *testing.T, manifest string, programs map[string]func(int) (int, bool), f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{files: map[string]string{fleet.GuestManifestPath: manifest, fleet.FuseSecretsPath: `{"key":"hidden"}`}, runs: map[string]int{}, ill: map[string]bool{}, deaf: map[string]bool{}, programs: programs}
		table := procs.New(procs.Config{Runner: w})
		w.sup = New(Config{
			Processes: table, Program: []string{"image"}, Log: slog.New(slog.DiscardHandler),
			Read: func(path string) ([]byte, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if doc, ok := w.files[path]; ok {
					return []byte(doc), nil
				}
				return nil, fs.ErrNotExist
			},
			Probe: func(_ context.Context, spec fleet.ExecSpec) (int, string, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if w.ill[spec.Argv[0]] {
					return 1, "ill", nil
				}
				return 0, "", nil
			},
		})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { w.sup.Run(ctx); close(done) }()
		synctest.Wait()
		f(t, w)
		cancel()
		table.Close()
		<-done
	})
}

func (w *world) status(name string) Status {
	for _, s := range w.sup.List() {
		if s.Name == name {
			return s
		}
	}
	return Status{}
}

func pass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

const three = `{"services":{
	"web":{"command":["web"],"depends_on":["app"]},
	"app":{"command":["app"],"env":{"X":{"secret":"key"}},"depends_on":{"db":{"condition":"healthy"}}},
	"db":{"command":["db"],"stop_grace":"5s","healthcheck":{"test":["ask-db"],"interval":"2s"}}}}`

func TestAGraphStartsInOrderAndStopsInReverse(t *testing.T) {
	in(t, three, map[string]func(int) (int, bool){"web": stays, "app": stays, "db": stays}, func(t *testing.T, w *world) {
		same(t, w.events(), "start db ", "start app hidden", "start web ")
		if s := w.status("db"); s.State != Running || s.Health != fleet.HealthPassing || s.Process != "svc-db.1" {
			t.Errorf("%+v", s)
		}
		w.mu.Lock()
		w.deaf["db"] = true
		w.mu.Unlock()
		begun := time.Now()
		if err := w.sup.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		same(t, w.events(), "terminated web", "end web", "terminated app", "end app", "terminated db", "killed db", "end db")
		if took := time.Since(begun); took != 5*time.Second {
			t.Errorf("the grace lasted %s", took)
		}
		for _, s := range w.sup.List() {
			if s.State != Stopped {
				t.Errorf("%+v", s)
			}
		}
		if s := w.status("web"); s.ExitCode != 143 {
			t.Errorf("%+v", s)
		}
		w.mu.Lock()
		w.files[fleet.GuestManifestPath] = `{"services":{"late":{"command":["web"]}}}`
		w.mu.Unlock()
		w.sup.Changed()
		pass(time.Minute)
		same(t, w.events())
	})
}

func TestADependencyIsAwaited(t *testing.T) {
	ill := strings.Replace(three, `"db":{`, `"db":{"restart":"no",`, 1)
	in(t, ill, map[string]func(int) (int, bool){"web": stays, "app": stays, "db": func(int) (int, bool) {
		return 0, false
	}}, func(t *testing.T, w *world) {
		same(t, w.events()[:1], "start db ")
		// Another manifest, whose probe fails at first, replaces the first.
		w.mu.Lock()
		w.ill["ask-db2"] = true
		w.files[fleet.GuestManifestPath] = strings.ReplaceAll(ill, "ask-db", "ask-db2")
		w.mu.Unlock()
		w.events()
		w.sup.Changed()
		pass(time.Second)
		same(t, w.events(), "terminated web", "end web", "terminated app", "end app", "terminated db", "end db", "start db ")
		if s := w.status("app"); s.State != Waiting || s.Message != "waits for db to be healthy; it is running" {
			t.Errorf("%+v", s)
		}
		pass(10 * time.Second)
		if s := w.status("db"); s.Health != fleet.HealthFailing || s.Message != "exit code 1: ill" {
			t.Errorf("%+v", s)
		}
		w.mu.Lock()
		w.ill["ask-db2"] = false
		w.mu.Unlock()
		pass(2 * time.Second)
		same(t, w.events(), "start app hidden", "start web ")
	})
}

func TestRestarts(t *testing.T) {
	fails := func(int) (int, bool) { return 3, true }
	in(t, `{"services":{
		"once":{"command":["fails"]},
		"few":{"command":["few"],"restart":"on-failure","max_restarts":2},
		"twice":{"command":["twice"],"restart":"on-failure"},
		"always":{"restart":"always"},
		"nobody":{"command":["unknown"],"restart":"always"}}}`, map[string]func(int) (int, bool){
		"fails": fails, "few": fails,
		"twice": func(run int) (int, bool) { return 2 - run, true },
		"image": func(int) (int, bool) { return 0, true },
	}, func(t *testing.T, w *world) {
		if s := w.status("once"); s.State != Failed || s.ExitCode != 3 || !s.Ended || s.Message != "ended with exit code 3" {
			t.Errorf("%+v", s)
		}
		if s := w.status("few"); s.State != Backoff || s.Message != "ended with exit code 3; starts again in 1s" {
			t.Errorf("%+v", s)
		}
		if s := w.status("nobody"); s.State != Failed || s.Message != "no user" {
			t.Errorf("%+v", s)
		}
		pass(time.Hour)
		if s := w.status("few"); s.State != Failed || s.Restarts != 2 || !strings.Contains(s.Message, "2 restarts in a row did not help") {
			t.Errorf("%+v", s)
		}
		if s := w.status("twice"); s.State != Exited || s.Restarts != 1 || s.ExitCode != 0 {
			t.Errorf("%+v", s)
		}
		w.mu.Lock()
		n := w.runs["image"]
		w.mu.Unlock()
		if n < 60 || n > 70 { // 1+2+4+8+16+32 s, then once a minute
			t.Errorf("%d starts within an hour", n)
		}
	})
}
