package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

func rmCmd(a *app) *cobra.Command {
	var yes, all bool
	cmd := &cobra.Command{
		Use: "rm ID...", Aliases: []string{"destroy", "remove", "kill"},
		Short: "Destroy environments and everything in them",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usagef("name the environments to remove, or give --all")
			}
			if all {
				if !yes {
					return usagef("--all removes every environment of the server: add --yes to confirm")
				}
				ids, err := allIDs(a, cmd.Context())
				if err != nil {
					return err
				}
				args = ids
			}
			var errs []error
			for _, id := range args {
				if err := a.remove(cmd.Context(), id); err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintln(a.Streams.Out, id)
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "confirm --all (one named environment needs no confirmation)")
	cmd.Flags().BoolVar(&all, "all", false, "every environment of the server")
	return cmd
}

func allIDs(a *app, ctx context.Context) ([]string, error) {
	var ids []string
	q := url.Values{"limit": {"200"}}
	for {
		var page environmentList
		if _, err := a.fetch(ctx, call{method: http.MethodGet, path: environmentsPath, query: q}, &page); err != nil {
			return nil, err
		}
		for _, env := range page.Environments {
			ids = append(ids, env.ID)
		}
		next := page.NextCursor
		if next == "" {
			return ids, nil
		}
		q.Set("cursor", next)
	}
}

// remove destroys one environment. A host that has not confirmed yet is told
// of: the server goes on trying.
func (a *app) remove(ctx context.Context, id string) error {
	resp, err := a.send(ctx, call{method: http.MethodDelete, path: environmentPath(id)})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusAccepted {
		a.progressf("%s is being destroyed; its host has not confirmed yet, the server keeps trying", id)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	return err
}

func drainCmd(a *app) *cobra.Command {
	return actionCmd(a, "drain", "Stop the services in an environment, before it is removed")
}

func completeCmd(a *app) *cobra.Command {
	return actionCmd(a, "complete", "Mark an environment's task as completed and end it")
}

func actionCmd(a *app, action, short string) *cobra.Command {
	return &cobra.Command{
		Use: action + " ID", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			var env environment
			raw, err := a.fetch(cmd.Context(), call{
				method: http.MethodPost, path: environmentPath(args[0]), query: url.Values{"action": {action}},
			}, &env)
			if err != nil {
				return err
			}
			if format == "json" && len(raw) > 0 {
				return a.printJSON(raw)
			}
			fmt.Fprintln(a.Streams.Out, args[0])
			return nil
		},
	}
}

func logsCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "logs ID", Short: "Print the output of an environment's startup script",
		Long: "logs prints what the startup script wrote, also after the environment has ended\n(for a day).",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			resp, err := a.send(cmd.Context(), call{
				method: http.MethodGet, path: environmentPath(args[0]) + "/logs", query: url.Values{"source": {"startup"}},
			})
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(a.Streams.Out, resp.Body)
			return err
		},
	}
}
