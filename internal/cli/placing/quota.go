// Package placing holds the verbs of quotas and of placements run dry.
package placing

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

type app struct{ kit.Tools }

// Quota is "fuse quota" with its verbs.
func Quota(t kit.Tools) *cobra.Command {
	a := &app{t}
	cmd := &cobra.Command{
		Use: "quota", Aliases: []string{"quotas"}, Short: "What owners and API keys hold and may hold", Args: cobra.NoArgs,
		Long: "Quotas bound what an owner, or one API key of it, may hold at a time. They are\n" +
			"named owner:NAME and key:ID. What no quota was set for has the server's defaults\n" +
			"(fuse server --quota-…).",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.list(), a.get(), a.set(), a.remove())
	return cmd
}

func (a *app) list() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List owners and keys with what they use", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.ListFormat()
			if err != nil {
				return err
			}
			api, err := a.Server()
			if err != nil {
				return err
			}
			all, err := client.Placing{API: api}.Quotas(cmd.Context())
			if err != nil {
				return err
			}
			switch format {
			case "json":
				return a.PrintJSON(all)
			case "name":
				for _, q := range all.Quotas {
					fmt.Fprintln(a.Out, a.Cell(q.ID))
				}
				return nil
			}
			return a.quotaTable(all.Quotas)
		},
	}
}

// quotaTable has a column for every dimension, each as used/limit.
func (a *app) quotaTable(all []gen.Quota) error {
	heading := []string{"ID", "OWNER"}
	if len(all) > 0 {
		for _, l := range all[0].Lines {
			heading = append(heading, strings.ToUpper(strings.ReplaceAll(l.Dimension, "_", " ")))
		}
	}
	rows := make([][]string, 0, len(all))
	for _, q := range all {
		row := []string{q.ID, q.Owner}
		for _, l := range q.Lines {
			row = append(row, strconv.FormatInt(l.Used, 10)+"/"+limitText(l.Limit))
		}
		rows = append(rows, row)
	}
	return a.Table(a.Out, heading, rows)
}

func limitText(n int64) string {
	if n < 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

func (a *app) get() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show one owner or key", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.Server()
			if err != nil {
				return err
			}
			q, err := client.Placing{API: api}.Quota(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.printQuota(q)
		},
	}
}

func (a *app) printQuota(q gen.Quota) error {
	format, err := a.Format()
	if err != nil {
		return err
	}
	switch format {
	case "json":
		return a.PrintJSON(q)
	case "name":
		fmt.Fprintln(a.Out, a.Cell(q.ID))
		return nil
	}
	rows := make([][]string, 0, len(q.Lines))
	for _, l := range q.Lines {
		from := "set"
		if l.Default {
			from = "default"
		}
		rows = append(rows, []string{l.Dimension, strconv.FormatInt(l.Used, 10), limitText(l.Limit), l.Unit, from})
	}
	return a.Table(a.Out, []string{"OF " + q.ID, "USED", "LIMIT", "UNIT", "FROM"}, rows)
}

func (a *app) set() *cobra.Command {
	return &cobra.Command{
		Use: "set ID DIMENSION=LIMIT…", Short: "Change limits of an owner or a key", Args: cobra.MinimumNArgs(2), //nolint:mnd // the id and a limit
		Long: "set changes the limits that are named; others stay. A LIMIT is a number, none for\n" +
			"no limit whatever the server's default is, or default to go back to that.",
		Example: "  fuse quota set owner:alice environments=20 memory_mb=16384\n  fuse quota set key:ak_0123456789abcdef creates=2 cpus=none",
		RunE: func(cmd *cobra.Command, args []string) error {
			limits := map[string]*int64{}
			for _, arg := range args[1:] {
				name, text, ok := strings.Cut(arg, "=")
				if !ok {
					return a.Usage("%s is not DIMENSION=LIMIT", arg)
				}
				switch text {
				case "default":
					limits[name] = nil
				case "none":
					limits[name] = new(int64(-1))
				default:
					n, err := strconv.ParseInt(text, 10, 64)
					if err != nil || n < 0 {
						return a.Usage("%s: %s is no number, none or default", name, text)
					}
					limits[name] = &n
				}
			}
			api, err := a.Server()
			if err != nil {
				return err
			}
			q, err := client.Placing{API: api}.SetQuota(cmd.Context(), args[0], limits)
			if err != nil {
				return err
			}
			return a.printQuota(q)
		},
	}
}

func (a *app) remove() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID", Aliases: []string{"remove"}, Short: "Go back to the server's defaults", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.Server()
			if err != nil {
				return err
			}
			if err := (client.Placing{API: api}).RemoveQuota(cmd.Context(), args[0]); err != nil {
				return err
			}
			format, err := a.Format()
			if err == nil && format == "json" {
				return a.PrintJSON(map[string]string{"removed": args[0]})
			}
			fmt.Fprintln(a.Out, a.Cell(args[0]))
			return err
		},
	}
}
