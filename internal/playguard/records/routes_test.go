package records_test

import (
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
)

// A name leads to one playground, on whichever marquee; its own new definition
// keeps it, and another's is told no more than it may know.
func TestRoutesDoNotCollide(t *testing.T) {
	store := storetest.Open(t)
	file := []byte("# fuse.roll web x\n# fuse.route a.example.org web 80 traefik\nservices: {}\n")
	put := func(id, owner, marquee string) error {
		_, err := store.Update(t.Context(), func(tx *state.Tx) error {
			p := records.Playground{Name: "n" + id, Owner: owner, Playground: model.Playground{ID: model.PlaygroundID(id), Marquee: model.MarqueeID(marquee)}}
			if err := records.Route(tx, &p, file); err != nil {
				return err
			}
			return records.PutPlayground(tx, p)
		})
		return err
	}
	for range 2 {
		if err := put("p1", "ann", "m1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := put("p2", "ann", "m2"); fleet.CodeOf(err) != fleet.CodeConflict || !strings.Contains(err.Error(), "np1") {
		t.Errorf("the same owner: %v", err)
	}
	if err := put("p3", "bob", "m1"); fleet.CodeOf(err) != fleet.CodeConflict || strings.Contains(err.Error(), "np1") {
		t.Errorf("another owner: %v", err)
	}
}
