package lifecycle

import (
	"errors"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Every create that was tried is told of once, however it was asked for and
// however it ended.
func TestCreatedIsToldOfEachCreate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		type told struct {
			took  time.Duration
			steps int
			code  fleet.Code
		}
		got := make(chan told, 10)
		f := setup(t, func(c *Config) {
			c.Created = func(took time.Duration, steps []fleet.StepTime, err error) {
				got <- told{took, len(steps), fleet.CodeOf(err)}
			}
		})
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "a"}); err != nil {
			t.Fatal(err)
		}
		if g := <-got; g.code != "" || g.steps == 0 {
			t.Errorf("a create: %+v", g)
		}
		if _, err := f.svc.CreateAsync(t.Context(), CreateRequest{TaskID: "b"}); err != nil {
			t.Fatal(err)
		}
		if g := <-got; g.code != "" || g.steps == 0 {
			t.Errorf("an asynchronous create: %+v", g)
		}
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "a"}); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Fatal(err)
		}
		if g := <-got; g.code != fleet.CodeConflict {
			t.Errorf("a duplicate: %+v", g)
		}
		f.fail(t, StepHostCreate, func(func() error) error { return errors.New("boom") })
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "c"}); err == nil {
			t.Fatal("no error")
		}
		if g := <-got; g.code == "" {
			t.Errorf("a failure: %+v", g)
		}
		if len(got) != 0 {
			t.Errorf("%d more", len(got))
		}
	})
}
