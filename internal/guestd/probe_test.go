package guestd

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// A healthcheck that is written starts to run, and its verdict travels with
// what the guest says of itself.
func TestHealthcheck(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	verdict := func() *fleet.HealthStatus {
		info, err := g.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.Health
	}
	if h := verdict(); h != nil {
		t.Errorf("a verdict without a probe: %+v", h)
	}
	ask := func(doc string, want fleet.HealthStatus) {
		t.Helper()
		if err := g.WriteFiles(t.Context(), []fleet.GuestFile{{Path: filepath.Join(g.fuseDir, "healthcheck.json"), Data: []byte(doc)}}); err != nil {
			t.Fatal(err)
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(waitForGuest); time.Now().Before(end); <-tick.C {
			if h := verdict(); h != nil && h.State == want.State && h.Message == want.Message && time.Since(h.Since) < 2*waitForGuest {
				return
			}
		}
		t.Fatalf("never %+v: %+v", want, verdict())
	}
	ask(`{"exec":["sh","-c","exit 0"],"interval_seconds":10,"timeout_seconds":10}`, fleet.HealthStatus{State: fleet.HealthPassing})
	ask(`{"exec":["sh","-c","echo no room >&2; exit 4"],"interval_seconds":10,"timeout_seconds":10,"retries":1}`, fleet.HealthStatus{State: fleet.HealthFailing, Message: "exit code 4: no room"})
	ask(`{"exec":["sleep","60"],"interval_seconds":1,"retries":1}`, fleet.HealthStatus{State: fleet.HealthFailing, Message: "exit code 124: no end within 1s"})
}
