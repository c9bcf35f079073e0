package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/access"
	"github.com/fusevm/fuse/internal/cli/snapshots"
)

// environmentCmd carries the noun-verb spellings of the public command line:
// fuse environment list, fuse env create and so on.
func environmentCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "environment", Aliases: []string{"env", "environments"},
		Short: "The environment verbs in noun-verb order (fuse environment list)",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(createCmd(a), listCmd(a), getCmd(a), execCmd(a), logsCmd(a), drainCmd(a), completeCmd(a), rmCmd(a),
		access.RotateToken(a.tools()))
	watch := eventsCmd(a)
	watch.Use, watch.Aliases = "watch ID", []string{"events"}
	cmd.AddCommand(watch)
	return cmd
}

func getCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Aliases: []string{"inspect"}, Short: "Show one environment",
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
			env, err := api.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.printEnvironment(format, env)
		},
	}
}

func (a *app) printEnvironment(format string, env gen.Environment) error {
	switch format {
	case "json":
		return a.printJSON(env)
	case "name":
		_, err := fmt.Fprintln(a.Streams.Out, cell(env.ID))
		return err
	}
	fields := [][2]string{
		{"id", env.ID},
		{"state", env.State},
		{"task", env.TaskID},
		{"owner", env.Owner},
		{"host", dash(env.HostID)},
		{"url", dash(env.URL)},
		{"image", dash(env.Spec.Image)},
		{"cpus", fmt.Sprint(env.Spec.CPUs)},
		{"ram", fmt.Sprintf("%d MB", env.Spec.RAMMB)},
		{"disk", fmt.Sprintf("%d GB", env.Spec.StorageGB)},
		{"created", env.CreatedAt.Format(time.RFC3339) + " (" + age(time.Now(), env.CreatedAt) + " ago)"},
		{"error", env.Error},
		{"health", shownHealth(env)},
		{"drained", env.DrainResult},
		{"warning", hostTrouble(env)},
	}
	fields = append(fields, snapshots.Fields(env)...)
	if r := env.Reason; r != nil {
		fields = append(fields, [2]string{"reason", strings.TrimSuffix(fmt.Sprintf("%s by %s: %s", r.Rule, r.Actor, r.Evidence), ": ")})
	}
	if p := env.Placement; p != nil {
		fields = append(fields, [2]string{"placed", fmt.Sprintf("%s of %d candidates, by %s", p.HostID, p.Candidates, p.Policy)})
	}
	for _, ep := range env.Endpoints {
		fields = append(fields, [2]string{"endpoint", strings.TrimSpace(fmt.Sprintf("%s (guest port %d/%s) %s", ep.URL, ep.Port, ep.Protocol, ep.As))})
	}
	for _, s := range bootSteps(env) {
		fields = append(fields, [2]string{"boot", s})
	}
	return sheet(a.Streams.Out, fields)
}

// hostTrouble says why what is shown may not be so.
func hostTrouble(env gen.Environment) string {
	switch {
	case !env.HostUnreachableSince.IsZero():
		return fmt.Sprintf("host unreachable since %s (%s): %s", env.HostUnreachableSince.Format(time.RFC3339), age(time.Now(), env.HostUnreachableSince), env.HostUnreachableReason)
	case env.Unverified:
		return "unverified: the server has not seen all of its host since it took over"
	}
	return ""
}

// shownState is the state, marked where it is only what was known before.
func shownState(env gen.Environment) string {
	switch {
	case !env.HostUnreachableSince.IsZero():
		return env.State + " (host unreachable)"
	case env.Unverified:
		return env.State + " (unverified)"
	case env.Activity != "":
		return env.State + " (" + env.Activity + ")"
	}
	return env.State
}

// maxPage is the API's largest page.
const maxPage = 200

func listCmd(a *app) *cobra.Command {
	var taskID, state, hostID, owner string
	var tags []string
	var p paging
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list", "ps"}, Short: "List environments", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch state {
			case "", "provisioning", "running", "draining", "destroying":
			default:
				return usagef("--state %q is not known: use provisioning, running, draining or destroying", state)
			}
			api, err := a.server()
			if err != nil {
				return err
			}
			params := gen.ListEnvironmentsParams{TaskID: given(taskID), State: given(state), HostID: given(hostID), Owner: given(owner)}
			if len(tags) > 0 {
				params.Tag = &tags
			}
			list := gen.EnvironmentList{Environments: []gen.Environment{}}
			list.NextCursor, err = p.walk(func(limit int, cursor string) (string, error) {
				params.Limit, params.Cursor = &limit, given(cursor)
				page, err := api.List(cmd.Context(), params)
				list.Environments = append(list.Environments, page.Environments...)
				return page.NextCursor, err
			})
			if err != nil {
				return err
			}
			rows := make([][]string, 0, len(list.Environments))
			for _, env := range list.Environments {
				rows = append(rows, []string{env.ID, shownState(env), env.TaskID, dash(env.HostID), dash(env.Spec.Image), age(time.Now(), env.CreatedAt)})
			}
			return a.printList(listing{list, []string{"ID", "STATE", "TASK", "HOST", "IMAGE", "AGE"}, rows, list.NextCursor})
		},
	}
	f := cmd.Flags()
	f.StringVar(&taskID, "task-id", "", "only this task")
	f.StringVar(&state, "state", "", "only this state: provisioning, running, draining or destroying")
	f.StringVar(&hostID, "host-id", "", "only on this host")
	f.StringVar(&owner, "owner", "", "only of this owner")
	f.StringArrayVar(&tags, "tag", nil, "only with this tag, `k=v`, or k for any value (repeatable)")
	f.Bool("all", true, "all hosts: the default here, accepted for the public command line")
	p.register(cmd)
	return cmd
}
