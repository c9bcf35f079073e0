package api

import (
	"errors"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
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
