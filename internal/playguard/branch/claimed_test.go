package branch

import (
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
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

// What was heard of a playground goes some time after it.
func TestNothingIsRememberedOfWhatIsGone(t *testing.T) {
	store := storetest.Open(t)
	put := func(tx *state.Tx) error {
		return records.PutPlayground(tx, records.Playground{Name: "shop", Owner: "ann", Playground: model.Playground{ID: "there"}})
	}
	if _, err := store.Update(t.Context(), put); err != nil {
		t.Fatal(err)
	}
	f := New(Config{Store: store})
	f.heard["gone"], f.heard["there"] = Heard{Head: "c1"}, Heard{Head: "c2"}
	now := time.Now()
	if err := f.tidy(now); err != nil || f.Heard("there").Head != "c2" || f.Heard("gone").Head != "" {
		t.Errorf("%v %v", f.heard, err)
	}
	f.heard["gone"] = Heard{Head: "c1"}
	if err := f.tidy(now.Add(time.Minute)); err != nil || len(f.heard) != 2 {
		t.Errorf("it is looked through in each pass: %v %v", f.heard, err)
	}
}
