package amend

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// machine is a host with one machine, which takes limits and files.
type machine struct {
	limits []fleet.ResourceLimits
	files  map[string]string
	fails  error
	// uploads, if set, fails the first upload alone.
	uploads error
}

func (m *machine) Provider(string) (provider.Provider, error) { return opener{m: m}, nil }

type opener struct {
	m *machine
	provider.Provider
}

func (o opener) Open(provider.Ref) provider.Environment { return machineEnv{m: o.m} }

type machineEnv struct {
	provider.Environment
	m *machine
}

func (e machineEnv) Name() string { return "fuse-a" }
func (e machineEnv) SetLimits(_ context.Context, l fleet.ResourceLimits) error {
	e.m.limits = append(e.m.limits, l)
	return e.m.fails
}

func (e machineEnv) Upload(_ context.Context, files []fleet.GuestFile) error {
	for _, f := range files {
		e.m.files[f.Path] = string(f.Data)
	}
	if err := e.m.uploads; err != nil {
		e.m.uploads = nil
		return err
	}
	return e.m.fails
}

// plainSealer is a sealer that hides nothing but says for whom it sealed.
type plainSealer struct{}

func (plainSealer) Seal(kind, id string, plain []byte) ([]byte, error) {
	return append([]byte(kind+"/"+id+" "), plain...), nil
}
func (plainSealer) Open(kind, id string, sealed []byte) ([]byte, error) {
	plain, ok := strings.CutPrefix(string(sealed), kind+"/"+id+" ")
	if !ok {
		return nil, errors.New("sealed for another")
	}
	return []byte(plain), nil
}

func bootOf(t *testing.T, store *state.Store) (boot fleet.BootOptions) {
	t.Helper()
	if err := store.View(func(tx *state.ReadTx) error {
		vm, _ := tx.VMs().Get("fuse-a")
		plain, err := plainSealer{}.Open("boot", "u", vm.BootSealed)
		if err != nil {
			return err
		}
		return json.Unmarshal(plain, &boot)
	}); err != nil {
		t.Fatal(err)
	}
	return boot
}

func TestSecretsReachGuestAndRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := setup(t, fleet.VMStateRunning)
		m := &machine{files: map[string]string{}}
		s.WithHosts(store, m).WithSecrets(plainSealer{}, "boot")
		boot := fleet.BootOptions{
			Manifest: []byte(`{"version":"1","machine":{"env":{"KEY":{"secret":"key"}}},"services":{"a":{"env":{"X":{"secret":"other"}}}}}`),
			Secrets:  map[string]string{"key": "old", "other": "o", "gone": "g"}, StartupScript: "stays",
		}
		plain, _ := json.Marshal(boot)
		_, err := store.Update(t.Context(), func(tx *state.Tx) error {
			row, _ := tx.VMs().Get("fuse-a")
			vm := *row
			vm.BootSealed, _ = plainSealer{}.Seal("boot", "u", plain)
			return tx.PutVM(vm)
		})
		if err != nil {
			t.Fatal(err)
		}
		fresh := "it's new"
		if err := s.Amend(t.Context(), "fuse-a", "me", Request{Secrets: map[string]*string{"key": &fresh, "gone": nil}}); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{fleet.FuseSecretsPath: `{"key":"it's new","other":"o"}`, "/fuse/env": "KEY='it'\\''s new'\n"}
		if diff := cmp.Diff(want, m.files); diff != "" {
			t.Error(diff)
		}
		now := bootOf(t, store)
		if diff := cmp.Diff(map[string]string{"key": fresh, "other": "o"}, now.Secrets); diff != "" || now.StartupScript != "stays" {
			t.Errorf("%s %+v", diff, now)
		}
		_, events := stored(t, store)
		if last := events[len(events)-1]; strings.Contains(string(last.Payload), "new") || !strings.Contains(string(last.Payload), `"secrets":["gone","key"]`) {
			t.Errorf("told: %s", last.Payload)
		}
		// What the manifest needs stays, and what the guest did not take is not recorded.
		if err := s.Amend(t.Context(), "fuse-a", "me", Request{Secrets: map[string]*string{"key": nil}}); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("one that is needed: %v", err)
		}
		m.fails = errors.New("no")
		if err := s.Amend(t.Context(), "fuse-a", "me", Request{Secrets: map[string]*string{"more": &fresh}}); err == nil || len(bootOf(t, store).Secrets) != 2 {
			t.Errorf("the guest's refusal: %v, %v", err, bootOf(t, store).Secrets)
		}
	})
}

func TestLimitsHoldAtTheHostFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := setup(t, fleet.VMStateRunning)
		m := &machine{}
		s.WithHosts(store, m)
		l := fleet.ResourceLimits{CPUMillis: 500, NetInBps: 1 << 20}
		if err := s.Amend(t.Context(), "fuse-a", "me", Request{Limits: &l}); err != nil {
			t.Fatal(err)
		}
		spec, events := stored(t, store)
		if spec.Limits != l || len(m.limits) != 1 || m.limits[0] != l || !strings.Contains(string(events[len(events)-1].Payload), `"cpu_millis":500`) {
			t.Errorf("row %+v, host %+v", spec.Limits, m.limits)
		}
		if err := s.Amend(t.Context(), "fuse-a", "me", Request{Limits: &fleet.ResourceLimits{CPUMillis: 1}}); fleet.CodeOf(err) != fleet.CodeInvalidArgument || len(m.limits) != 1 {
			t.Errorf("too low: %v, the host was asked %d times", err, len(m.limits))
		}
		m.fails = fleet.Errorf(fleet.CodeUnimplemented, "an old agent")
		if err := s.Amend(t.Context(), "fuse-a", "me", Request{Limits: &fleet.ResourceLimits{}}); fleet.CodeOf(err) != fleet.CodeUnimplemented {
			t.Errorf("an old agent: %v", err)
		}
		if spec, _ = stored(t, store); spec.Limits != l {
			t.Errorf("what the host refused is recorded: %+v", spec.Limits)
		}
		if err := New(store).Amend(t.Context(), "fuse-a", "me", Request{Limits: &l}); fleet.CodeOf(err) != fleet.CodeUnimplemented {
			t.Errorf("a server without hosts: %v", err)
		}
	})
}

// TestWhatFailsIsPutBack fails what comes after the limits: the host has then
// what the row tells.
func TestWhatFailsIsPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := setup(t, fleet.VMStateRunning)
		m := &machine{files: map[string]string{}}
		s.WithHosts(store, m).WithSecrets(plainSealer{}, "boot")
		plain, _ := json.Marshal(fleet.BootOptions{
			Manifest: []byte(`{"version":"1","machine":{"env":{"KEY":{"secret":"key"}}}}`), Secrets: map[string]string{"key": "old"},
		})
		if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
			row, _ := tx.VMs().Get("fuse-a")
			vm := *row
			vm.Spec.Limits = fleet.ResourceLimits{CPUMillis: 700}
			vm.BootSealed, _ = plainSealer{}.Seal("boot", "u", plain)
			return tx.PutVM(vm)
		}); err != nil {
			t.Fatal(err)
		}
		m.uploads = fleet.Errorf(fleet.CodeUnavailable, "the disk is full")
		err := s.Amend(t.Context(), "fuse-a", "me", Request{Limits: &fleet.ResourceLimits{CPUMillis: 500}, Secrets: map[string]*string{"key": new("new")}})
		if fleet.CodeOf(err) != fleet.CodeUnavailable || strings.Contains(err.Error(), "put") {
			t.Errorf("the refusal: %v", err)
		}
		want := []fleet.ResourceLimits{{CPUMillis: 500}, {CPUMillis: 700}}
		if diff := cmp.Diff(want, m.limits); diff != "" {
			t.Errorf("limits at the host: %s", diff)
		}
		if spec, _ := stored(t, store); spec.Limits.CPUMillis != 700 || bootOf(t, store).Secrets["key"] != "old" || m.files[fleet.FuseSecretsPath] != `{"key":"old"}` {
			t.Errorf("the row has %+v and %v, the guest %v", spec.Limits, bootOf(t, store).Secrets, m.files)
		}
		// What stands still is not asked at all, and the remedy is named.
		if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
			row, _ := tx.VMs().Get("fuse-a")
			vm := *row
			vm.Paused = &fleet.Standstill{Activity: fleet.ActivityPaused, At: tx.Now()}
			return tx.PutVM(vm)
		}); err != nil {
			t.Fatal(err)
		}
		err = s.Amend(t.Context(), "fuse-a", "me", Request{Limits: &fleet.ResourceLimits{CPUMillis: 500}})
		var fe *fleet.Error
		if !errors.As(err, &fe) || fe.Code != fleet.CodeConflict || !strings.Contains(fe.Details[fleet.DetailRemedy], "fuse resume fuse-a") || len(m.limits) != 2 {
			t.Errorf("one that is paused: %v, the host was asked %d times", err, len(m.limits))
		}
	})
}
