package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// paging are the flags of a list. Without --limit and --cursor the whole list
// is meant, page by page.
type paging struct {
	limit    int
	cursor   string
	allPages bool
}

func (p *paging) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&p.limit, "limit", 0, "one page of at most this many (1 to 200; default: all of them)")
	f.StringVar(&p.cursor, "cursor", "", "go on after an earlier page (its next_cursor)")
	f.BoolVar(&p.allPages, "all-pages", false, "fetch every page (the default without --limit)")
}

// walk fetches pages and returns the cursor of what is left.
func (p *paging) walk(fetch func(limit int, cursor string) (next string, err error)) (string, error) {
	if p.limit < 0 || p.limit > maxPage {
		return "", usagef("--limit %d is not within 1 to %d", p.limit, maxPage)
	}
	everything := p.allPages || (p.limit == 0 && p.cursor == "")
	limit, cursor := p.limit, p.cursor
	if limit == 0 {
		limit = maxPage
	}
	for {
		next, err := fetch(limit, cursor)
		if err != nil || next == "" || !everything {
			return next, err
		}
		cursor = next
	}
}

// given is nil for a query that was not asked for.
func given(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// listing is a list in its three forms: the API's object, a table whose first
// column is the id, and the cursor of what follows.
type listing struct {
	object  any
	heading []string
	rows    [][]string
	next    string
}

func (a *app) printList(l listing) error {
	format, err := listFormat(a)
	if err != nil {
		return err
	}
	switch format {
	case "json":
		return a.printJSON(l.object)
	case "name":
		for _, r := range l.rows {
			fmt.Fprintln(a.Streams.Out, cell(r[0]))
		}
		return nil
	}
	if err := table(a.Streams.Out, l.heading, l.rows); err != nil {
		return err
	}
	if l.next != "" {
		a.progressf("more: --cursor %s", l.next)
	}
	return nil
}
