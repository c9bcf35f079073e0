package api

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
)

// A verdict shows only of an environment that declared a healthcheck, and only
// while one is known; the next row has none of it.
func TestHealthOfARow(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := row{health: func(vm *fleet.VM) (fleet.HealthStatus, bool) {
		return fleet.HealthStatus{State: fleet.HealthFailing, Since: at, Failures: 3, Message: "exit code 1"}, vm.UID == "known"
	}}
	for _, tt := range []struct {
		vm   fleet.VM
		want *gen.Verdict
	}{
		{fleet.VM{UID: "known", Probed: true}, &gen.Verdict{State: "failing", Since: at, Failures: 3, Message: "exit code 1"}},
		{fleet.VM{UID: "known"}, nil},
		{fleet.VM{UID: "other", Probed: true}, nil},
	} {
		if diff := cmp.Diff(tt.want, r.of(&tt.vm).Health); diff != "" {
			t.Errorf("%+v: %s", tt.vm, diff)
		}
	}
	if got := new(row).of(&fleet.VM{UID: "known", Probed: true}).Health; got != nil {
		t.Errorf("nobody knows, and it is %+v", got)
	}
}
