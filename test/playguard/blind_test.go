package playguard

import (
	"context"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/playguard/rig"
)

// blindRows break the way to the host, or what is asked there. From none of
// them anything may be concluded.
var blindRows = []row{
	{name: "T01 one failed look", run: oneFailedLook},
	{name: "T02 account locked", run: accountLocked},
	{name: "T02 socket without right", run: socketWithoutRight},
	{name: "T03 client and daemon do not match", run: versionMismatch},
	{name: "T05 cut at each byte", run: cutAtEachByte},
	{name: "T06 T07 T32 the daemon cannot be asked", run: daemonCannotBeAsked},
	{name: "T08 sshd is gone", run: sshdGone},
	{name: "T09 T33 data root swapped", run: dataRootSwapped, long: true},
	{name: "daemon upgraded under our feet", run: daemonUpgraded, long: true},
	{name: "T10 daemon frozen", run: daemonFrozen},
	{name: "T11 compose missing", run: composeMissing, both: true},
	{name: "T11 compose lies", run: composeLies, both: true},
	{name: "T17 T43 T45 the link goes silent", run: linkSilent, alone: true},
	{name: "T18 no more sessions", run: noMoreSessions},
	{name: "T23 one connection", run: oneConnection},
	{name: "host key changed", run: hostKeyChanged},
	{name: "clock jumps", run: clockJumps},
}

func oneFailedLook(w *world) {
	p := w.Up("a", file("web"))
	w.host.SSH.Authorize(w.t) // no key at all
	w.Disconnect()
	for i := range w.Policy.MissesToQuarantine {
		if w.Marquee.Reach != model.ReachOK {
			w.t.Errorf("quarantined after %d misses", i)
		}
		w.blind(observe.Unseen, observe.ReasonAuth)
		w.Later(w.Policy.Period)
	}
	if w.Marquee.Reach != model.ReachQuarantined {
		w.t.Errorf("after %d misses the marquee is %s", w.Policy.MissesToQuarantine, w.Marquee.Reach)
	}
	w.host.SSH.Authorize(w.t, w.host.SSH.Key)
	if steps := w.sees(); !refusedBy(steps, "a", decide.GuardQuarantined) || w.Marquee.Reach != model.ReachOK || w.Marquee.Streak.Count != 0 {
		w.t.Errorf("one clean look does not return it: %+v %v", w.Marquee, steps)
	}
	if steps := w.sees(); !ruled(steps, decide.RuleConverged) {
		w.t.Errorf("%v", steps)
	}
	w.running(p, "web")
}

func accountLocked(w *world) {
	w.Up("a", file("web"))
	w.host.SSH.Authorize(w.t, sshdtest.NewKey(w.t))
	w.Disconnect()
	steps := w.blind(observe.Unseen, observe.ReasonAuth)
	if !ruled(steps, decide.RuleLook) || !alarmed(steps, observe.ReasonAuth) {
		w.t.Errorf("no alarm of its own: %v", steps)
	}
	if steps := w.blind(observe.Unseen, observe.ReasonAuth); alarmed(steps, observe.ReasonAuth) {
		w.t.Error("an alarm for each look")
	}
	w.host.SSH.Authorize(w.t, w.host.SSH.Key)
	w.sees()
}

func alarmed(steps []decide.Step, reason observe.Reason) bool {
	for _, s := range steps {
		if s.Act == decide.Act(decide.Alarm{Trouble: string(reason)}) {
			return true
		}
	}
	return false
}

func socketWithoutRight(w *world) {
	w.Up("a", file("web"))
	restore := w.host.Shim("docker", `exec setpriv --reuid 65534 --regid 65534 --clear-groups /usr/bin/docker "$@"`)
	if err := os.Chmod(w.docker.Dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	w.blind(observe.Unseen, observe.ReasonPermission)
	restore()
	w.sees()
}

func versionMismatch(w *world) {
	w.Up("a", file("web"))
	restore := w.host.Shim("docker", `DOCKER_API_VERSION=9.99 exec /usr/bin/docker "$@"`)
	w.blind(observe.Unseen, observe.ReasonTooling)
	restore()
	w.sees()
}

// The answer in memory is cut at every byte, the link itself at some.
func cutAtEachByte(w *world) {
	w.Up("a", file("web"))
	trip := w.Look(w.t.Context())
	whole := trip.Stdout
	if look := observe.Conclude(trip, w.Marquee.Identity); look.Verdict() != observe.Seen {
		w.t.Fatalf("%s %s", look.Reason(), look.Detail())
	}
	trip.Ending = observe.EndedWithout
	row := w.Rows["a"]
	for n := range len(whole) - 1 {
		trip.Stdout = whole[:n]
		look := observe.Conclude(trip, w.Marquee.Identity)
		if look.Verdict() == observe.Seen {
			w.t.Fatalf("cut at byte %d of %d it counts as whole", n, len(whole))
		}
		if containers, ok := look.Project(row.Project).Containers(); ok {
			w.t.Fatalf("cut at byte %d of %d it lists containers: %v", n, len(whole), containers)
		}
		for _, s := range decide.Decide(decide.Input{
			Now: w.Now, Policy: w.Policy, Marquee: w.Marquee, Look: look, Epoch: w.Epoch, Playgrounds: []model.Playground{row},
		}) {
			if s.Playground != "" && (s.Works() || s.Writes()) {
				w.t.Fatalf("cut at byte %d of %d: %s", n, len(whole), s)
			}
		}
	}
	cuts := testkit.Count(6, 60)
	for i := range cuts {
		w.Conn()
		w.host.Link.CutAfter(int64((i + 1) * len(whole) / (cuts + 1)))
		w.Marquee.Streak, w.Marquee.Reach = model.Streak{}, model.ReachOK
		steps := w.Pass()
		if w.Last.Verdict() == observe.Seen {
			w.t.Errorf("the link was cut, and the look is whole")
		}
		w.untouched(steps)
		w.host.Link.CutAfter(-1)
		w.Disconnect()
	}
	w.Marquee.Streak, w.Marquee.Reach = model.Streak{}, model.ReachOK
	w.sees()
	w.state("a", model.StateRunning)
}

// The program that asks the daemon fails, or says nothing and fails: no list
// is empty for that.
func daemonCannotBeAsked(w *world) {
	p := w.Up("a", file("web"))
	for _, script := range []string{
		`exit 1`, `exec /usr/bin/docker -H unix:///nowhere "$@"`, `exit 125`,
		`case "$1" in ps) exit 1 ;; esac; exec /usr/bin/docker "$@"`,
		`case "$1" in volume) exit 1 ;; esac; exec /usr/bin/docker "$@"`,
		`case "$1" in inspect) exit 1 ;; esac; exec /usr/bin/docker "$@"`,
	} {
		restore := w.host.Shim("docker", script)
		steps := w.Pass()
		if w.Last.Verdict() == observe.Seen {
			w.t.Errorf("%q: the look is whole", script)
		}
		w.untouched(steps)
		restore()
		w.Marquee.Streak, w.Marquee.Reach = model.Streak{}, model.ReachOK
	}
	w.sees()
	w.running(p, "web")
}

func sshdGone(w *world) {
	p := w.Up("a", file("web"))
	w.Disconnect()
	w.host.Link.Refuse(true)
	w.blind(observe.Unseen, observe.ReasonDial, observe.ReasonHandshake)
	w.host.Link.Refuse(false)
	w.sees()
	w.running(p, "web")
}

// The same daemon, with another directory under it, says in good order that
// there is nothing.
func dataRootSwapped(w *world) {
	p := w.Up("a", file("web"))
	w.Ledger.ByHand("", func() {
		w.docker.Stop(w.t)
		w.docker.UseData("data2")
		w.docker.Run(w.t)
		w.docker.LoadImage(w.t)
		for range 3 {
			steps := w.blind(observe.Unseen, observe.ReasonIdentity)
			if ruled(steps, decide.RuleOrphan) {
				w.t.Errorf("the sweep went on: %v", steps)
			}
			w.Later(w.Policy.Period)
		}
		w.docker.Stop(w.t)
		w.docker.UseData("data")
		w.docker.Run(w.t)
	})
	w.rebase()
	steps := w.Passes(8)
	if !ruled(steps, decide.RuleEvent) {
		w.t.Errorf("the daemon's start does not explain it: %v", steps)
	}
	w.state("a", model.StateRunning)
	w.running(p, "web")
}

// The daemon is installed anew over the same data: it has another id, and nothing
// runs. That is another daemon until a person says that it is ours, and from then on
// a start of the daemon, which is repaired.
func daemonUpgraded(w *world) {
	p := w.Up("a", file("web"))
	was := w.Marquee.Identity
	w.Ledger.ByHand("", func() { w.docker.Reinstall(w.t) })
	w.rebase()
	steps := w.blind(observe.Unseen, observe.ReasonIdentity)
	if !alarmed(steps, observe.ReasonIdentity) || !strings.Contains(w.Last.Detail(), "daemon id") {
		w.t.Errorf("nobody is told: %q %v", w.Last.Detail(), steps)
	}
	w.Later(w.Policy.Period)
	w.blind(observe.Unseen, observe.ReasonIdentity)
	w.state("a", model.StateRunning)

	w.accept()
	if is := w.Marquee.Identity; is.DaemonID == was.DaemonID || is.DataRoot != was.DataRoot || is.Witness != was.Witness {
		w.t.Errorf("accepted was %+v, pinned %+v", is, was)
	}
	steps = w.Passes(8)
	if !ruled(steps, decide.RuleEvent) {
		w.t.Errorf("the daemon's start does not explain it: %v", steps)
	}
	w.state("a", model.StateRunning)
	w.running(p, "web")
}

// accept is a person who says that what answers there is the marquee.
func (w *world) accept() {
	w.t.Helper()
	if err := w.Runner.Enroll(w.t.Context(), w.Conn()); err != nil {
		w.t.Fatal(err)
	}
	w.Accept()
}

func daemonFrozen(w *world) {
	w.Up("a", file("web"))
	w.docker.Freeze()
	from, patience := time.Now(), w.Patience
	w.Patience = 0
	w.blind(observe.Unseen, observe.ReasonTimeout)
	w.Patience = patience
	if took := time.Since(from); took > 2*runner.LookTimeout {
		w.t.Errorf("it took %s", took)
	}
	w.docker.Thaw()
	w.sees()
	w.state("a", model.StateRunning)
	testkit.Eventually(w.t, 2*time.Minute, "nothing of the look is left on the host", func() bool {
		return w.host.Processes("observe") == 0
	})
}

func composeMissing(w *world) {
	w.Up("a", file("web"))
	back := w.host.HidePlugin()
	for _, script := range []string{`exit 127`, `echo 1.25.0`} { // missing, and too old
		restore := w.host.Shim("docker-compose", script)
		w.blind(observe.Unseen, observe.ReasonTooling)
		restore()
	}
	for _, want := range []rig.Flavour{rig.V1, w.host.Flavour} { // without the plugin, and with it
		w.sees()
		if host, _ := w.Last.Host(); host.Compose.Flavour != string(want) {
			w.t.Errorf("%s is taken for %s", want, host.Compose.Flavour)
		}
		back()
	}
}

// Compose says that it did what it did not: the next look tells.
func composeLies(w *world) {
	p := w.Up("a", file("web"))
	w.hand(p, "rm", "-f", w.ids(p)[0])
	lie := `case " $* " in *" up "*) exit 0 ;; esac; `
	restore := w.host.Shim("docker", `case "$1" in compose) shift; `+lie+`exec /usr/bin/docker compose "$@" ;; esac; exec /usr/bin/docker "$@"`)
	restore1 := w.host.Shim("docker-compose", lie+`exec /usr/bin/docker-compose "$@"`)
	w.Define("a", file("web"))
	w.Job("a")
	w.sees()
	if s := w.Rows["a"].State; s == model.StateRunning {
		w.t.Errorf("%s, and nothing runs", s)
	}
	restore()
	restore1()
	w.Later(w.Policy.StaleFast + time.Second)
	w.Passes(6)
	w.state("a", model.StateRunning)
	w.running(p, "web")
}

// A peer that says nothing any more holds nothing: not the pass, no goroutine.
func linkSilent(w *world) {
	p := w.Up("a", file("web"))
	w.Disconnect()
	before := runtime.NumGoroutine()
	short := sshx.Timeouts{Dial: time.Second, Handshake: time.Second, Session: time.Second, KeepAlive: 200 * time.Millisecond}
	for _, silentFrom := range []string{"the start", "the handshake on"} {
		w.Limits = short
		if silentFrom != "the start" {
			w.Limits.Dial, w.Limits.Handshake = time.Minute, time.Minute // which are over before it goes silent
			w.Conn()
		}
		w.host.Link.Hold()
		ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
		from := time.Now()
		trip := w.Look(ctx)
		cancel()
		if look := observe.Conclude(trip, w.Marquee.Identity); look.Verdict() != observe.Unseen {
			w.t.Errorf("silent from %s: %s", silentFrom, look.Verdict())
		}
		if took := time.Since(from); took > 5*time.Second+runner.LookTimeout/2 { // far from the limit of a look that nobody bounds
			w.t.Errorf("silent from %s: it took %s", silentFrom, took)
		}
		w.host.Link.Cut()
		w.host.Link.Release()
		w.Disconnect()
	}
	testkit.Eventually(w.t, time.Minute, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
	testkit.Eventually(w.t, 2*time.Minute, "no process is left on the host", func() bool { return w.host.Processes("observe") == 0 })
	w.Limits = sshx.Timeouts{}
	w.sees()
	w.running(p, "web")
}

// A server that grants no session is not an empty host.
func noMoreSessions(w *world) {
	w.Up("a", file("web"))
	w.Disconnect()
	strict := sshdtest.Start(w.t, sshdtest.Options{Config: []string{"MaxSessions 0"}})
	c, err := sshx.Dial(w.t.Context(), sshx.Target{Address: strict.Address, User: strict.User, HostKey: strict.HostKey, Keys: [][]byte{strict.Key}}, sshx.Timeouts{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	look := observe.Conclude(w.Runner.Observe(w.t.Context(), c), w.Marquee.Identity)
	if look.Verdict() != observe.Unseen || look.Reason() != observe.ReasonSession {
		w.t.Errorf("%s %s %s", look.Verdict(), look.Reason(), look.Detail())
	}
}

// A pass is one round trip over one connection, which the next one uses again.
func oneConnection(w *world) {
	w.Up("a", file("web"))
	before := w.host.Link.Accepted()
	w.Disconnect()
	for range 3 {
		w.sees()
	}
	if n := w.host.Link.Accepted() - before; n != 1 {
		w.t.Errorf("%d connections for three passes", n)
	}
}

func hostKeyChanged(w *world) {
	w.Up("a", file("web"))
	w.Disconnect()
	pinned := w.host.SSH.HostKey
	other := sshdtest.Start(w.t, sshdtest.Options{}).HostKey
	w.host.SSH.HostKey = other // the pin is not what the host shows
	steps := w.blind(observe.Unseen, observe.ReasonHostKey)
	if !alarmed(steps, observe.ReasonHostKey) {
		w.t.Errorf("no alarm: %v", steps)
	}
	if w.Last.Detail() == "" || !strings.Contains(w.Last.Detail(), "SHA256:") {
		w.t.Errorf("a person cannot compare: %q", w.Last.Detail())
	}
	w.host.SSH.HostKey = pinned
	w.sees()
}

// Our clock may jump either way; nothing follows from it, and no end comes early for
// it: not before its time by a clock that runs slow, and not without its warnings by
// one that is ahead.
func clockJumps(w *world) {
	p := w.Up("a", file("web"))
	for _, d := range []time.Duration{10 * 365 * 24 * time.Hour, -20 * 365 * 24 * time.Hour, 10 * 365 * 24 * time.Hour} {
		w.Later(d)
		steps := w.sees()
		w.untouched(steps)
	}
	end := func(off time.Duration) { // a pass by a clock that is off by it
		w.Later(off)
		if steps := w.sees(); does(steps, model.OpReclaim) {
			w.t.Errorf("it ends by a clock that is off by %s: %v", off, steps)
		}
		w.Later(-off)
	}
	w.expires("a", 2*time.Hour)
	for _, off := range []time.Duration{-20 * 365 * 24 * time.Hour, 2*time.Hour + time.Minute, -3 * time.Hour, 0} {
		end(off)
	}
	w.Later(119 * time.Minute)
	end(0)
	w.state("a", model.StateRunning)
	w.running(p, "web")
}
