package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
)

// completeTimeout bounds what a person waits for after the tab key.
const completeTimeout = 2 * time.Second

// completer completes arguments in a shell.
type completer func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// completeEnvironments completes ids for the first most arguments.
func (a *app) completeEnvironments(most int) completer {
	return a.complete(most, func(ctx context.Context, api *client.API) ([]string, error) {
		page, err := api.List(ctx, gen.ListEnvironmentsParams{Limit: new(maxPage)})
		var ids []string
		for _, env := range page.Environments {
			ids = append(ids, env.ID)
		}
		return ids, err
	})
}

// completeHosts completes the id of a host.
func (a *app) completeHosts() completer {
	return a.complete(1, func(ctx context.Context, api *client.API) ([]string, error) {
		page, err := api.Hosts(ctx, gen.ListHostsParams{Limit: new(maxPage)})
		var ids []string
		for _, h := range page.Hosts {
			ids = append(ids, h.ID)
		}
		return ids, err
	})
}

func (a *app) complete(most int, list func(context.Context, *client.API) ([]string, error)) completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveDefault
		}
		api, err := a.server()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		ids, err := list(ctx, api)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ids = slices.DeleteFunc(ids, func(id string) bool {
			return !strings.HasPrefix(id, prefix) || slices.Contains(args, id)
		})
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}
