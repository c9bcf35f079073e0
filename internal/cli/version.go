package cli

import (
	"encoding/json"
	"fmt"
	"net/http"

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
			var server struct {
				Service string `json:"service"`
				Version string `json:"version"`
			}
			if !clientOnly {
				// A version is asked for when things are broken: an unreachable
				// server is part of the answer, not a failure.
				if _, err := a.fetch(cmd.Context(), call{method: http.MethodGet, path: "/v1/version"}, &server); err != nil {
					server.Version = "not reachable"
				}
			}
			if format == "json" {
				raw, err := json.Marshal(map[string]string{"client": a.Version, "server": server.Version})
				if err != nil {
					return err
				}
				return a.printJSON(raw)
			}
			fmt.Fprintf(a.Streams.Out, "client %s\n", a.Version)
			if !clientOnly {
				fmt.Fprintf(a.Streams.Out, "server %s\n", server.Version)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "only this command line's version")
	return cmd
}
