package cli

import (
	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/cli/kit"
)

// tools are what the packages of verbs are given.
func (a *app) tools() kit.Tools {
	return kit.Tools{
		Server: a.server, Format: a.format, ListFormat: func() (string, error) { return listFormat(a) },
		PrintJSON: a.printJSON, PrintLine: a.printLine, Usage: usagef, In: a.Streams.In, Out: a.Streams.Out, Err: a.Streams.Err,
		Progress: a.progressf, IsTerminal: isTerminal,
		Exit: func(code int, err error) error { return &ExitError{Code: code, Err: err} },
		Cell: cell, Table: table, Sheet: sheet, Age: age,
		Environments: func(most int) cobra.CompletionFunc { return a.completeEnvironments(most) }, Hosts: a.completeHosts(),
	}
}
