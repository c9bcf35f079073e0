package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

const environmentsPath = "/v1/environments"

func environmentPath(id string) string { return environmentsPath + "/" + url.PathEscape(id) }

// environmentCmd carries the noun-verb spellings of the public command line:
// fuse environment list, fuse env create and so on.
func environmentCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "environment", Aliases: []string{"env", "environments"},
		Short: "The environment verbs in noun-verb order (fuse environment list)",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(createCmd(a), listCmd(a), getCmd(a), execCmd(a), logsCmd(a), drainCmd(a), completeCmd(a), rmCmd(a))
	watch := eventsCmd(a)
	watch.Use, watch.Aliases = "watch ID", []string{"events"}
	cmd.AddCommand(watch)
	return cmd
}

func getCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Aliases: []string{"inspect"}, Short: "Show one environment", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			var env environment
			raw, err := a.fetch(cmd.Context(), call{method: http.MethodGet, path: environmentPath(args[0])}, &env)
			if err != nil {
				return err
			}
			switch format {
			case "json":
				return a.printJSON(raw)
			case "name":
				fmt.Fprintln(a.Streams.Out, env.ID)
				return nil
			}
			return printEnvironment(a, env)
		},
	}
}

func printEnvironment(a *app, env environment) error {
	rows := [][]string{
		{"id", env.ID},
		{"state", string(env.State)},
		{"task", env.TaskID},
		{"host", dash(env.HostID)},
		{"url", dash(env.URL)},
		{"image", dash(env.Spec.Image)},
		{"cpus", fmt.Sprint(env.Spec.CPUs)},
		{"ram", fmt.Sprintf("%d MB", env.Spec.RAMMB)},
		{"disk", fmt.Sprintf("%d GB", env.Spec.StorageGB)},
		{"created", env.CreatedAt.Format(time.RFC3339) + " (" + age(time.Now(), env.CreatedAt) + " ago)"},
	}
	if e := env.Error; e != "" {
		rows = append(rows, []string{"error", e})
	}
	for _, ep := range env.Endpoints {
		rows = append(rows, []string{"endpoint", fmt.Sprintf("%s (guest port %d)", ep.URL, ep.Port)})
	}
	for _, s := range bootSteps(env) {
		rows = append(rows, []string{"boot", s})
	}
	for _, r := range rows {
		if _, err := fmt.Fprintf(a.Streams.Out, "%-9s %s\n", r[0], r[1]); err != nil {
			return err
		}
	}
	return nil
}

func listCmd(a *app) *cobra.Command {
	var taskID, state, hostID, cursor string
	var limit int
	var allPages bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list", "ps"}, Short: "List environments", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := url.Values{}
			for k, v := range map[string]string{"task_id": taskID, "state": state, "host_id": hostID, "cursor": cursor} {
				if v != "" {
					q.Set(k, v)
				}
			}
			// Without --limit the whole list is meant, page by page.
			everything := allPages || (limit == 0 && cursor == "")
			if limit == 0 {
				limit = 200
			}
			q.Set("limit", fmt.Sprint(limit))
			return listPages(a, cmd, q, everything)
		},
	}
	f := cmd.Flags()
	f.StringVar(&taskID, "task-id", "", "only this task")
	f.StringVar(&state, "state", "", "only this state: provisioning, running, draining or destroying")
	f.StringVar(&hostID, "host-id", "", "only on this host")
	f.IntVar(&limit, "limit", 0, "one page of at most this many (1 to 200; default: all of them)")
	f.StringVar(&cursor, "cursor", "", "go on after an earlier page (its next_cursor)")
	f.BoolVar(&allPages, "all-pages", false, "fetch every page (the default without --limit)")
	f.Bool("all", true, "all hosts: the default here, accepted for the public command line")
	return cmd
}

func listPages(a *app, cmd *cobra.Command, q url.Values, everything bool) error {
	format, err := a.format()
	if err != nil {
		return err
	}
	merged := pageMerger{key: "environments"}
	var rows [][]string
	for {
		var page environmentList
		raw, err := a.fetch(cmd.Context(), call{method: http.MethodGet, path: environmentsPath, query: q}, &page)
		if err != nil {
			return err
		}
		if err := merged.add(raw); err != nil {
			return err
		}
		for _, env := range page.Environments {
			rows = append(rows, []string{env.ID, string(env.State), env.TaskID, dash(env.HostID), dash(env.Spec.Image), age(time.Now(), env.CreatedAt)})
		}
		next := page.NextCursor
		if next == "" || !everything {
			merged.next = next
			break
		}
		q.Set("cursor", next)
	}
	switch {
	case format == "json":
		raw, err := merged.bytes()
		if err != nil {
			return err
		}
		return a.printJSON(raw)
	case format == "name" || a.quiet:
		for _, r := range rows {
			fmt.Fprintln(a.Streams.Out, r[0])
		}
		return nil
	}
	if err := table(a.Streams.Out, []string{"ID", "STATE", "TASK", "HOST", "IMAGE", "AGE"}, rows); err != nil {
		return err
	}
	if merged.next != "" {
		a.progressf("more: --cursor %s", merged.next)
	}
	return nil
}
