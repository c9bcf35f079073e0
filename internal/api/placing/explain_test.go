package placing

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/schedule"
)

func explained(edit func(*fleet.Spec), quota error, hosts ...*fleet.Host) *admission.Explanation {
	spec := fleet.Spec{CPUs: 1, RamMB: 512, StorageGB: 1}
	if edit != nil {
		edit(&spec)
	}
	return &admission.Explanation{Explanation: schedule.Explain(schedule.Input{Spec: spec, Hosts: hosts}), Quota: quota}
}

func named(id string) *fleet.Host {
	return &fleet.Host{ID: id, State: fleet.HostActive, Region: "region-of-" + id, Capacity: fleet.HostCapacity{CPUs: 4, RamMB: 4096, StorageGB: 40, VMCount: 4}}
}

// Whatever the answer is, nothing of it names a host once it is hidden.
func TestHideNamesNoHost(t *testing.T) {
	quota := fleet.Wrap(fleet.CodeQuotaExceeded, fleet.ErrQuotaExceeded, "owner alice holds 2 of 2 environments").With(fleet.DetailLimit, "2 environments")
	for name, tt := range map[string]struct {
		e      *admission.Explanation
		placed bool
		code   string
		says   string
	}{
		"placed":         {explained(nil, nil, named("secret-a"), named("secret-b")), true, "", ""},
		"too large":      {explained(func(s *fleet.Spec) { s.CPUs = 9 }, nil, named("secret-a"), named("secret-b")), false, "unavailable", "fit refused 2"},
		"no region":      {explained(func(s *fleet.Spec) { s.Region = "nowhere" }, nil, named("secret-a")), false, "unavailable", "region refused 1"},
		"pinned":         {explained(func(s *fleet.Spec) { s.HostID, s.CPUs = "secret-a", 9 }, nil, named("secret-a"), named("secret-b")), false, "unavailable", "pin refused 1, fit refused 1"},
		"no hosts":       {explained(nil, nil), false, "unavailable", "no host can take it"},
		"over its quota": {explained(nil, quota, named("secret-a")), false, "quota_exceeded", "owner alice holds 2 of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			shown := explanationOf(tt.e)
			if full, err := json.Marshal(shown); err != nil || len(tt.e.Refusals)+len(tt.e.Candidates) != len(shown.Hosts) {
				t.Errorf("%d hosts of %s, %v", len(shown.Hosts), full, err)
			}
			hide(&shown, tt.e)
			text, err := json.Marshal(shown)
			if err != nil || strings.Contains(string(text), "secret") {
				t.Errorf("hidden: %s, %v", text, err)
			}
			if shown.Placed != tt.placed || shown.Error.Code != tt.code || !strings.Contains(shown.Error.Message, tt.says) {
				t.Errorf("got %s", text)
			}
			if shown.Candidates != len(tt.e.Candidates) || shown.Refused != len(tt.e.Refusals) {
				t.Errorf("counts of %s", text)
			}
		})
	}
	if shown := explanationOf(explained(nil, errors.New("a path"), named("a"))); shown.Placed || shown.Error.Code != "internal" || strings.Contains(shown.Error.Message, "path") {
		t.Errorf("an error that is for the log: %+v", shown)
	}
}
