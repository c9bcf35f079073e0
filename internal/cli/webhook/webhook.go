// Package webhook holds the verbs of webhooks.
package webhook

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

type app struct{ kit.Tools }

// Command is "fuse webhook" with its verbs.
func Command(t kit.Tools) *cobra.Command {
	a := &app{t}
	cmd := &cobra.Command{
		Use: "webhook", Aliases: []string{"webhooks"}, Short: "Have events sent to an address", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.create(), a.list(), a.get(), a.change(), a.remove(), a.test(), a.deliveries(), a.resend(), a.rotate(),
		a.enable(true), a.enable(false))
	return cmd
}

// verb is a verb of one webhook: it calls the server and prints what came.
func (a *app) verb(use, short string, args int, do func(cmd *cobra.Command, w client.Webhooks, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(args),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := a.Format(); err != nil {
				return err
			}
			server, err := a.Server()
			if err != nil {
				return err
			}
			return do(cmd, client.NewWebhooks(server), args)
		},
	}
}

// filter are the flags that select events.
type filter struct {
	types                   []string
	entity, vm, host, owner string
}

func (f *filter) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.types, "type", nil, "only these `types` of events; * stands for anything, such as vm.*")
	flags.StringVar(&f.entity, "entity", "", "only about this `TYPE or TYPE/ID`")
	flags.StringVar(&f.vm, "vm", "", "only of this environment `ID`")
	flags.StringVar(&f.host, "host", "", "only what concerns this host `ID`")
	flags.StringVar(&f.owner, "owner", "", "only of this owner")
}

func (f *filter) of() gen.EventFilter {
	return gen.EventFilter{Types: f.types, Entity: f.entity, VM: f.vm, Host: f.host, Owner: f.owner}
}

func (f *filter) changed(cmd *cobra.Command) bool {
	for _, name := range []string{"type", "entity", "vm", "host", "owner"} {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

func (a *app) create() *cobra.Command {
	var f filter
	var description, secretFile string
	cmd := a.verb("create URL", "Make a webhook; its secret is printed this once", 1, func(cmd *cobra.Command, w client.Webhooks, args []string) error {
		req := gen.CreateWebhook{URL: args[0], Description: description, Filter: f.of()}
		if secretFile != "" {
			raw, err := os.ReadFile(secretFile)
			if err != nil {
				return fmt.Errorf("read the secret: %w", err)
			}
			req.Secret = strings.TrimSpace(string(raw))
		}
		h, err := w.Create(cmd.Context(), req)
		return a.print(h, err)
	})
	cmd.Long = "A webhook gets the events from now on, each at least once, in POST requests that\n" +
		"are signed after Standard Webhooks. docs/operate/webhooks.md tells how to check them."
	f.register(cmd)
	cmd.Flags().StringVar(&description, "description", "", "what it is for")
	cmd.Flags().StringVar(&secretFile, "secret-file", "", "`file` with a secret of your own (whsec_…); one is made without it")
	return cmd
}

func (a *app) change() *cobra.Command {
	var f filter
	var url, description string
	cmd := a.verb("change ID", "Change what flags name; the filter is replaced as a whole", 1, func(cmd *cobra.Command, w client.Webhooks, args []string) error {
		var req gen.ChangeWebhook
		if cmd.Flags().Changed("to") {
			req.URL = &url
		}
		if cmd.Flags().Changed("description") {
			req.Description = &description
		}
		if f.changed(cmd) {
			req.Filter = new(f.of())
		}
		if req == (gen.ChangeWebhook{}) {
			return a.Usage("nothing to change: give --to, --description or a filter")
		}
		h, err := w.Change(cmd.Context(), args[0], req)
		return a.print(h, err)
	})
	f.register(cmd)
	cmd.Flags().StringVar(&url, "to", "", "another `URL`")
	cmd.Flags().StringVar(&description, "description", "", "what it is for")
	return cmd
}

func (a *app) get() *cobra.Command {
	return a.verb("get ID", "Show a webhook", 1, func(cmd *cobra.Command, w client.Webhooks, args []string) error {
		h, err := w.Get(cmd.Context(), args[0])
		return a.print(h, err)
	})
}

func (a *app) enable(on bool) *cobra.Command {
	use, short := "enable ID", "Let a webhook go on where it stopped"
	if !on {
		use, short = "disable ID", "Stop a webhook; its place in the log is kept"
	}
	return a.verb(use, short, 1, func(cmd *cobra.Command, w client.Webhooks, args []string) error {
		h, err := w.Enable(cmd.Context(), args[0], on)
		return a.print(h, err)
	})
}

func (a *app) rotate() *cobra.Command {
	var overlap time.Duration
	cmd := a.verb("rotate ID", "Give a webhook a new secret, which is printed this once", 1, func(cmd *cobra.Command, w client.Webhooks, args []string) error {
		var seconds *int
		if cmd.Flags().Changed("overlap") {
			seconds = new(int(overlap / time.Second))
		}
		h, err := w.Rotate(cmd.Context(), args[0], seconds)
		return a.print(h, err)
	})
	cmd.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long messages are signed with the old secret too")
	return cmd
}

func (a *app) remove() *cobra.Command {
	cmd := a.verb("rm ID", "Delete a webhook", 1, func(cmd *cobra.Command, w client.Webhooks, args []string) error {
		return w.Delete(cmd.Context(), args[0])
	})
	cmd.Aliases = []string{"delete"}
	return cmd
}

func (a *app) test() *cobra.Command {
	return a.verb("test ID", "Send a ping now and show what became of it", 1, func(cmd *cobra.Command, w client.Webhooks, args []string) error {
		d, err := w.Test(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if err := a.printDelivery(d); err != nil {
			return err
		}
		if d.State != "delivered" {
			return fmt.Errorf("the ping did not arrive: %s", a.Cell(d.Error))
		}
		return nil
	})
}

func (a *app) resend() *cobra.Command {
	return a.verb("resend ID DELIVERY", "Send a message again, under the same id", 2, func(cmd *cobra.Command, w client.Webhooks, args []string) error {
		d, err := w.Resend(cmd.Context(), args[0], args[1])
		if err != nil {
			return err
		}
		return a.printDelivery(d)
	})
}

const page = 200

func (a *app) list() *cobra.Command {
	cmd := a.verb("ls", "List webhooks", 0, func(cmd *cobra.Command, w client.Webhooks, _ []string) error {
		all, err := w.List(cmd.Context(), gen.ListWebhooksParams{Limit: new(page)}) // more there cannot be
		if err != nil {
			return err
		}
		var rows [][]string
		for _, h := range all.Webhooks {
			rows = append(rows, []string{h.ID, stateOf(h), h.URL, strings.Join(h.Filter.Types, ","), h.Description})
		}
		return a.PrintList(all, []string{"ID", "STATE", "URL", "TYPES", "DESCRIPTION"}, rows)
	})
	cmd.Aliases = []string{"list"}
	return cmd
}

func (a *app) deliveries() *cobra.Command {
	var state string
	var limit int
	cmd := a.verb("deliveries ID", "Show what became of a webhook's messages, the newest first", 1, func(cmd *cobra.Command, w client.Webhooks, args []string) error {
		params := gen.ListDeliveriesParams{Limit: &limit}
		if state != "" {
			params.State = &state
		}
		list, err := w.Deliveries(cmd.Context(), args[0], params)
		if err != nil {
			return err
		}
		var rows [][]string
		for _, d := range list.Deliveries {
			rows = append(rows, []string{d.ID, d.Type, d.State, strconv.Itoa(d.Attempts), status(d), a.Age(time.Now(), d.CreatedAt), d.Error})
		}
		return a.PrintList(list, []string{"ID", "TYPE", "STATE", "TRIES", "STATUS", "AGE", "ERROR"}, rows)
	})
	cmd.Flags().StringVar(&state, "state", "", "only those that are pending, delivered or failed")
	cmd.Flags().IntVar(&limit, "limit", page, "at most this many")
	return cmd
}

func firstOf(err error, then func() error) error {
	if err != nil {
		return err
	}
	return then()
}

func status(d gen.Delivery) string {
	if d.Status == 0 {
		return "-"
	}
	return strconv.Itoa(d.Status)
}

func stateOf(h gen.Webhook) string {
	switch {
	case h.Disabled != nil:
		return "disabled"
	case !h.RetryAt.IsZero():
		return "down"
	case !h.FailingSince.IsZero():
		return "failing"
	}
	return "ok"
}

func (a *app) print(h gen.Webhook, err error) error {
	if err != nil {
		return err
	}
	format, err := a.Format()
	if err != nil || format == "json" {
		return firstOf(err, func() error { return a.PrintJSON(h) })
	}
	fields := [][2]string{
		{"id", h.ID}, {"state", stateOf(h)}, {"url", h.URL}, {"about", h.Description}, {"owner", h.Owner},
		{"types", strings.Join(h.Filter.Types, ", ")}, {"entity", h.Filter.Entity}, {"vm", h.Filter.VM}, {"host", h.Filter.Host}, {"of", h.Filter.Owner},
		{"cursor", h.Cursor}, {"secret", h.Secret},
	}
	if h.Disabled != nil {
		why := h.Disabled.Rule + " by " + h.Disabled.Actor
		if h.Disabled.Evidence != "" {
			why += ": " + h.Disabled.Evidence
		}
		fields = append(fields, [2]string{"disabled", why})
	}
	return a.Sheet(a.Out, fields)
}

func (a *app) printDelivery(d gen.Delivery) error {
	format, err := a.Format()
	if err != nil || format == "json" {
		return firstOf(err, func() error { return a.PrintJSON(d) })
	}
	return a.Sheet(a.Out, [][2]string{
		{"id", d.ID}, {"type", d.Type}, {"state", d.State}, {"tries", strconv.Itoa(d.Attempts)}, {"status", status(d)},
		{"took", fmt.Sprintf("%.0f ms", d.TookMs)}, {"answer", d.Answer}, {"error", d.Error},
	})
}
