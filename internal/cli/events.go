package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/gen"
)

func eventsCmd(a *app) *cobra.Command {
	var since string
	cmd := &cobra.Command{
		Use:   "events ID",
		Short: "Follow an environment's states until it ends",
		Long: "events prints the environment's state and each change of it, and ends when the\n" +
			"environment does. A stream that breaks off is taken up again where it broke.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeEnvironments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			api, err := a.server()
			if err != nil {
				return err
			}
			return api.Events(cmd.Context(), args[0], since, func(ev gen.EnvironmentEvent) error {
				if format == "json" {
					return a.printLine(ev)
				}
				text := fmt.Sprintf("%s  %-12s %s", ev.UpdatedAt.Format(time.RFC3339), cell(ev.State), cell(ev.Error))
				_, err := fmt.Fprintln(a.Streams.Out, strings.TrimSpace(text))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "replay what came after this event `id` (0: everything kept)")
	return cmd
}
