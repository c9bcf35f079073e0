package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/sqlite"
	"github.com/fusevm/fuse/internal/testkit"
)

// TestKillAtEveryStepOfARotation kills server and host agent at each step of
// the rotation of a guest's token. After the restart the rotation is completed
// by itself, once, and the store has the token that the guest takes.
func TestKillAtEveryStepOfARotation(t *testing.T) {
	for _, point := range []string{"rotation.claimed", "hostd.rotate.driver", "hostd.rotate.answer", "rotation.told"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			d := dev(t, bins.failing, dir, []string{"FUSE_FAILPOINTS=" + point + "=exit"}, "--driver", "sim")
			if err := d.create("one"); err != nil {
				t.Fatal(err)
			}
			if a, err := d.http(http.MethodPost, "/v1/environments/fuse-one?action=rotate-token", ""); err == nil {
				t.Fatalf("answered %d before its step", a.status)
			}
			d.endsAt(point)

			d = dev(t, bins.failing, dir, nil, "--driver", "sim")
			rotated := func() int {
				return strings.Count(d.must("events", "--vm", "fuse-one", "--json"), `"`+fleet.EventVMTokenRotated+`"`)
			}
			testkit.Eventually(t, 2*time.Minute, "the rotation is completed", func() bool { return rotated() > 0 })
			if got := d.must("exec", "fuse-one", "--", "echo", "still here"); got != "still here\n" {
				t.Errorf("the environment says %q", got)
			}
			d.must("rotate-token", "fuse-one")
			if n := rotated(); n != 2 {
				t.Errorf("%d rotations are told of, want 2", n)
			}
			d.stop()
			vm, token := storedToken(t, dir)
			if vm.Rotation != 2 || len(vm.PendingSealed) > 0 {
				t.Errorf("rotation %d, pending %v", vm.Rotation, len(vm.PendingSealed) > 0)
			}
			if guest := guestToken(t, dir, vm.UID); guest == "" || guest != token {
				t.Error("the store and the guest have different tokens")
			}
			d = dev(t, bins.failing, dir, nil, "--driver", "sim")
			d.must("rm", "fuse-one")
		})
	}
}

// storedToken opens what a stopped server left.
func storedToken(t *testing.T, dir string) (vm fleet.VM, token string) {
	t.Helper()
	journal := sqlite.New(sqlite.Config{Path: filepath.Join(dir, "fuse.db")})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if err := store.View(func(tx *state.ReadTx) error {
		row, ok := tx.VMs().Get("fuse-one")
		if !ok {
			return fleet.ErrVMNotFound
		}
		vm = *row
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	key, err := secrets.LoadOrCreateKey(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := secrets.NewSealer(key).Open(lifecycle.SealKindVMToken, vm.UID, vm.AuthTokenSealed)
	if err != nil {
		t.Fatal(err)
	}
	return vm, string(plain)
}

// guestToken reads which token a simulated guest took last.
func guestToken(t *testing.T, dir, uid string) (token string) {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(dir, "host", "vms", uid, "sim.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(log) {
		var entry struct {
			Credentials *struct {
				Token string `json:"token"`
			} `json:"credentials"`
		}
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatal(err)
		}
		if entry.Credentials != nil {
			token = entry.Credentials.Token
		}
	}
	return token
}
