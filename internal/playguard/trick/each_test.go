package trick

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/service"
)

// One trick that cannot be taken away keeps none of the others there.
func TestEachIsTried(t *testing.T) {
	stuck := errors.New("refused")
	var asked []string
	do := func(_ context.Context, id string) (p service.Playground, err error) {
		asked = append(asked, id)
		return p, map[string]error{"a": stuck, "b": fleet.Errorf(fleet.CodeNotFound, "it is gone")}[id]
	}
	if err := each(t.Context(), []model.PlaygroundID{"a", "b", "c"}, do); !errors.Is(err, stuck) || !slices.Equal(asked, []string{"a", "b", "c"}) {
		t.Errorf("asked for %v: %v", asked, err)
	}
	if err := each(t.Context(), []model.PlaygroundID{"b", "c"}, do); err != nil {
		t.Error(err)
	}
}
