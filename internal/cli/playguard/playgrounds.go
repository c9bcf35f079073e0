package playguard

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
)

func (a *app) list() *cobra.Command {
	var marquee, state string
	cmd := a.verb("ls", "List playgrounds", cobra.NoArgs, func(cmd *cobra.Command, p client.Playguard, _ []string) error {
		all := gen.PlaygroundList{Playgrounds: []gen.Playground{}}
		params := gen.ListPlaygroundsParams{Limit: new(200)}
		if marquee != "" {
			params.Marquee = &marquee
		}
		if state != "" {
			params.State = &state
		}
		for {
			page, err := p.Playgrounds(cmd.Context(), params)
			if err != nil {
				return err
			}
			all.Playgrounds = append(all.Playgrounds, page.Playgrounds...)
			if page.NextCursor == "" {
				break
			}
			params.Cursor = &page.NextCursor
		}
		names := a.marqueeNames(cmd.Context(), p)
		var rows [][]string
		for _, g := range all.Playgrounds {
			note := or(g.Attention, failureText(g.Failure))
			rows = append(rows, []string{g.Name, g.ID, or(names[g.Marquee], g.Marquee), progressOf(g), strconv.Itoa(len(g.Services)), or(addressText(g, false), "-"), a.since(g.StateSince), or(note, "-")})
		}
		return a.PrintList(all, []string{"NAME", "ID", "MARQUEE", "STATE", "SERVICES", "ADDRESS", "SINCE", "NOTE"}, rows)
	})
	cmd.Aliases = []string{"list"}
	cmd.Flags().StringVarP(&marquee, "marquee", "m", "", "only those on this `marquee`")
	cmd.Flags().StringVar(&state, "state", "", "only those in this `state`")
	return cmd
}

// marqueeNames are names by id, as far as they can be had.
func (a *app) marqueeNames(ctx context.Context, p client.Playguard) map[string]string {
	names := map[string]string{}
	page, err := p.Marquees(ctx, gen.ListMarqueesParams{Limit: new(200)})
	if err != nil {
		return names
	}
	for _, m := range page.Marquees {
		names[m.ID] = m.Name
	}
	return names
}

func (a *app) get() *cobra.Command {
	return a.verb("get ID", "Show a playground", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		g, err := p.Playground(cmd.Context(), args[0], 0)
		return a.showPlayground(g, err)
	})
}

func (a *app) showPlayground(g gen.Playground, err error) error {
	if err != nil {
		return err
	}
	return a.show(g, g.ID, func() error { return a.Sheet(a.Out, a.playgroundFields(g)) })
}

// addressText are the addresses of a playground: all of them with what they lead
// to, or only those that other machines may reach.
func addressText(g gen.Playground, all bool) string {
	var out []string
	for _, x := range g.Addresses {
		switch {
		case !all && x.Scope != "host":
			out = append(out, x.Address)
		case !all:
		case x.Scope == "host":
			out = append(out, x.Address+" on the host alone → "+x.Service+" "+x.Inside)
		case x.Scope == "public":
			out = append(out, x.Address+" → "+x.Service+" "+x.Inside)
		default:
			out = append(out, x.Address+" by "+x.Scope+" → "+x.Service+" "+x.Inside)
		}
	}
	return strings.Join(out, ", ")
}

func (a *app) playgroundFields(g gen.Playground) [][2]string {
	var services []string
	for _, s := range g.Services {
		services = append(services, s.Name)
	}
	fields := [][2]string{
		{"name", g.Name}, {"id", g.ID}, {"state", progressOf(g) + ", since " + a.since(g.StateSince)}, {"wanted", g.Intent},
		{"reason", g.Reason}, {"failure", failureText(g.Failure)}, {"attention", g.Attention},
		{"marquee", a.marqueeName(g.Marquee)}, {"project", g.Project}, {"owner", g.Owner},
		{"services", strings.Join(services, ", ")}, {"addresses", addressText(g, true)}, {"volumes", strings.Join(g.Volumes, ", ")},
		{"applied", appliedText(a, g)},
	}
	if g.Desired != "" && g.Desired != g.Applied {
		fields = append(fields, [2]string{"next", short(g.Desired)})
	}
	if r := g.LastRollout; r.Result != "" {
		text := r.Result + ", " + a.since(r.At)
		if why := failureText(r.Failure); why != "" {
			text += ": " + why
		}
		fields = append(fields, [2]string{"change", text})
	}
	if !g.ExpiresAt.IsZero() {
		text := g.ExpiresAt.Local().Format(time.RFC3339)
		if !g.EndsAt.IsZero() {
			text += ", and goes at " + g.EndsAt.Local().Format(time.RFC3339) + " at the earliest"
		}
		fields = append(fields, [2]string{"expires", text})
	}
	if b := g.Branch; b.Repository != "" {
		text := b.Branch + " of " + b.Repository + ", at " + or(short(b.Commit), "nothing yet")
		if b.Problem != "" {
			text += "; " + b.Problem + " since " + a.since(b.ProblemAt) + ": " + b.Why
		}
		fields = append(fields, [2]string{"branch", text})
	}
	if g.Progress != "" {
		fields = append(fields, [2]string{"progress", g.Progress})
	}
	if g.KeepVolumes {
		fields = append(fields, [2]string{"destroy", "leaves the volumes"})
	}
	return fields
}

// appliedText is the definition that runs and since when, where that is known: of
// one that was adopted it is not.
func appliedText(a *app, g gen.Playground) string {
	if g.Applied == "" || g.AppliedAt.IsZero() {
		return short(g.Applied)
	}
	return short(g.Applied) + ", " + a.since(g.AppliedAt)
}

// action is a verb that asks something of a playground and waits.
func (a *app) action(use, action, text string) *cobra.Command {
	var w waiting
	want := "running"
	if action == "stop" {
		want = "stopped"
	}
	cmd := a.verb(use, text, cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		g, err := p.Act(cmd.Context(), args[0], action)
		if err != nil {
			return err
		}
		return a.follow(cmd.Context(), p, g, w, func(g gen.Playground) error { return wentWell(a, g, want) })
	})
	w.register(cmd)
	return cmd
}

func (a *app) destroy() *cobra.Command {
	var w waiting
	var yes, keep bool
	cmd := a.verb("destroy ID", "Destroy a playground: its containers, named volumes and files", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		g, err := p.Playground(cmd.Context(), args[0], 0)
		if err != nil {
			return err
		}
		var keepVolumes *bool
		if cmd.Flags().Changed("keep-volumes") {
			keepVolumes = &keep
		}
		if !yes {
			if err := a.ask(destroyQuestion(g, keepVolumes), "--yes"); err != nil {
				return err
			}
		}
		if g, err = p.Destroy(cmd.Context(), g.ID, keepVolumes); err != nil {
			return err
		}
		return a.follow(cmd.Context(), p, g, w, func(g gen.Playground) error { return wentWell(a, g, "destroyed") })
	})
	cmd.Aliases = []string{"rm"}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&keep, "keep-volumes", false, "leave the named volumes; --keep-volumes=false removes them whatever the playground says")
	w.register(cmd)
	return cmd
}

func destroyQuestion(g gen.Playground, keep *bool) string {
	stay := g.KeepVolumes
	if keep != nil {
		stay = *keep
	}
	text := fmt.Sprintf("Destroy %s (%s, %d services)", g.Name, g.Project, len(g.Services))
	switch {
	case len(g.Volumes) == 0:
		return text + "?"
	case stay:
		return text + "? Its volumes stay: " + strings.Join(g.Volumes, ", ") + "."
	}
	return text + " and its volumes " + strings.Join(g.Volumes, ", ") + "? What is in them is gone for good."
}

func (a *app) forget() *cobra.Command {
	var yes bool
	cmd := a.verb("forget ID", "Drop a playground's record; nothing on its host is touched", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		if !yes {
			if err := a.ask("Forget "+args[0]+"? It goes on running and nobody looks after it; 'adopt' takes it back.", "--yes"); err != nil {
				return err
			}
		}
		return p.Forget(cmd.Context(), args[0])
	})
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func (a *app) adopt() *cobra.Command {
	var name string
	cmd := a.verb("adopt MARQUEE PROJECT", "Take a playground without a record back into the records", cobra.ExactArgs(2), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		g, err := p.Adopt(cmd.Context(), args[0], gen.AdoptPlayground{Project: args[1], Name: name})
		return a.showPlayground(g, err)
	})
	cmd.Long = "adopt takes back what its marker on the host proves to be of this installation, as\n'fuse marquee get' lists it. Nothing on the host is touched."
	cmd.Flags().StringVarP(&name, "name", "n", "", "its `name` (default: the one in the project)")
	return cmd
}

func (a *app) explain() *cobra.Command {
	return a.verb("explain ID", "Say why a playground is as it is, and what happens next", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		e, err := p.Explain(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return a.show(e, e.Playground.ID, func() error { return a.printExplanation(e) })
	})
}

func (a *app) printExplanation(e gen.PlaygroundExplanation) error {
	if err := a.Sheet(a.Out, a.playgroundFields(e.Playground)); err != nil {
		return err
	}
	fmt.Fprintln(a.Out, "\nWhat was seen")
	switch {
	case e.Look.Verdict == "":
		fmt.Fprintln(a.Out, "  this server has not looked yet")
	default:
		for _, f := range a.lookFields(e.Look) {
			if f[1] != "" {
				fmt.Fprintf(a.Out, "  %s: %s\n", f[0], a.Cell(f[1]))
			}
		}
		fmt.Fprintf(a.Out, "  its containers: %s\n", or(a.Cell(e.Condition), "not seen"))
	}
	for _, c := range e.Containers {
		text := c.State
		if c.Health != "" {
			text += ", " + c.Health
		}
		if c.State == "exited" || c.State == "dead" {
			text += fmt.Sprintf(", exit status %d", c.Exit)
		}
		if c.Outdated {
			text += ", of another definition than is wanted"
		}
		fmt.Fprintf(a.Out, "    %s %s: %s\n", a.Cell(c.Service), a.Cell(c.Name), a.Cell(text))
	}
	if e.Dirt != "" && e.Dirt != "clean" {
		fmt.Fprintf(a.Out, "  work in its checkouts: %s %s\n", a.Cell(e.Dirt), a.Cell(e.DirtWhy))
	}
	fmt.Fprintln(a.Out, "\nWhat was decided")
	if len(e.Decisions) == 0 {
		fmt.Fprintln(a.Out, "  nothing yet")
	}
	for _, d := range e.Decisions {
		a.printDecision(d)
	}
	fmt.Fprintln(a.Out, "\nWhat happens next")
	for _, line := range e.Next {
		fmt.Fprintf(a.Out, "  %s\n", a.Cell(line))
	}
	return nil
}

func (a *app) printDecision(d gen.PlaygroundDecision) {
	when := a.since(d.Last)
	if d.Count > 1 {
		when += fmt.Sprintf(", %d looks in a row", d.Count)
	}
	fmt.Fprintf(a.Out, "  %s: %s, rule %s", a.Cell(when), a.Cell(d.Verdict), or(a.Cell(d.Rule), "none"))
	switch {
	case d.Guard != "":
		fmt.Fprintf(a.Out, ", refused by %s", a.Cell(d.Guard))
	case d.Act != "":
		fmt.Fprintf(a.Out, ", %s", a.Cell(d.Act))
	}
	if d.Why != "" {
		fmt.Fprintf(a.Out, " (%s)", a.Cell(d.Why))
	}
	fmt.Fprintln(a.Out)
}
