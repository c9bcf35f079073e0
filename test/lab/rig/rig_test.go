package rig

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		program.fuse = os.Getenv(BinaryEnv)
		victim()
	}
	Main(m)
}

// A lab of simulated hosts answers, and its links can be cut, one way and both,
// slowed and healed.
func TestLinks(t *testing.T) {
	testkit.Leaks(t)
	l := New(t, Options{Hosts: 2, Driver: "sim"})
	s, h := l.Server(0), l.Host(0)
	if out := l.CLI("host", "ls"); !strings.Contains(out, "host-1") || !strings.Contains(out, "host-2") {
		t.Errorf("hosts: %s", out)
	}
	reached := func(when string) (took time.Duration) {
		t.Helper()
		testkit.Eventually(t, time.Minute, when+": the agent answers", func() bool {
			begin := time.Now()
			ok := h.answers(s, "20")
			took = time.Since(begin)
			return ok
		})
		return took
	}
	quick := reached("over a whole link")
	for name, cut := range map[string]func(){
		"both ways": h.Cut, "out": h.CutOut, "in": h.CutIn, "from the server": func() { h.CutFrom(s) }, "the server's": s.Cut,
	} {
		cut()
		if h.answers(s, "1") {
			t.Errorf("cut %s: the agent answers", name)
		}
		h.Heal()
		s.Heal()
		reached("healed after " + name)
	}
	l.Host(1).Cut()
	reached("with another host cut off")
	l.Host(1).Heal()
	h.Slow(50*time.Millisecond, 10*time.Millisecond)
	// A connection and a question: two round trips at least, each 100 ms.
	if slow := reached("over a slow link"); slow < 200*time.Millisecond {
		t.Errorf("over a slow link the agent answers within %v, over a quick one within %v", slow, quick)
	}
	h.Heal()
	testkit.Eventually(t, time.Minute, "after the slow link was healed the agent is as quick as before", func() bool {
		return reached("healed after a slow link") <= 200*time.Millisecond+10*quick
	})
}

// answers asks the agent from a server's place, with so many seconds' patience.
func (h *Host) answers(s *Server, seconds string) bool {
	return command("nsenter", "--net="+h.l.run.nsPath(s.name), "curl", "-skf", "--max-time", seconds, h.URL()+"/livez") == nil
}

// Servers on one database take over from each other, whatever is done to them.
func TestServers(t *testing.T) {
	l := New(t, Options{Hosts: 1, Driver: "sim", Servers: 2, Postgres: true})
	l.CLI("create", "--task-id", "one")
	first := l.Leader()
	l.Database().CutFrom(first)
	testkit.Eventually(t, 2*time.Minute, "the other server leads", func() bool { return l.Leader() != first })
	first.Heal()
	second := l.Leader()
	second.Pause()
	first.WaitLeads(2 * time.Minute)
	second.Resume()
	first.Kill()
	second.WaitLeads(2 * time.Minute)
	testkit.Eventually(t, time.Minute, "the environment is there after three leaders", func() bool {
		a, err := second.Do(http.MethodGet, "/v1/environments/fuse-one", "")
		if err == nil && a.Status == http.StatusNotFound {
			t.Fatalf("the environment after three leaders: %s", a.Body)
		}
		return err == nil && a.Status == http.StatusOK // it may lose the lead on a busy machine
	})
	first.Start()
	l.Empty()
}

// A host that loses its power comes back with its disk, its machine id and
// another boot.
func TestReboot(t *testing.T) {
	testkit.Leaks(t)
	l := New(t, Options{Hosts: 1, Driver: "sim"})
	h := l.Host(0)
	facts := func() (machine, boot string) {
		return h.read(t, "/etc/machine-id"), h.read(t, "/proc/sys/kernel/random/boot_id")
	}
	machine, boot := facts()
	ours, theirs := h.first.pid, h.agent.pid
	h.Reboot()
	machine2, boot2 := facts()
	if machine2 != machine || boot2 == boot || len(boot2) != 36 {
		t.Errorf("machine %q and then %q, boot %q and then %q", machine, machine2, boot, boot2)
	}
	if h.first.pid == ours || h.agent.pid == theirs {
		t.Error("processes have survived the reboot")
	}
	if got := l.CLI("host", "ls", "-o", "name"); strings.TrimSpace(got) != "host-1" {
		t.Errorf("hosts: %q", got)
	}
}

func (h *Host) read(t *testing.T, path string) string {
	t.Helper()
	argv := append(h.inside(), "cat", path)
	out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).Output()
	if err != nil {
		t.Fatalf("%v: %v", argv, err)
	}
	return strings.TrimSpace(string(out))
}

// Labs of tests that run side by side begin, and sweep, while others end.
func TestLabsComeAndGo(t *testing.T) {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range testkit.Count(25, 500) {
				r, err := begin()
				if err != nil {
					t.Error(err)
					return
				}
				for n := range 20 { // a directory is not removed at once
					if err := os.WriteFile(r.path(fmt.Sprint(n)), nil, 0o600); err != nil {
						t.Error(err)
					}
				}
				if err := r.remove(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
