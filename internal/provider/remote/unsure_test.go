package remote

import (
	"errors"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/provider"
)

// A host that does not know what came of a call has not refused it.
func TestAnUnsureHostHasNotRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		err    *fleet.Error
		unsure bool
	}{
		"unsure":                  {fleet.Wrap(fleet.CodeInternal, hostwire.ErrUnsure, "it finds out"), true},
		"unsure, and it ends now": {fleet.Wrap(fleet.CodeUnavailable, errors.Join(hostwire.ErrUnsure, errors.New("closing")), "the host agent is shutting down"), true},
		"a refusal":               {fleet.Errorf(fleet.CodeInternal, "it is as it was"), false},
	} {
		got := callError(t.Context(), hostwire.ToConnect(tt.err))
		var fe *fleet.Error
		if errors.Is(got, provider.ErrNoAnswer) != tt.unsure || !errors.As(got, &fe) || fe.Message != tt.err.Message || fe.Code != tt.err.Code {
			t.Errorf("%s: %v", name, got)
		}
	}
}
