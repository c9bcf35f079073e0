package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

func TestPlacementsNameNoHostsToUsers(t *testing.T) {
	other := errors.New("another failure on host secret-host")
	for name, is := range map[string]error{
		"no room": fleet.ErrNoCapacity, "a pin": fleet.ErrHostPinUnschedulable, "a source": fleet.ErrBoundHostUnschedulable, "labels": fleet.ErrNoLabelMatch, "no hosts": fleet.ErrNoHosts, "something else": other,
	} {
		err := fleet.Wrap(fleet.CodeUnavailable, is, "largest free is 6 of 8 on host secret-host").
			With(fleet.DetailScope, "host secret-host").With(fleet.DetailHostID, "secret-host").With(fleet.DetailUsage, "2 cpus").
			With(fleet.DetailReason, "fit refused 1").With(fleet.DetailLimit, "known: eu, us")
		for role, knows := range map[fleet.Role]bool{fleet.RoleUser: false, fleet.RoleOperator: true, fleet.RoleAdmin: true, fleet.RoleMaster: true} {
			got := discreet(auth.Principal{Name: "k", Role: role}, err)
			var fe *fleet.Error
			if !errors.As(got, &fe) || fe.Code != fleet.CodeUnavailable || !errors.Is(got, is) {
				t.Fatalf("%s, %s: %v", name, role, got)
			}
			shown := fe.Message
			for _, v := range fe.Details {
				shown += " " + v
			}
			if strings.Contains(shown, "secret-host") != (knows || errors.Is(is, other)) {
				t.Errorf("%s, %s: %s", name, role, shown)
			}
			if fe.Details[fleet.DetailReason] != "fit refused 1" || fe.Details[fleet.DetailLimit] != "known: eu, us" {
				t.Errorf("%s, %s: details %v", name, role, fe.Details)
			}
		}
	}
	if discreet(auth.Principal{Role: fleet.RoleUser}, nil) != nil || discreet(auth.Principal{Role: fleet.RoleUser}, other) != other { //nolint:errorlint // the very same
		t.Error("it changes what is no refusal")
	}
}

// full is a Pauser whose host has no room for what is paused.
type full struct{ Pauser }

func (full) Resume(context.Context, string, string) (*fleet.VM, error) {
	return nil, fleet.Wrap(fleet.CodeUnavailable, fleet.ErrBoundHostUnschedulable, "host secret-host is full: 2 cpus needed, 1 of 8 free").
		With(fleet.DetailHostID, "secret-host").With(fleet.DetailUsage, "7 cpus")
}

func TestResumptionsNameNoHostsToUsers(t *testing.T) {
	keys := &ring{}
	w := newWorld(t, withKeys(keys), func(c *Config, _ *auth.Config, _ *state.Config) { c.Pauser = full{} })
	vm, err := w.envs.Create(t.Context(), lifecycle.CreateRequest{TaskID: "paused", Owner: "x"})
	if err != nil {
		t.Fatal(err)
	}
	wake := Discreetly(func(ctx context.Context, vm *fleet.VM, actor string) (*fleet.VM, error) {
		return full{}.Resume(ctx, vm.ID, actor)
	})
	for role, knows := range map[fleet.Role]bool{fleet.RoleUser: false, fleet.RoleOperator: true} {
		_, header := keys.issue(role, "x")
		rec := w.call(http.MethodPost, "/v1/environments/"+vm.ID+"?action=resume", "", "Authorization", header)
		if rec.Code != http.StatusServiceUnavailable || strings.Contains(rec.Body.String(), "secret-host") != knows || strings.Contains(rec.Body.String(), "7 cpus") != knows {
			t.Errorf("%s: %d %s", role, rec.Code, rec.Body)
		}
		_, err := wake(auth.With(t.Context(), auth.Principal{Name: "x", Role: role}), vm, "user:x")
		var fe *fleet.Error
		if !errors.As(err, &fe) || strings.Contains(fe.Message, "secret-host") != knows || (fe.Details[fleet.DetailUsage] != "") != knows {
			t.Errorf("%s wakes it: %v", role, err)
		}
	}
}

// slow is a Pauser whose host says how far it is.
type slow struct{ Pauser }

func (slow) Progress(uid string) (provider.SnapshotProgress, bool) {
	return provider.SnapshotProgress{Phase: "memory", Done: 1, Total: 2, Rate: 3}, uid != ""
}

func TestAnEnvironmentTellsHowFarItsResumptionIs(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *auth.Config, _ *state.Config) { c.Pauser = slow{} })
	vm, err := w.envs.Create(t.Context(), lifecycle.CreateRequest{TaskID: "paused", Owner: "x"})
	if err != nil {
		t.Fatal(err)
	}
	const progress = `"progress":{"bytes_per_second":3,"done_bytes":1,"phase":"memory","total_bytes":2}`
	for _, paused := range []bool{false, true} {
		if paused {
			w.update(func(tx *state.Tx) error {
				row := *vm
				row.Paused = &fleet.Standstill{Activity: fleet.ActivityResuming, Reason: fleet.Reason{Actor: "user:x", Rule: fleet.RuleRequested}, At: tx.Now(), Op: "o"}
				return tx.PutVM(row)
			})
		}
		rec := w.call(http.MethodGet, "/v1/environments/"+vm.ID, "")
		if rec.Code != http.StatusOK || strings.Contains(rec.Body.String(), progress) != paused {
			t.Errorf("paused %t: %d %s", paused, rec.Code, rec.Body)
		}
	}
}
