package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func versionCmd(a *app) *cobra.Command {
	var clientOnly bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the versions of this command line and of the server", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			versions := map[string]string{"client": a.Version}
			if !clientOnly {
				versions["server"] = a.serverVersion(cmd.Context())
			}
			if format == "json" {
				return a.printJSON(versions)
			}
			fmt.Fprintf(a.Streams.Out, "client %s\n", a.Version)
			if !clientOnly {
				fmt.Fprintf(a.Streams.Out, "server %s\n", cell(versions["server"]))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "only this command line's version")
	return cmd
}

// serverVersion asks the server. A version is asked for when things are broken:
// an unreachable server is part of the answer, not a failure.
func (a *app) serverVersion(ctx context.Context) string {
	api, err := a.server()
	if err != nil {
		return "not known"
	}
	v, err := api.Version(ctx)
	if err != nil {
		return "not reachable"
	}
	return v.Version
}
