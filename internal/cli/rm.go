package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/guest"
)

func rmCmd(a *app) *cobra.Command {
	var yes, all bool
	cmd := &cobra.Command{
		Use: "rm ID...", Aliases: []string{"destroy", "remove", "kill"},
		Short: "Destroy environments and everything in them",
		Args:  cobra.ArbitraryArgs, ValidArgsFunction: a.completeEnvironments(maxPage),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usagef("name the environments to remove, or give --all")
			}
			if all && !yes {
				return usagef("--all removes every environment of the server: add --yes to confirm")
			}
			return a.removeMany(cmd.Context(), args, all)
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "confirm --all (one named environment needs no confirmation)")
	cmd.Flags().BoolVar(&all, "all", false, "every environment of the server")
	return cmd
}

// removeMany removes the named environments, or all there are, and goes on
// after one that cannot be removed.
func (a *app) removeMany(ctx context.Context, ids []string, all bool) error {
	api, err := a.server()
	if err != nil {
		return err
	}
	if all {
		for env, err := range api.All(ctx, gen.ListEnvironmentsParams{}) {
			if err != nil {
				return err
			}
			ids = append(ids, env.ID)
		}
	}
	var first error
	for _, id := range ids {
		if err := a.remove(ctx, id); err != nil {
			if ctx.Err() != nil {
				a.progressf("the server goes on with %s", id)
				return err
			}
			if len(ids) == 1 {
				return err
			}
			fmt.Fprintln(a.Streams.Err, describe(err))
			if first == nil {
				first = &ExitError{Code: ExitCode(err)}
			}
			continue
		}
		fmt.Fprintln(a.Streams.Out, cell(id))
	}
	return first
}

// remove destroys one environment. A host that has not confirmed yet is told
// of: the server goes on trying.
func (a *app) remove(ctx context.Context, id string) error {
	api, err := a.server()
	if err != nil {
		return err
	}
	pending, err := api.Destroy(ctx, id)
	if pending != nil {
		a.progressf("%s is being destroyed; its host has not confirmed yet, the server keeps trying", id)
	}
	return err
}

func drainCmd(a *app) *cobra.Command {
	return actionCmd(a, "drain", "Stop the services in an environment, before it is removed", (*client.API).Drain)
}

func completeCmd(a *app) *cobra.Command {
	return actionCmd(a, "complete", "Mark an environment's task as completed and end it", (*client.API).Complete)
}

func actionCmd(a *app, name, short string, act func(*client.API, context.Context, string) (gen.Environment, error)) *cobra.Command {
	return &cobra.Command{
		Use: name + " ID", Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeEnvironments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			api, err := a.server()
			if err != nil {
				return err
			}
			env, err := act(api, cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if format == "json" {
				return a.printJSON(env)
			}
			fmt.Fprintln(a.Streams.Out, cell(env.ID))
			return nil
		},
	}
}

func logsCmd(a *app) *cobra.Command {
	var console bool
	cmd := &cobra.Command{
		Use: "logs ID", Short: "Print the output of an environment's startup script",
		Long: "logs prints what the startup script wrote, also after the environment has ended\n(for a day). With --console it prints what the machine's kernel and agent wrote, as\nlong as the environment lives.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeEnvironments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.server()
			if err != nil {
				return err
			}
			if console {
				return guest.Console(cmd.Context(), a.tools(), args[0])
			}
			log, err := api.Logs(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if log.Truncated {
				a.progressf("warning: the output was longer than the server keeps; its beginning is missing")
			}
			_, err = a.Streams.Out.Write(log.Output)
			return err
		},
	}
	cmd.Flags().BoolVar(&console, "console", false, "the machine's console, and when it rebooted")
	return cmd
}
