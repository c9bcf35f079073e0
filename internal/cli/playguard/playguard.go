// Package playguard holds the verbs of marquees and playgrounds.
package playguard

import (
	"bufio"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
	"github.com/fusevm/fuse/internal/playguard/compose"
)

type app struct {
	kit.Tools
	marqueeOf func(id string) (gen.Marquee, error) // of the verb that runs
}

// marqueeName is the name of a marquee, or its id if that is all that can be had.
func (a *app) marqueeName(id string) string {
	if a.marqueeOf == nil || id == "" {
		return id
	}
	m, err := a.marqueeOf(id)
	if err != nil {
		return id
	}
	return or(m.Name, id)
}

// Marquee is "fuse marquee" with its verbs.
func Marquee(t kit.Tools) *cobra.Command {
	a := marquees{&app{Tools: t}}
	cmd := &cobra.Command{
		Use: "marquee", Aliases: []string{"marquees"}, Short: "Docker hosts, reached over SSH, that playgrounds run on", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.add(), a.listMarquees(), a.getMarquee(), a.check(), a.quarantine(), a.takeBack(), a.policy(), a.expiry(), a.removeMarquee(), a.sweep(), a.rescan())
	return cmd
}

// Playground is "fuse playground" with its verbs.
func Playground(t kit.Tools) *cobra.Command {
	a := &app{Tools: t}
	cmd := &cobra.Command{
		Use: "playground", Aliases: []string{"playgrounds", "pg"}, Short: "Compose environments on Docker hosts", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.up(), a.list(), a.get(), a.logs(), a.exec(),
		a.action("stop ID", "stop", "Stop a playground; its data stays"),
		a.action("start ID", "start", "Start a playground that was stopped"),
		a.action("rollout ID", "rollout", "Bring a playground up again; unchanged services keep running"),
		a.action("restart ID", "hard_restart", "Take all containers of a playground down and up; volumes stay"),
		a.destroy(), a.extend(), a.explain(), a.adopt(), a.forget())
	return cmd
}

// onServer is a verb that calls the server, and can name marquees.
func onServer(a *app, use, short string, args cobra.PositionalArgs, do func(cmd *cobra.Command, server *client.API, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := a.Format(); err != nil {
				return err
			}
			server, err := a.Server()
			if err != nil {
				return err
			}
			p := client.NewPlayguard(server)
			a.marqueeOf = func(id string) (gen.Marquee, error) { return p.Marquee(cmd.Context(), id) }
			return do(cmd, server, args)
		},
	}
}

// verb is a verb of playgrounds and marquees.
func (a *app) verb(use, short string, args cobra.PositionalArgs, do func(cmd *cobra.Command, p client.Playguard, args []string) error) *cobra.Command {
	return onServer(a, use, short, args, func(cmd *cobra.Command, server *client.API, args []string) error {
		return do(cmd, client.NewPlayguard(server), args)
	})
}

// ask wants a yes of a person. Without a terminal there is nobody to ask, and
// flag is what says it instead.
func (a *app) ask(question, flag string) error {
	if !a.IsTerminal(a.In) {
		return a.Usage("%s\nThis needs a yes and there is no terminal to ask at: give %s", a.Cell(question), flag)
	}
	fmt.Fprintf(a.Err, "%s [y/N] ", a.Cell(question))
	answer, err := bufio.NewReader(a.In).ReadString('\n')
	if err != nil && answer == "" {
		fmt.Fprintln(a.Err)
		return a.Exit(1, errors.New("nothing was done"))
	}
	if s := strings.ToLower(strings.TrimSpace(answer)); s != "y" && s != "yes" {
		return a.Exit(1, errors.New("nothing was done"))
	}
	return nil
}

// show prints one object: as JSON, as its id, or as sheet does.
func (a *app) show(object any, id string, sheet func() error) error {
	format, err := a.Format()
	switch {
	case err != nil:
		return err
	case format == "json":
		return a.PrintJSON(object)
	case format == "name":
		fmt.Fprintln(a.Out, a.Cell(id))
		return nil
	}
	return sheet()
}

// parsePolicy reads --policy: one word for every danger, or danger=word.
func (a *app) parsePolicy(words []string) (gen.ComposePolicy, error) {
	if len(words) == 0 {
		return nil, nil
	}
	out := compose.Policy{}
	for _, w := range words {
		danger, verdict, named := strings.Cut(w, "=")
		if named {
			out[compose.Danger(danger)] = compose.Verdict(verdict)
			continue
		}
		for _, d := range compose.Dangers() {
			if _, said := out[d]; !said {
				out[d] = compose.Verdict(w)
			}
		}
	}
	if err := out.Validate(); err != nil {
		return nil, a.Usage("--policy: %w", err)
	}
	wire := gen.ComposePolicy{}
	for d, v := range out {
		wire[string(d)] = string(v)
	}
	return wire, nil
}

func policyFlag(cmd *cobra.Command, to *[]string) {
	cmd.Flags().StringSliceVar(to, "policy", nil, "what compose files may do that reaches beyond their containers: refuse, warn or allow, "+
		"for all of it or as `danger=word` (privileged, host_mount, host_spaces, external, proxy_labels)")
}

func policyText(p gen.ComposePolicy) string {
	var parts []string
	for _, d := range compose.Dangers() {
		parts = append(parts, string(d)+"="+p[string(d)])
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func (a *app) since(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return a.Age(time.Now(), t) + " ago"
}

func short(digest string) string { return digest[:min(len(digest), 12)] }

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// failureText is a failure in one line; empty if there is none.
func failureText(f gen.PlaygroundFailure) string {
	if f.Category == "" {
		return ""
	}
	text := f.Category
	if f.Step != "" {
		text += " in " + f.Step
	}
	if f.Text != "" {
		text += ": " + f.Text
	}
	return text
}
