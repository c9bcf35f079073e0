// Package reconcile holds the verbs of the reconcile loop: how it stands, what
// it would do next, and the pauses of what it destroys.
package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

type app struct{ kit.Tools }

// Command is "fuse reconcile" with its verbs.
func Command(t kit.Tools) *cobra.Command { return reconcileCmd(&app{t}) }

func reconcileCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reconcile", Short: "Watch and pause the loop that clears away what leaks", Args: cobra.NoArgs,
		Long: "Every 30 seconds the server compares its state with its hosts, clears away what\nleaks, and ends environments that are too old or that nobody uses.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(reconcileStatusCmd(a), reconcilePlanCmd(a), reconcilePauseCmd(a), reconcileResumeCmd(a))
	return cmd
}

func reconcileStatusCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show pauses, limits and the last cycle", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			api, err := a.Server()
			if err != nil {
				return err
			}
			s, err := api.Reconcile(cmd.Context())
			if err != nil || format == "json" {
				return a.jsonOr(err, s)
			}
			return a.printStatus(s)
		},
	}
}

// jsonOr prints an object, unless it could not be had.
func (a *app) jsonOr(err error, object any) error {
	if err != nil {
		return err
	}
	return a.PrintJSON(object)
}

func (a *app) printStatus(s gen.Reconcile) error {
	out := a.Out
	a.printPauses(s.Pauses)
	l := s.Limits
	fmt.Fprintf(out, "every %s; an environment that names no limit ends %s\n",
		time.Duration(s.IntervalSeconds*float64(time.Second)), ends(l.MaxRuntimeSeconds, l.IdleTimeoutSeconds))
	fmt.Fprintf(out, "each pass begins on one host at most %s destructions a cycle, %s an hour\n", orAll(l.MaxDestroyPerCycle), orAll(l.MaxDestroyPerHour))
	for _, b := range s.Budgets {
		if b.Exhausted {
			fmt.Fprintf(out, "BUDGET SPENT: pass %s on host %s, %d within the hour; the rest waits\n", a.Cell(b.Pass), a.Cell(b.Host), b.Begun)
		}
	}
	if s.Last == nil {
		fmt.Fprintln(out, "no cycle has ended yet")
		return nil
	}
	fmt.Fprintf(out, "last cycle %s ago, %.0f ms: %d tracked, %d on hosts\n", time.Since(s.Last.At).Round(time.Second), s.Last.TookMs, s.Last.Tracked, s.Last.Listed)
	return a.printCycle(*s.Last)
}

func (a *app) printCycle(c gen.ReconcileCycle) error {
	out := a.Out
	if c.Aborted != "" {
		fmt.Fprintf(out, "it ended early: %s\n", a.Cell(c.Aborted))
	}
	for _, why := range c.Skipped {
		fmt.Fprintf(out, "left out: %s\n", a.Cell(why))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Counts)) {
		fmt.Fprintf(out, "  %-22s %d\n", a.Cell(strings.ReplaceAll(name, "_", " ")), c.Counts[name])
	}
	rows := make([][]string, 0, len(c.Hosts))
	for _, h := range c.Hosts {
		rows = append(rows, []string{a.Cell(h.Host), a.Cell(h.Look), fmt.Sprintf("%.0f ms", h.TookMs), strconv.Itoa(h.Tracked), strconv.Itoa(h.Listed), a.Cell(h.Reason)})
	}
	return a.Table(out, []string{"HOST", "LOOK", "TOOK", "TRACKED", "LISTED", "REASON"}, rows)
}

// ends completes "an environment that names no limit ends"; 0 is no limit.
func ends(runtime, idle int64) string {
	text := func(seconds int64) string { return (time.Duration(seconds) * time.Second).String() }
	switch {
	case runtime == 0 && idle == 0:
		return "neither for its age nor for being unused"
	case idle == 0:
		return "at the age of " + text(runtime) + ", not for being unused"
	case runtime == 0:
		return "once unused for " + text(idle) + ", not for its age"
	}
	return "at the age of " + text(runtime) + ", or once unused for " + text(idle)
}

func orAll(n int) string {
	if n == 0 {
		return "any number of"
	}
	return strconv.Itoa(n)
}

func (a *app) printPauses(pauses []gen.Pause) {
	for _, p := range pauses {
		where := "ON EVERY HOST"
		if p.Host != "" {
			where = "on host " + a.Cell(p.Host)
		}
		fmt.Fprintf(a.Out, "PAUSED %s by %s since %s: nothing is destroyed there that nobody asked for", where, a.Cell(p.Actor), p.At.Format(time.RFC3339))
		if p.Reason != "" {
			fmt.Fprintf(a.Out, " (%s)", a.Cell(p.Reason))
		}
		fmt.Fprintln(a.Out)
	}
}

func reconcilePlanCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "plan", Short: "Show what the next cycle would do, and do nothing", Args: cobra.NoArgs,
		Long: "plan looks at the hosts now and shows what would follow, with the evidence. Nothing\nis done, and nothing is remembered of it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			api, err := a.Server()
			if err != nil {
				return err
			}
			p, err := api.PlanReconcile(cmd.Context())
			if err != nil || format == "json" {
				return a.jsonOr(err, p)
			}
			return a.printPlan(p)
		},
	}
}

func (a *app) printPlan(p gen.ReconcilePlan) error {
	out := a.Out
	for _, h := range p.Cycle.Hosts {
		if h.Look != "complete" {
			fmt.Fprintf(out, "host %s is %s (%s): its %d environments are left as they are\n", a.Cell(h.Host), a.Cell(h.Look), a.Cell(h.Reason), h.Tracked)
		}
	}
	for _, why := range p.Cycle.Skipped {
		fmt.Fprintf(out, "left out: %s\n", a.Cell(why))
	}
	if len(p.Steps)+len(p.Withheld) == 0 {
		fmt.Fprintln(out, "nothing to do")
	}
	for _, s := range p.Steps {
		fmt.Fprintf(out, "%s %s\n    %s: %s\n", a.Cell(s.Step), a.about(s), a.Cell(s.Rule), a.Cell(s.Evidence))
	}
	for _, s := range p.Withheld {
		fmt.Fprintf(out, "would wait: %s %s\n    %s\n    %s: %s\n", a.Cell(s.Step), a.about(s), a.Cell(s.WaitsFor), a.Cell(s.Rule), a.Cell(s.Evidence))
	}
	return nil
}

func (a *app) about(s gen.ReconcileStep) string {
	parts := []string{}
	for _, part := range []string{s.VM, s.Snapshot} {
		if part != "" {
			parts = append(parts, a.Cell(part))
		}
	}
	if s.Host != "" {
		parts = append(parts, "on "+a.Cell(s.Host))
	}
	return strings.Join(parts, " ")
}

func reconcilePauseCmd(a *app) *cobra.Command {
	var req gen.PauseReconcile
	cmd := &cobra.Command{
		Use: "pause", Short: "Stop what the loop would destroy", Args: cobra.NoArgs,
		Long: "pause stops destruction that nobody asked for, on one host or everywhere, until\n'fuse reconcile resume'. It outlives the server. Looking goes on, and so does what\nusers ask to destroy.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.named(cmd); err != nil {
				return err
			}
			return a.changePauses(func(api *client.API) (gen.Pauses, error) { return api.PauseReconcile(cmd.Context(), req) })
		},
	}
	cmd.Flags().StringVar(&req.Host, "host", "", "on this host alone")
	_ = cmd.RegisterFlagCompletionFunc("host", a.Hosts)
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for people")
	return cmd
}

func reconcileResumeCmd(a *app) *cobra.Command {
	var host string
	cmd := &cobra.Command{
		Use: "resume", Short: "End a pause", Args: cobra.NoArgs,
		Long: "resume ends the pause of everything, or with --host that of one host. What waited is\nseen once more before it acts.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.named(cmd); err != nil {
				return err
			}
			return a.changePauses(func(api *client.API) (gen.Pauses, error) { return api.ResumeReconcile(cmd.Context(), host) })
		},
	}
	cmd.Flags().StringVar(&host, "host", "", "the pause of this host")
	_ = cmd.RegisterFlagCompletionFunc("host", a.Hosts)
	return cmd
}

// named keeps --host "$HOST" with nothing in it from meaning every host.
func (a *app) named(cmd *cobra.Command) error {
	if f := cmd.Flags().Lookup("host"); f.Changed && f.Value.String() == "" {
		return a.Usage("--host names no host; leave it out to mean all of them")
	}
	return nil
}

func (a *app) changePauses(change func(*client.API) (gen.Pauses, error)) error {
	format, err := a.Format()
	if err != nil {
		return err
	}
	api, err := a.Server()
	if err != nil {
		return err
	}
	now, err := change(api)
	if err != nil || format == "json" {
		return a.jsonOr(err, now)
	}
	if len(now.Pauses) == 0 {
		fmt.Fprintln(a.Out, "nothing is paused")
	}
	a.printPauses(now.Pauses)
	return nil
}
