package hostsnap

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/thaw"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/testkit"
)

// unique are what no two machines may have in common, and how a machine tells.
var unique = map[string]string{
	"urandom":      "head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'",
	"uuid":         "cat /proc/sys/kernel/random/uuid",
	"machine id":   "cat /etc/machine-id",
	"hostname":     "hostname",
	"tls key":      "sed -n 2p /fuse/tls/key.pem",
	"token":        "cat /fuse/auth-token",
	"ssh host key": "sed -n 3p /etc/ssh/ssh_host_ed25519_key",
	"generation":   "cat /run/fuse/generation",
	"random seed":  "od -An -tx1 -N16 /var/lib/systemd/random-seed | tr -d ' \\n'",
}

// An hour that passed for the host and not for the capture: the source's clock
// is behind by one.
const hour = "date -s @$(( $(date +%s) - 3600 )) >/dev/null"

// prepare gives a machine what its forks must not share, and a process that
// runs on in them.
func prepare(v *vm) {
	v.t.Helper()
	v.sh("mkdir -p /etc/ssh /var/lib/systemd /etc/fuse; echo old > /etc/ssh/ssh_host_ed25519_key; echo old > /etc/ssh/ssh_host_ed25519_key.pub; " +
		"head -c 512 /dev/urandom > /var/lib/systemd/random-seed; echo parent > /etc/fuse/parent; echo '{\"A\":\"the-parents-secret\"}' > /fuse/secrets.json")
	v.sh(hour + "; " + noteClock)
	v.sh(`sh -c 'trap "echo told >> /tmp/told" URG; echo $$ > /tmp/told.pid; while :; do sleep 0.1; done' >/dev/null 2>&1 &
until [ -s /tmp/told.pid ]; do sleep 0.1; done`)
}

// noteClock starts a process that counts, and notes the time as fast as it can,
// and waits for its first note; stopNoting ends it.
const (
	noteClock = `rm -f /tmp/clock; sh -c 'echo $$ > /tmp/clock.pid; exec 3>/tmp/clock; i=0; while :; do i=$((i+1)); echo "$i $(date +%s)" >&3; done' >/dev/null 2>&1 &
until [ -s /tmp/clock ]; do sleep 0.1; done;`
	stopNoting = "kill $(cat /tmp/*.pid)"
)

// grown is a script that fails unless a file gets longer within a minute or two.
func grown(file string) string {
	const size = "$(wc -c < %[1]s)"
	return fmt.Sprintf("s="+size+"; for n in $(seq 100); do [ $s = "+size+" ] || break; sleep 1; done; [ $s != "+size+" ]", file)
}

// clockJumped checks what the process noted of a machine that went on from a
// capture: the clock jumped once, by an hour, to the host's time, and there is
// nothing in between, so no process ran with the wrong one; and the clock is right
// since. It returns the count.
func clockJumped(t *testing.T, v *vm, c *fleet.Certificate) (count int64) {
	t.Helper()
	if c == nil || len(c.Lacks()) > 0 || c.Clock < 59*time.Minute {
		t.Fatalf("the certificate is %+v", c)
	}
	asked := time.Now()
	at := v.sh(`sed -n '$p' /tmp/clock; awk '{ if (last && $2 - last > 60) { print "jump", last, $2; n++ } last = $2 } END { print n+0 }' /tmp/clock; date +%s`)
	now := time.Now()
	var last, before, after, date int64
	var jumps int
	if _, err := fmt.Sscanf(at, "%d %d\njump %d %d\n%d\n%d", &count, &last, &before, &after, &jumps, &date); err != nil || jumps != 1 {
		t.Fatalf("the clock's notes: %q (%v)", at, err)
	}
	// A time of the guest is in whole seconds, and may be off by what is allowed.
	within := func(guest int64, from, to time.Time) bool {
		g := time.Unix(guest, 0)
		return !g.Before(from.Add(-time.Second-thaw.ClockWithin)) && !g.After(to.Add(thaw.ClockWithin))
	}
	if !within(after, v.begun, now) {
		t.Errorf("the first time that a process saw is %s; the machine was asked for at %s and went on by %s", time.Unix(after, 0), v.begun, c.At)
	}
	if !within(date, asked, now) {
		t.Errorf("the clock is at %s between %s and %s", time.Unix(date, 0), asked, now)
	}
	return count
}

func TestForksShareNothing(t *testing.T) {
	r := newRig(t, 0)
	source := r.create("source", small, provider.GoldenOff)
	prepare(source)
	snap := source.take(true)
	if snap.Kind != fleet.SnapshotKindLive {
		t.Fatalf("kind %s", snap.Kind)
	}
	t.Logf("freeze %s, stop %s, %d MiB", snap.Timings.Freeze, snap.Timings.Stop, snap.SizeBytes>>20)
	if got := source.sh("cat /etc/fuse/parent; cat /etc/ssh/ssh_host_ed25519_key"); got != "parent\nold" {
		t.Errorf("the source was changed: %q", got)
	}
	seen := map[string]map[string]string{}
	for what := range unique {
		seen[what] = map[string]string{}
	}
	note(t, source, seen, "source", "generation", "ssh host key", "random seed")
	var alive []*vm
	for i := range testkit.Count(8, 64) {
		f := r.fork(fmt.Sprintf("fork-%d", i), small, provider.Seed{
			SnapshotID: snap.ID, Digest: snap.Digest, Live: true,
			Files: []fleet.GuestFile{{Path: "/fuse/secrets.json", Data: []byte(`{"A":"the-childs-secret"}`)}},
		})
		checkFork(t, f, source, i == 0)
		note(t, f, seen, f.ref.ID)
		f.sh(stopNoting)
		if alive = append(alive, f); len(alive) == atOnce {
			ownNetworks(r, 1+atOnce)
			alive[0].destroy()
			alive = alive[1:]
		}
	}
}

// atOnce is how many forks there are at a time.
const atOnce = 8

// ownNetworks checks that each machine of a host has a network of its own there,
// at another address.
func ownNetworks(r *rig, machines int) {
	r.t.Helper()
	sum := sha256.Sum256([]byte(r.registry))
	spaces, err := filepath.Glob("/run/netns/fuse-" + hex.EncodeToString(sum[:3]) + "-*")
	if err != nil {
		r.t.Fatal(err)
	}
	of := map[string]string{}
	for _, space := range spaces {
		out, err := exec.Command("nsenter", "--net="+space, "ip", "-o", "-4", "address", "show", "scope", "global").Output()
		if err != nil {
			r.t.Fatal(err)
		}
		if other := of[string(out)]; other != "" {
			r.t.Errorf("%s has the addresses of %s: %s", space, other, out)
		}
		of[string(out)] = space
	}
	if len(of) < machines { // a spare one may be there too
		r.t.Errorf("%d machines have only %d networks with addresses of their own: %v", machines, len(of), of)
	}
}

// note notes what a machine says of itself; nobody may have said it before.
func note(t *testing.T, v *vm, seen map[string]map[string]string, name string, without ...string) {
	t.Helper()
	var script strings.Builder
	var order []string
	for what, how := range unique {
		if strings.Contains(strings.Join(without, ","), what) {
			continue
		}
		order = append(order, what)
		fmt.Fprintf(&script, "%s; echo; echo ---\n", how)
	}
	for i, value := range strings.Split(v.sh(script.String()), "---") {
		if i >= len(order) {
			break
		}
		value = strings.TrimSpace(value)
		if other := seen[order[i]][value]; other != "" || value == "" {
			t.Errorf("%s has the %s %q of %s", name, order[i], value, other)
		}
		seen[order[i]][value] = name
	}
}

func checkFork(t *testing.T, f, source *vm, thorough bool) {
	t.Helper()
	c := f.created.Certificate
	if c == nil || f.created.Boot.Mode != fleet.BootSeed {
		t.Fatalf("mode %s, certificate %v", f.created.Boot.Mode, c)
	}
	if got := f.sh("hostname; cat /fuse/secrets.json; echo; ls /etc/fuse"); got != f.ref.ID+"\n{\"A\":\"the-childs-secret\"}\nmachine.json" {
		t.Errorf("the fork says %q", got)
	}
	count := clockJumped(t, f, c)
	if !thorough {
		return
	}
	more := f.sh(grown("/tmp/clock") + "; sed -n '$p' /tmp/clock")
	var later int64
	if _, err := fmt.Sscanf(more, "%d", &later); err != nil || later <= count {
		t.Errorf("the counter stands at %d after %d", later, count)
	}
	if told := f.sh("for n in $(seq 100); do [ ! -s /tmp/told ] || break; sleep 1; done; cat /tmp/told"); told != "told" {
		t.Errorf("the process was told %q", told)
	}
	scan(t, f, source)
}
