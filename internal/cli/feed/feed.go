// Package feed holds the verbs that tell what happened: the fleet's events,
// and the life of one environment in words.
package feed

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/cli/kit"
)

// Follow shows the states of one environment until its end.
type Follow func(ctx context.Context, id, since string) error

type app struct {
	kit.Tools
	One Follow
}

// Commands are "fuse events" and "fuse explain".
func Commands(t kit.Tools, one Follow) []*cobra.Command {
	a := &app{t, one}
	return []*cobra.Command{a.events(), a.explain()}
}
