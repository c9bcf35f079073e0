package decide_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

func TestAssess(t *testing.T) {
	c := func(service, state string, change ...func(*observe.Container)) observe.Container {
		c := observe.Container{Name: service + "-1", Service: service, State: state, Digest: "d1", Restart: "no"}
		for _, f := range change {
			f(&c)
		}
		return c
	}
	health := func(h string) func(*observe.Container) { return func(c *observe.Container) { c.Health = h } }
	exit := func(n int) func(*observe.Container) { return func(c *observe.Container) { c.Exit = n } }
	restart := func(c *observe.Container) { c.Restart = "always" }
	old := func(c *observe.Container) { c.Digest = "d0" }
	oneOff := func(c *observe.Container) { c.OneOff = true }
	temporary := func(c *observe.Container) { c.Name = "0123456789ab_" + c.Name }
	tests := []struct {
		name string
		in   []observe.Container
		want string
	}{
		{"nothing", nil, "absent; missing or ended: web db"},
		{"all run", []observe.Container{c("web", "running"), c("db", "running", health("healthy"))}, "healthy"},
		{"two of one service", []observe.Container{c("web", "running"), c("web", "running"), c("db", "running")}, "healthy"},
		{"rolled, old and new", []observe.Container{c("web", "running", old), c("web", "running"), c("db", "running")}, "healthy; of an older definition: web"},
		{"rolled, new one starting", []observe.Container{c("web", "running", old), c("web", "running", health("starting")), c("db", "running")}, "starting; of an older definition: web"},
		{"T04 one-shot", []observe.Container{c("web", "running"), c("db", "exited")}, "healthy"},
		{"ended, to be restarted", []observe.Container{c("web", "running"), c("db", "exited", restart)}, "degraded; missing or ended: db"},
		{"ended with 1", []observe.Container{c("web", "running"), c("db", "exited", exit(1))}, "degraded; missing or ended: db"},
		{"only created", []observe.Container{c("web", "running"), c("db", "created")}, "degraded; missing or ended: db"},
		{"T42 starting", []observe.Container{c("web", "running", health("starting")), c("db", "running")}, "starting"},
		{"starting and another ended", []observe.Container{c("web", "running", health("starting"))}, "degraded; missing or ended: db"},
		{"not healthy", []observe.Container{c("web", "running", health("unhealthy")), c("db", "running")}, "degraded; not healthy: web"},
		{"restarting", []observe.Container{c("web", "restarting"), c("db", "running")}, "degraded; not healthy: web"},
		{"paused", []observe.Container{c("web", "paused"), c("db", "running")}, "degraded; not healthy: web"},
		{"all ended with 0", []observe.Container{c("web", "exited"), c("db", "exited")}, "at_rest"},
		{"one never started", []observe.Container{c("web", "created"), c("db", "exited")}, "at_rest; missing or ended: web"},
		{"all ended, one with 137", []observe.Container{c("web", "exited", exit(137)), c("db", "exited")}, "crashed; missing or ended: web"},
		{"dead", []observe.Container{c("web", "dead"), c("db", "exited")}, "crashed; missing or ended: web"},
		{"T13 both listed", []observe.Container{c("web", "running"), c("web", "created", temporary), c("db", "running")}, "healthy; left by a cut recreate: 0123456789ab_web-1"},
		{"T13 both run", []observe.Container{c("web", "running"), c("web", "running", temporary), c("db", "running")}, "healthy; left by a cut recreate: 0123456789ab_web-1"},
		{"T13 it took over and kept its name", []observe.Container{c("web", "running", temporary), c("db", "running")}, "healthy"},
		{"T13 by its name", []observe.Container{c("web", "exited", exit(137)), c("web", "created", temporary), c("db", "running")}, "degraded; missing or ended: web; left by a cut recreate: 0123456789ab_web-1"},
		{"made by run", []observe.Container{c("web", "running", oneOff), c("web", "exited"), c("db", "exited")}, "at_rest"},
		{"older definition", []observe.Container{c("web", "running", func(c *observe.Container) { c.Digest = "d0" }), c("db", "running")}, "healthy; of an older definition: web"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, decide.Assess(services, tt.in).String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestExplained is T39 in its variants: what an event of the host explains is
// repaired, what it does not counts as stopped.
func TestExplained(t *testing.T) {
	hour := noon.Add(-time.Hour) // when the host last booted in every case
	tests := []struct {
		name     string
		last     model.Boot
		daemon   time.Time
		finished time.Time // zero: the containers are gone
		want     string
	}{
		{"rebooted since", model.Boot{BootID: "boot0", DaemonStart: hour.Add(-time.Hour)}, hour, hour.Add(-time.Minute), "strike up"},
		{"rebooted since, containers gone", model.Boot{BootID: "boot0"}, hour, time.Time{}, "strike up"},
		{"rebooted since, then stopped", model.Boot{BootID: "boot0"}, hour, hour.Add(5 * time.Minute), "strike →stopped"},
		{"same boot, stopped", model.Boot{BootID: "boot1", DaemonStart: hour}, hour, hour.Add(time.Minute), "strike →stopped"},
		{"same boot, gone", model.Boot{BootID: "boot1", DaemonStart: hour}, hour, time.Time{}, "strike →stopped"},
		{"daemon started since", model.Boot{BootID: "boot1", DaemonStart: hour}, noon.Add(-time.Minute), noon.Add(-50 * time.Second), "strike up"},
		{"daemon started since, then stopped", model.Boot{BootID: "boot1", DaemonStart: hour}, noon.Add(-5 * time.Minute), noon.Add(-time.Minute), "strike →stopped"},
		{"daemon start was not known", model.Boot{BootID: "boot1"}, noon.Add(-time.Minute), noon.Add(-2 * time.Minute), "strike →stopped"},
		{"never seen up, ended before the boot", model.Boot{}, hour, hour.Add(-time.Minute), "strike up"},
		{"never seen up, ended before the daemon", model.Boot{}, noon.Add(-time.Minute), noon.Add(-2 * time.Minute), "strike up"},
		{"never seen up, stopped", model.Boot{}, hour, noon.Add(-time.Minute), "strike →stopped"},
		{"never seen up, gone", model.Boot{}, hour, time.Time{}, "strike →stopped"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(1, t.Fatalf)
			p := w.rows["p0"]
			p.LastUp = tt.last
			w.rows["p0"] = p
			w.host.daemon = tt.daemon
			st := w.host.stack(p.Project)
			if st.end(0, tt.finished); tt.finished.IsZero() {
				st.containers = nil
			}
			if got := summary(w.pass(0)) + " " + summary(w.pass(time.Minute)); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}
