package branch

import (
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/records"
)

// A playground of which only a marker says whose it is gets no secret of that
// one's, wherever the marker says that it is fetched from.
func TestASecretIsNotLentByAMarker(t *testing.T) {
	f := New(Config{})
	p := records.Playground{Name: "shop", Owner: "ann", Claimed: true, Source: records.Source{Repository: "https://evil.example.org/x", Branch: "main", Checkout: "x-main", Secret: "git"}}
	if _, err := f.payload(nil, &p, nil); fleet.CodeOf(err) != fleet.CodeForbidden {
		t.Errorf("it is lent: %v", err)
	}
	p.Source.Secret = ""
	if _, err := f.payload(nil, &p, nil); err != nil {
		t.Errorf("a branch that needs no secret is not followed: %v", err)
	}
}

// Nothing is made of a branch whose variables were lost with the records: they
// would be empty.
func TestLostVariablesAreNotEmpty(t *testing.T) {
	f := New(Config{})
	p := records.Playground{Name: "shop", Owner: "ann", Source: records.Source{Repository: "https://git.example.org/x", Lost: []string{"PASSWORD"}}}
	_, err := f.variables(nil, &p)
	if why := refusal(err); why == nil || !strings.Contains(why.Error(), "PASSWORD") {
		t.Errorf("%v", err)
	}
	p.Source.Lost = nil
	if v, err := f.variables(nil, &p); err != nil || len(v) != 0 {
		t.Errorf("%v %v", v, err)
	}
}
