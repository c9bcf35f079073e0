package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Zero turns a limit off; the public server's variable counts seconds.
func TestReconcileLimits(t *testing.T) {
	s, err := load(t, []string{"--data-dir=/d", "--default-max-runtime=0", "--orphan-tries=0", "--max-destroy-per-hour=0"}, map[string]string{
		"ORCH_DEFAULT_IDLE_TIMEOUT": "30m", "ORCH_ARTIFACT_IDLE_TTL_SECONDS": "90", "ORCH_ARTIFACT_MAX_PER_TENANT": "7", "ORCH_SNAPSHOT_RETENTION": "24h",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Reconcile{
		IdleTimeout: 30 * time.Minute, MaxDestroyPerCycle: 100, SnapshotRetention: 24 * time.Hour,
		ArtifactIdleTTL: 90 * time.Second, ArtifactMaxPerTenant: 7,
	}
	if diff := cmp.Diff(want, s.Reconcile); diff != "" {
		t.Error(diff)
	}
	for _, arg := range []string{"--default-max-runtime=-1s", "--default-idle-timeout=soon", "--orphan-tries=-1", "--max-destroy-per-cycle=1e9", "--artifact-max-per-tenant=x"} {
		flag, _, _ := strings.Cut(arg, "=")
		if _, err := load(t, []string{"--data-dir=/d", arg}, nil, nil); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}
