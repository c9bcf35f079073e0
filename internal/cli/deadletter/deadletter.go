// Package deadletter holds the verbs of dead letters: what was given up, or
// ended without being asked to.
package deadletter

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

type app struct{ kit.Tools }

// Command is "fuse dead-letter" with its verbs.
func Command(t kit.Tools) *cobra.Command {
	a := &app{t}
	cmd := &cobra.Command{
		Use: "dead-letter", Aliases: []string{"dead-letters"}, Short: "What the server gave up, kept for people", Args: cobra.NoArgs,
		Long: "Dead letters are orphans that could not be destroyed, destroys that do not end, and\nenvironments that were ended for being too old or idle. Nothing acts on them.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.list(), a.get(), a.purge())
	return cmd
}

const pageSize = 200

func (a *app) list() *cobra.Command {
	var kind string
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List dead letters", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.ListFormat()
			if err != nil {
				return err
			}
			api, err := a.Server()
			if err != nil {
				return err
			}
			all := gen.DeadLetterList{DeadLetters: []gen.DeadLetter{}}
			params := gen.ListDeadLettersParams{Limit: new(pageSize), Kind: given(kind)}
			for {
				page, err := client.DeadLetters{API: api}.List(cmd.Context(), params)
				if err != nil {
					return err
				}
				all.DeadLetters = append(all.DeadLetters, page.DeadLetters...)
				if page.NextCursor == "" {
					return a.printList(format, all)
				}
				params.Cursor = &page.NextCursor
			}
		},
	}
	cmd.Flags().StringVar(&kind, "kind", "", "only this `kind`: orphan_destroy, stuck_task, idle_timeout or destroy_failed")
	return cmd
}

func given(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (a *app) printList(format string, all gen.DeadLetterList) error {
	switch format {
	case "json":
		return a.PrintJSON(all)
	case "name":
		for _, d := range all.DeadLetters {
			fmt.Fprintln(a.Out, a.Cell(d.ID))
		}
		return nil
	}
	rows := make([][]string, 0, len(all.DeadLetters))
	for _, d := range all.DeadLetters {
		rows = append(rows, []string{d.Kind, d.EntityID, strconv.Itoa(d.RetryCount), a.Age(time.Now(), d.LastSeenAt), d.Reason})
	}
	return a.Table(a.Out, []string{"KIND", "ENTITY", "TRIES", "LAST SEEN", "REASON"}, rows)
}

func (a *app) get() *cobra.Command {
	return &cobra.Command{
		Use: "get KIND ENTITY", Short: "Show one dead letter", Args: cobra.ExactArgs(2), //nolint:mnd // the two of its name
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			api, err := a.Server()
			if err != nil {
				return err
			}
			d, err := client.DeadLetters{API: api}.Get(cmd.Context(), args[0]+":"+args[1])
			if err != nil {
				return err
			}
			switch format {
			case "json":
				return a.PrintJSON(d)
			case "name":
				fmt.Fprintln(a.Out, a.Cell(d.ID))
				return nil
			}
			return a.Sheet(a.Out, [][2]string{
				{"kind", d.Kind}, {"entity", d.EntityID}, {"task", d.TaskID}, {"tries", strconv.Itoa(d.RetryCount)},
				{"first", d.FirstSeenAt.Format(time.RFC3339)}, {"last", d.LastSeenAt.Format(time.RFC3339)}, {"reason", d.Reason},
			})
		},
	}
}

func (a *app) purge() *cobra.Command {
	var kind string
	var age time.Duration
	var all bool
	cmd := &cobra.Command{
		Use: "purge [KIND ENTITY]", Short: "Forget dead letters", Args: cobra.MaximumNArgs(2), //nolint:mnd // one dead letter's name
		Long: "purge forgets one dead letter, those of a kind, those not seen again for a time, or\nall of them. Nothing else changes: an orphan that is still there is listed again\nonce it has been given up again.",
		RunE: func(cmd *cobra.Command, args []string) error {
			one, many := len(args) > 0, kind != "" || age != 0 || all
			switch {
			case len(args) == 1:
				return a.Usage("give KIND and ENTITY, as 'fuse dead-letter ls' shows them, or --kind %s for all of a kind", args[0])
			case one == many:
				return a.Usage("give KIND and ENTITY, or one of --kind, --older-than and --all")
			case age < 0:
				return a.Usage("--older-than %s is not above 0", age)
			case kind == "" && cmd.Flags().Changed("kind"):
				return a.Usage("--kind names no kind; leave it out to mean all of them")
			}
			format, err := a.Format()
			if err != nil {
				return err
			}
			api, err := a.Server()
			if err != nil {
				return err
			}
			letters, n := client.DeadLetters{API: api}, 1
			if one {
				err = letters.Purge(cmd.Context(), args[0]+":"+args[1])
			} else {
				n, err = letters.PurgeAll(cmd.Context(), kind, age, all)
			}
			switch {
			case err != nil:
				return err
			case format == "json":
				return a.PrintJSON(gen.Purged{Purged: &n})
			}
			fmt.Fprintf(a.Out, "%d purged\n", n)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", "", "those of this `kind`")
	f.DurationVar(&age, "older-than", 0, "those not seen again for this `time`, such as 720h")
	f.BoolVar(&all, "all", false, "all of them")
	return cmd
}
