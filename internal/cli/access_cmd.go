package cli

import "github.com/fusevm/fuse/internal/cli/access"

func (a *app) accessTools() access.Tools {
	return access.Tools{
		Server: a.server, Format: a.format, ListFormat: func() (string, error) { return listFormat(a) }, PrintJSON: a.printJSON, Usage: usagef, Out: a.Streams.Out, Err: a.Streams.Err,
		Cell: cell, Table: table, Sheet: sheet, Age: age, Environments: a.completeEnvironments(maxPage),
	}
}
