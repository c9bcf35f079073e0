package snapshots

import (
	"context"
	"log/slog"
	"testing"
)

// Whoever has a result finds the place of the work free.
func TestAResultFindsItsPlaceFree(t *testing.T) {
	s := &core{base: t.Context(), log: slog.New(slog.DiscardHandler)}
	s.cfg.AtOnce = 1
	for i := range 20_000 {
		if _, err := detached(t.Context(), s, "it", func(context.Context) (int, error) { return i, nil }); err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
	}
}
