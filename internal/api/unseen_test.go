package api

import (
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/state"
)

// What is known of an environment whose host is not seen is told as that: in
// the list and by itself, and no longer once the host answers.
func TestEnvironmentOfAHostThatIsNotSeen(t *testing.T) {
	w := newWorld(t)
	w.addHosts("h1")
	vm := w.add("a")
	w.update(func(tx *state.Tx) error {
		row, _ := tx.VMs().Get(vm.ID)
		placed := *row
		placed.HostID = "h1"
		return tx.PutVM(placed)
	})
	both := func() (out []gen.Environment) {
		t.Helper()
		list := decodeInto[gen.EnvironmentList](t, w.call("GET", "/v1/environments", ""))
		return append(list.Environments, decodeInto[gen.Environment](t, w.call("GET", "/v1/environments/"+vm.ID, "")))
	}
	since := time.Unix(5000, 0)
	for name, tt := range map[string]struct {
		seen       hosts.Sighting
		down       bool
		unverified bool
	}{
		"seen":                   {seen: hosts.Sighting{LastSeen: since, Complete: true, Inherited: 1 << 40}},
		"missed once":            {seen: hosts.Sighting{Misses: 1, MissedSince: since, Reason: "no answer", Complete: true}},
		"unreachable":            {seen: hosts.Sighting{Misses: 3, MissedSince: since, Reason: "no answer", Unreachable: true, Complete: true}, down: true},
		"not seen since a start": {seen: hosts.Sighting{Inherited: 1 << 40}, unverified: true},
		"neither":                {seen: hosts.Sighting{Inherited: 1 << 40, Misses: 3, MissedSince: since, Reason: "no answer", Unreachable: true}, down: true, unverified: true},
		"made by this process":   {seen: hosts.Sighting{}},
	} {
		w.hosts.sighting = tt.seen
		for _, env := range both() {
			if down := env.HostUnreachableSince.Equal(since) && env.HostUnreachableReason == "no answer"; down != tt.down || env.HostUnreachableSince.IsZero() == tt.down {
				t.Errorf("%s: unreachable since %v, %q", name, env.HostUnreachableSince, env.HostUnreachableReason)
			}
			if env.Unverified != tt.unverified || env.State != "running" {
				t.Errorf("%s: %s, unverified %v", name, env.State, env.Unverified)
			}
		}
	}
}
