// Package feed holds the verbs that tell what happened: the fleet's events,
// and the life of one environment in words.
package feed

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
)

// Tools are what the verbs share with all others.
type Tools struct {
	Server    func() (*client.API, error)
	Format    func() (string, error) // "json" or another
	PrintJSON func(object any) error
	// PrintLine prints one object of many, on a line of its own.
	PrintLine func(object any) error
	Usage     func(format string, args ...any) error
	Out       io.Writer
	// Cell makes a text harmless and one line long.
	Cell         func(string) string
	Environments cobra.CompletionFunc
	// One follows the states of one environment until its end.
	One func(ctx context.Context, id, since string) error
}

type app struct{ Tools }

// Commands are "fuse events" and "fuse explain".
func Commands(t Tools) []*cobra.Command {
	a := &app{t}
	return []*cobra.Command{a.events(), a.explain()}
}
