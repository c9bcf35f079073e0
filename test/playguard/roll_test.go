package playguard

import (
	"fmt"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/testkit"
)

var rollRows = []row{
	{name: "zero downtime, good and bad", run: rolled, both: true, long: true},
	{name: "zero downtime, cut", run: rollCut, both: true, long: true},
}

// polled is a playground whose service web answers with its version on port 80,
// is replaced without a gap, and is asked all the time by a client beside it. The
// client takes each address that the name has, in turn, as clients of a name do;
// only if none answers it counts a failure.
func polled(version, web string) string {
	client := `i=0; while true; do i=$$((i+1)); got=; for ip in $$(busybox nslookup web 2>/dev/null | busybox sed -n "/^Name/,$$ s/^Address[ 0-9]*: *\([0-9.]*\).*/\1/p"); do ` +
		`got=$$(echo | busybox nc -w 5 $$ip 80 2>/dev/null) && [ -n "$$got" ] && break; got=; done; echo "$$i $${got:-failed}"; sleep 0.05; done`
	return fmt.Sprintf(`services:
  web:
    image: %[1]s
    command: [sh, -c, '%[2]s']
    environment: {V: %[3]s}
    healthcheck: {test: [CMD-SHELL, 'echo | busybox nc -w 5 127.0.0.1 80'], interval: 300ms, timeout: 20s}
    stop_grace_period: 1s
    x-fuse: {zero_downtime: true}
  client:
    image: %[1]s
    command: [sh, -c, '%[4]s']
    stop_grace_period: 0s
`, dockertest.Image, web, version, client)
}

const (
	serves = `trap "exit 0" TERM; echo "echo $$V" >/tmp/answer; busybox nc -ll -p 80 -e sh /tmp/answer & wait`
	broken = `exit 3`
)

// answers are what the client got: by version, and failures.
func (w *world) answers(p model.Playground) (count map[string]int, failed []string) {
	w.t.Helper()
	out, err := w.docker.Docker("logs", w.host.ID(p.Project, "client"))
	if err != nil {
		w.t.Fatal(err)
	}
	count = map[string]int{}
	for line := range strings.Lines(out) {
		_, got, _ := strings.Cut(strings.TrimSpace(line), " ")
		if got == "failed" {
			failed = append(failed, strings.TrimSpace(line))
		}
		count[got]++
	}
	return count, failed
}

// hears waits until the client has got so many more answers of a version.
func (w *world) hears(p model.Playground, version string, more int) {
	w.t.Helper()
	before, _ := w.answers(p)
	testkit.Eventually(w.t, 3*time.Minute, "the client hears "+version, func() bool {
		now, _ := w.answers(p)
		return now[version] >= before[version]+more
	})
}

// hiccup is how many tries may fail for want of a second of time on a machine
// that is busy with other things; a service that is away fails dozens.
const hiccup = 1

// A bad version never takes a single answer away, a good one takes over and the
// client finds one of the two at every moment.
func rolled(w *world) {
	p := w.Up("a", polled("v1", serves))
	w.hears(p, "v1", 5)
	first := w.host.ID(p.Project, "web")
	_, early := w.answers(p) // until web was there

	w.Define("a", polled("v2", broken))
	if failure := w.Job("a"); !strings.Contains(failure, "exited with code 3") {
		w.t.Errorf("the rollout failed with %q", failure)
	}
	w.running(p, "client", "web")
	if now := w.host.ID(p.Project, "web"); now != first {
		w.t.Errorf("a bad version replaced %s by %s", first, now)
	}
	w.hears(p, "v1", 3)
	if count, failed := w.answers(p); len(failed) > len(early)+hiccup || count["v2"] > 0 {
		w.t.Errorf("in a bad rollout the client got %v, failed at %q", count, failed)
	}

	w.Define("a", polled("v3", serves))
	if failure := w.Job("a"); failure != "" {
		w.t.Fatal(failure)
	}
	w.running(p, "client", "web")
	w.hears(p, "v3", 5)
	count, failed := w.answers(p)
	if len(failed) > len(early)+hiccup {
		w.t.Errorf("in a good rollout the client got %v, failed at %q", count, failed)
	}
	w.t.Logf("the client got %v", count)
	w.Passes(4)
	w.state("a", model.StateRunning)
}

// The runner dies while both versions are there. Nothing is concluded from the
// two while the operation is alive; afterwards the next passes end with one, and
// the one that served is never away before that.
func rollCut(w *world) {
	p := w.Up("a", polled("v1", serves))
	w.hears(p, "v1", 5)
	_, early := w.answers(p)
	// The new one never says that it is healthy, so the roll waits.
	w.Define("a", strings.Replace(polled("v2", serves), "interval: 300ms", "interval: 1h", 1))
	op, end := w.beginUp("a", "cut")
	testkit.Eventually(w.t, 3*time.Minute, "both run", func() bool {
		return strings.Count(strings.Join(w.host.Containers(p.Project), " "), "web running") == 2
	})
	for range 2 {
		steps := w.sees()
		w.untouched(steps)
		if !refusedBy(steps, "a", decide.GuardOp) {
			w.t.Errorf("while the operation is alive: %v", steps)
		}
		w.Later(w.Policy.StrikeGap + time.Second)
	}
	w.host.KillProcesses(p.Project.String())
	w.Wait(op)
	end()
	if have := strings.Join(w.host.Containers(p.Project), " "); strings.Count(have, "web running") != 2 {
		w.t.Errorf("the cut left %q", have)
	}
	// The record goes back to the definition that served.
	w.Define("a", polled("v1", serves))
	w.Later(w.Policy.StaleFast + time.Second)
	w.Passes(10)
	w.state("a", model.StateRunning)
	w.running(p, "client", "web")
	w.hears(p, "v1", 3)
	if count, failed := w.answers(p); len(failed) > len(early)+hiccup {
		w.t.Errorf("the client got %v, failed at %q", count, failed)
	}
}
