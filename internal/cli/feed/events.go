package feed

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
)

// selection are the flags of events.
type selection struct {
	follow                  bool
	vm, host, entity, owner string
	types                   []string
	since                   string
	limit                   int
}

const maxPage = 200

func (a *app) events() *cobra.Command {
	var s selection
	cmd := &cobra.Command{
		Use: "events [ID]", Short: "Show what happened, or follow an environment's states until it ends",
		Long: "Without ID events prints the last events of the fleet, oldest first, and with -f\n" +
			"goes on with those to come. A stream that breaks off is taken up where it broke.\n" +
			"With ID it prints the environment's state and each change of it, and ends when\n" +
			"the environment does.",
		Example: "  fuse events -f --type 'vm.*' --since 10m\n  fuse events --vm fuse-job --limit 20",
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.runEvents(cmd, s)
			}
			for _, name := range []string{"vm", "host", "entity", "owner", "type", "limit"} {
				if cmd.Flags().Changed(name) {
					return a.Usage("--%s selects among the events of the fleet; leave out %s", name, args[0])
				}
			}
			if _, err := strconv.ParseUint(s.since, 10, 64); s.since != "" && err != nil {
				return a.Usage("--since with an environment is an event id, not %q", s.since)
			}
			return a.One(cmd.Context(), args[0], s.since)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&s.follow, "follow", "f", false, "go on with the events to come")
	f.StringVar(&s.vm, "vm", "", "only of this environment `ID`, its task and secrets included")
	f.StringVar(&s.host, "host", "", "only what concerns this host `ID`")
	f.StringVar(&s.entity, "entity", "", "only about this `TYPE or TYPE/ID`, such as host or task/job")
	f.StringVar(&s.owner, "owner", "", "only of this owner")
	f.StringSliceVar(&s.types, "type", nil, "only these `types`; * stands for anything, such as vm.*")
	f.StringVar(&s.since, "since", "", "from an event `id` on (0: all that are kept), a time, or a duration ago such as 10m")
	f.IntVar(&s.limit, "limit", 0, "at most this many (default: the last 50; all with --since)")
	return cmd
}

func (a *app) runEvents(cmd *cobra.Command, s selection) error {
	format, err := a.Format()
	if err != nil {
		return err
	}
	if s.limit < 0 {
		return a.Usage("--limit %d is less than zero", s.limit)
	}
	params, err := a.params(s, time.Now())
	if err != nil {
		return err
	}
	server, err := a.Server()
	if err != nil {
		return err
	}
	show := a.show
	if format == "json" {
		show = func(e gen.Event) error { return a.PrintLine(e) }
	}
	feed := client.NewFeed(server)
	if s.follow && s.limit == 0 {
		if s.since != "" {
			return feed.Follow(cmd.Context(), params, show)
		}
		last, err := a.last(cmd, feed, params, show, maxPage/10)
		if err != nil {
			return err
		}
		params.After = &last
		return feed.Follow(cmd.Context(), params, show)
	}
	return a.pages(cmd, feed, params, show, s)
}

// last prints the last events and returns the id after which others follow.
func (a *app) last(cmd *cobra.Command, feed client.Feed, params gen.ListEventsParams, show func(gen.Event) error, n int) (after string, err error) {
	params.Limit = &n
	page, err := feed.Page(cmd.Context(), params)
	if err != nil {
		return "", err
	}
	for _, e := range page.Events {
		if err := show(e); err != nil {
			return "", err
		}
	}
	return page.NextAfter, nil
}

// pages prints what there is: the last events, or all since a point.
func (a *app) pages(cmd *cobra.Command, feed client.Feed, params gen.ListEventsParams, show func(gen.Event) error, s selection) error {
	left := s.limit
	for {
		n := maxPage
		if s.since == "" && s.limit == 0 {
			n = 50
		} else if left > 0 {
			n = min(n, left)
		}
		params.Limit = &n
		page, err := feed.Page(cmd.Context(), params)
		if err != nil {
			return err
		}
		if page.Resync { // else it would look as if nothing had happened
			fmt.Fprintln(cmd.ErrOrStderr(), "events are missing here: they are not kept any more, or the id is of another log")
		}
		for _, e := range page.Events {
			if err := show(e); err != nil {
				return err
			}
		}
		left -= len(page.Events)
		if s.since == "" || !page.More || s.limit > 0 && left <= 0 {
			if s.follow {
				params.After, params.Since = &page.NextAfter, nil
				return feed.Follow(cmd.Context(), params, show)
			}
			return nil
		}
		params.After, params.Since = &page.NextAfter, nil
	}
}

// params are the flags as the API takes them.
func (a *app) params(s selection, now time.Time) (p gen.ListEventsParams, err error) {
	given := func(v string) *string {
		if v == "" {
			return nil
		}
		return &v
	}
	p.VM, p.Host, p.Entity, p.Owner = given(s.vm), given(s.host), given(s.entity), given(s.owner)
	if len(s.types) > 0 {
		p.Type = &s.types
	}
	if s.since == "" {
		return p, nil
	}
	if _, err := strconv.ParseUint(s.since, 10, 64); err == nil {
		p.After = &s.since
		return p, nil
	}
	if ago, err := time.ParseDuration(s.since); err == nil && ago > 0 {
		p.Since = new(now.Add(-ago).UTC())
		return p, nil
	}
	at, err := time.Parse(time.RFC3339, s.since)
	if err != nil {
		return p, a.Usage("--since %q is neither an event id, nor a time such as 2026-01-31T12:00:00Z, nor a duration such as 10m", s.since)
	}
	p.Since = &at
	return p, nil
}

// show prints one event for people.
func (a *app) show(e gen.Event) error {
	about := e.EntityType + "/" + e.EntityID
	if e.EntityType == "vm" {
		about = e.EntityID
	}
	text := fmt.Sprintf("%s  %-6s  %-22s %-24s %s", e.At.Format(time.RFC3339), a.Cell(e.ID), a.Cell(e.Type), a.Cell(about), a.Cell(e.Text))
	_, err := fmt.Fprintln(a.Out, strings.TrimSpace(text))
	return err
}
