package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/feed"
	"github.com/fusevm/fuse/internal/cli/webhook"
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
			return followOne(cmd.Context(), a, args[0], since)
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "replay what came after this event `id` (0: everything kept)")
	return cmd
}

// followOne prints the states of one environment until its end.
func followOne(ctx context.Context, a *app, id, since string) error {
	format, err := a.format()
	if err != nil {
		return err
	}
	api, err := a.server()
	if err != nil {
		return err
	}
	return api.Events(ctx, id, since, func(ev gen.EnvironmentEvent) error {
		if format == "json" {
			return a.printLine(ev)
		}
		text := fmt.Sprintf("%s  %-12s %s", ev.UpdatedAt.Format(time.RFC3339), cell(ev.State), cell(ev.Error))
		_, err := fmt.Fprintln(a.Streams.Out, strings.TrimSpace(text))
		return err
	})
}

// happened are the verbs that tell what happened.
func happened(a *app) []*cobra.Command {
	return feed.Commands(a.tools(), func(ctx context.Context, id, since string) error { return followOne(ctx, a, id, since) })
}

// webhookCmd is "fuse webhook".
func webhookCmd(a *app) *cobra.Command {
	return webhook.Command(a.tools())
}
