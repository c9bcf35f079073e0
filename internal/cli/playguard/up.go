package playguard

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
)

// upping is one "playground up".
type upping struct {
	*app
	file, name, marquee, envFile, pull string
	vars, policy                       []string
	expires                            string
	keepVolumes, yes, plan             bool
	waiting
}

// waiting are the flags of verbs that ask for work.
type waiting struct {
	detach  bool
	timeout time.Duration
}

func (w *waiting) register(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&w.detach, "detach", "d", false, "do not wait for what becomes of it")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 15*time.Minute, "how long to wait; the work goes on after it")
}

func (a *app) up() *cobra.Command {
	x := &upping{app: a}
	cmd := a.verb("up [DIRECTORY]", "Bring up the compose file of a directory, on a marquee", cobra.MaximumNArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		dir := "."
		if len(args) > 0 {
			dir = args[0]
		}
		return x.run(cmd.Context(), p, dir)
	})
	cmd.Long = "up sends the compose file and the files that it uses, shows what would change on the\n" +
		"marquee, asks, and waits until the playground runs. A playground of that name gets the\n" +
		"new definition: services that do not change keep running, and one that does not come up\n" +
		"leaves the version before in place.\n\n" +
		"Variables in the file are filled in from --var, this shell's environment, --env-file and\n" +
		"a file .env beside it, in that order. Images are pulled by the marquee, not built."
	f := cmd.Flags()
	f.StringVarP(&x.file, "file", "f", "", "compose `file` (default: compose.yaml and its like)")
	f.StringVarP(&x.name, "name", "n", "", "`name` of the playground (default: the directory's)")
	f.StringVarP(&x.marquee, "marquee", "m", "", "`marquee` to run on (default: where it is, or the only one)")
	f.StringArrayVar(&x.vars, "var", nil, "fill in a variable, `NAME=value` (repeatable)")
	f.StringVar(&x.envFile, "env-file", "", "`file` with variables, one NAME=value a line")
	f.StringVar(&x.pull, "pull", "", "`when` images are fetched before anything is touched: missing, always or digest (default: Compose does, within its five minutes)")
	f.BoolVar(&x.keepVolumes, "keep-volumes", false, "a destroy leaves the named volumes")
	f.StringVar(&x.expires, "expires", "", "when it ends by itself: a `duration` such as 72h or 3d, a time, or never (default: as the marquee says)")
	f.BoolVar(&x.plan, "plan", false, "only show what would change")
	f.BoolVarP(&x.yes, "yes", "y", false, "do not ask")
	policyFlag(cmd, &x.policy)
	x.register(cmd)
	return cmd
}

func (x *upping) run(ctx context.Context, p client.Playguard, dir string) error {
	req, err := x.request(dir)
	if err != nil {
		return err
	}
	plan, err := p.Plan(ctx, req)
	if err != nil {
		return err
	}
	format, err := x.Format()
	if err != nil {
		return err
	}
	if x.plan && format == "json" {
		return x.PrintJSON(plan)
	}
	x.printPlan(plan)
	switch {
	case plan.Refused != "":
		return x.Exit(1, fmt.Errorf("this is not possible now: %s", x.Cell(plan.Refused)))
	case x.plan:
		return nil
	case len(plan.Changes) == 0 && plan.State == "running" && x.expires == "":
		x.Progress("nothing would change")
		g, err := p.Playground(ctx, plan.ID, 0)
		return x.showPlayground(g, err)
	case !x.yes:
		if err := x.ask("Go on?", "--yes"); err != nil {
			return err
		}
	}
	var before time.Time
	if !plan.New {
		old, err := p.Playground(ctx, plan.ID, 0)
		if err != nil {
			return err
		}
		before = old.LastRollout.At
	}
	req.Plan = plan.Token
	g, err := p.Up(ctx, req)
	if err != nil {
		return err
	}
	return x.follow(ctx, p, g, x.waiting, func(g gen.Playground) error {
		if r := g.LastRollout; r.Result == "failed" && !r.At.Equal(before) {
			return fmt.Errorf("the change did not come up and was taken back; the version before is in place: %s", x.Cell(or(failureText(r.Failure), "see 'fuse playground explain'")))
		}
		return wentWell(x.app, g, "running")
	})
}

func (x *upping) request(dir string) (req gen.UpPlayground, err error) {
	d, err := x.openDirectory(dir, x.file)
	if err != nil {
		return req, err
	}
	req = gen.UpPlayground{Name: or(x.name, filepath.Base(d.root)), Marquee: x.marquee, Compose: filepath.ToSlash(d.compose), KeepVolumes: x.keepVolumes, Pull: x.pull, Expires: x.expires}
	if req.Policy, err = x.parsePolicy(x.policy); err != nil {
		return req, err
	}
	text, err := d.add(d.compose)
	if err != nil {
		return req, err
	}
	req.Variables = map[string]string{}
	if x.envFile != "" {
		raw, err := os.ReadFile(x.envFile)
		if err != nil {
			return req, fmt.Errorf("read the variables: %w", err)
		}
		maps.Copy(req.Variables, parseEnv(raw))
	}
	maps.Copy(req.Variables, fromEnvironment(text, os.LookupEnv))
	for _, v := range x.vars {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return req, x.Usage("--var %q: want NAME=value", name)
		}
		req.Variables[name] = value
	}
	if err := d.collect(req.Variables); err != nil {
		return req, err
	}
	req.Files = d.files
	return req, nil
}

func (x *upping) printPlan(p gen.PlaygroundPlan) {
	what := "is new"
	if !p.New {
		what = "is " + p.State
	}
	fmt.Fprintf(x.Err, "playground %s on marquee %s %s\n", x.Cell(p.Name), x.Cell(p.MarqueeName), x.Cell(what))
	for _, c := range p.Changes {
		sign := map[string]string{"create": "+", "replace": "~", "remove": "-"}[c.Does]
		name := c.Name
		if c.What == "volume" {
			name = strings.TrimPrefix(name, p.Project+"_")
		}
		fmt.Fprintf(x.Err, "  %s %-7s %s", or(sign, "?"), x.Cell(c.What), x.Cell(name))
		if c.Detail != "" {
			fmt.Fprintf(x.Err, "  (%s)", x.Cell(c.Detail))
		}
		fmt.Fprintln(x.Err)
	}
	if len(p.Unchanged) > 0 {
		what := "unchanged"
		if p.State == "running" || p.State == "has_changes" {
			what = "keep running"
		}
		fmt.Fprintf(x.Err, "  = %s: %s\n", what, x.Cell(strings.Join(p.Unchanged, ", ")))
	}
	for _, w := range p.Warnings {
		fmt.Fprintf(x.Err, "  warning: %s\n", x.Cell(w))
	}
}

// lasting are the states in which nothing is under way.
var lasting = map[string]bool{"running": true, "error": true, "has_changes": true, "completed": true, "stopped": true}

const (
	// waitStep is how long one request waits, in seconds.
	waitStep = 2
	// maxMisses is how many requests in a row may fail while waiting, a second
	// apart.
	maxMisses = 30
)

// follow waits for what becomes of a wish and prints the playground. When the
// waiting is cut short it says what goes on without it.
func (a *app) follow(ctx context.Context, p client.Playguard, g gen.Playground, w waiting, judge func(gen.Playground) error) error {
	if w.detach {
		return a.showPlayground(g, nil)
	}
	within, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	said, misses := "", 0
	for {
		if now := progressOf(g); now != said {
			said = now
			a.Progress("%s: %s", g.Name, now)
		}
		if lasting[g.State] && g.Step == "" {
			if err := a.showPlayground(g, nil); err != nil {
				return err
			}
			return judge(g)
		}
		next, err := p.Playground(within, g.ID, waitStep)
		switch {
		case err == nil:
			g, misses = next, 0
		case client.CodeOf(err) == "not_found" && g.State == "destroying":
			return nil
		case within.Err() != nil:
			a.Progress("the server goes on with it; see 'fuse playground get %s', and why with 'fuse playground explain %s'", g.Name, g.Name)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return a.Exit(124, fmt.Errorf("%s is still %s after %s", g.Name, progressOf(g), w.timeout))
		case misses < maxMisses && (client.CodeOf(err) == "unavailable" || client.CodeOf(err) == ""): // a restart, or another leader
			misses++
			pause(within)
		default:
			return err
		}
	}
}

// pause waits a second, unless ctx ends first.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

func progressOf(g gen.Playground) string {
	text := g.State
	if g.Step != "" {
		text += ", " + g.Step
	}
	return text
}

// wentWell is the error of a playground that did not come to a state.
func wentWell(a *app, g gen.Playground, want string) error {
	if g.State == want {
		return nil
	}
	why := failureText(g.Failure)
	return a.Exit(1, fmt.Errorf("%s is %s: %s\n  fuse playground explain %s says more", g.Name, g.State, a.Cell(or(why, or(g.Reason, "no reason is known"))), g.Name))
}
