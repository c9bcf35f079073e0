package feed

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
)

func (a *app) explain() *cobra.Command {
	var uid string
	cmd := &cobra.Command{
		Use: "explain ID", Short: "Tell what became of an environment, and why",
		Long: "explain tells the life of an environment, also after its end: who asked\n" +
			"for it, where it was placed and why, how it came up, what was seen of it, and who\n" +
			"or what ended it, by which rule and on what evidence. An id may have had several\n" +
			"lives; --uid names one of them.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			server, err := a.Server()
			if err != nil {
				return err
			}
			h, err := client.NewFeed(server).History(cmd.Context(), args[0], uid)
			if err != nil {
				return err
			}
			if format == "json" {
				return a.PrintJSON(h)
			}
			_, err = fmt.Fprint(a.Out, a.story(h))
			return err
		},
	}
	cmd.Flags().StringVar(&uid, "uid", "", "another life of that id, by its `UID`")
	return cmd
}

// story is a history for people: how it stands, what happened, what is next.
func (a *app) story(h gen.History) string {
	const stamp = "2006-01-02 15:04:05"
	var b strings.Builder
	line := func(indent, text string) { fmt.Fprintf(&b, "%s%s\n", indent, a.Cell(text)) }
	line("", h.Summary)
	line("", fmt.Sprintf("life %s, task %s, of %s; times are UTC", h.UID, h.TaskID, h.Owner))
	b.WriteByte('\n')
	if h.Incomplete {
		line("", "(its first events are not kept any more)")
	}
	var last gen.Reason
	for _, f := range h.Facts {
		line("", f.At.UTC().Format(stamp)+"  "+f.Text)
		const under = "                       "
		for _, d := range f.Detail {
			line(under, d)
		}
		if f.Reason == nil || *f.Reason == last { // said already
			continue
		}
		if last = *f.Reason; last.Evidence != "" {
			line(under, "evidence: "+last.Evidence)
		}
		line(under, fmt.Sprintf("rule %s, by %s", last.Rule, last.Actor))
	}
	b.WriteByte('\n')
	line("", h.Next)
	if len(h.Lives) > 1 {
		line("", fmt.Sprintf("This id has had %d lives; --uid names another:", len(h.Lives)))
		for _, l := range h.Lives {
			line("  ", fmt.Sprintf("%s  %s, made %s", l.UID, l.State, l.CreatedAt.UTC().Format(stamp)))
		}
	}
	return b.String()
}
