// Package source holds the verbs of what playgrounds are made from: branches,
// secrets, logins of registries, git hooks, templates and previews.
package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

type app struct {
	kit.Tools
	marquee func(id string) string // its name, or the id if that is all that can be had
}

// Playground are the verbs that go below "fuse playground".
func Playground(t kit.Tools) []*cobra.Command {
	a := &app{Tools: t}
	return []*cobra.Command{a.follow(), a.branchAction("check ID", "check", "Ask the git server of a playground's branch now"),
		a.branchAction("accept ID", "accept", "Let a playground follow a branch that was rewritten; work in its checkout still keeps it where it is"),
		a.secret(), a.hook(), a.template(), a.preview()}
}

// Marquee are the verbs that go below "fuse marquee".
func Marquee(t kit.Tools) []*cobra.Command { return []*cobra.Command{(&app{Tools: t}).registry()} }

// verb is a verb that calls the server.
func (a *app) verb(use, short string, args cobra.PositionalArgs, do func(cmd *cobra.Command, p client.Sources, args []string) error) *cobra.Command {
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
			marquees := client.NewPlayguard(server)
			a.marquee = func(id string) string {
				if m, err := marquees.Marquee(cmd.Context(), id); err == nil {
					return or(m.Name, id)
				}
				return id
			}
			return do(cmd, client.NewSources(server), args)
		},
	}
}

// group is a noun with verbs of its own.
func group(use, short string, alias string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	if alias != "" {
		cmd.Aliases = []string{alias}
	}
	cmd.AddCommand(verbs...)
	return cmd
}

func (a *app) show(object any, id string, fields [][2]string) error {
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
	return a.Sheet(a.Out, fields)
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func (a *app) since(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return a.Age(time.Now(), t) + " ago"
}

// pairs reads NAME=value flags.
func (a *app) pairs(flag string, list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, v := range list {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return nil, a.Usage("%s %q: want NAME=value", flag, name)
		}
		out[name] = value
	}
	return out, nil
}

// maxSecret bounds what is read of a secret, in bytes.
const maxSecret = 64 << 10

// read takes a secret from a file, from standard input, or from a person who
// types it unseen: never from the command line.
func (a *app) read(file, what string) (string, error) {
	var raw []byte
	var err error
	in, isFile := a.In.(*os.File)
	switch {
	case file != "" && file != "-":
		raw, err = os.ReadFile(file)
	case isFile && a.IsTerminal(a.In):
		fmt.Fprintf(a.Err, "%s: ", what)
		raw, err = term.ReadPassword(int(in.Fd()))
		fmt.Fprintln(a.Err)
	default:
		raw, err = io.ReadAll(io.LimitReader(a.In, maxSecret+1))
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", what, err)
	}
	if len(raw) > maxSecret {
		return "", a.Usage("%s has more than %d bytes", what, maxSecret)
	}
	text := strings.TrimRight(string(raw), "\r\n")
	if text == "" {
		return "", a.Usage("%s is empty: give it on standard input, or with --file", what)
	}
	return text, nil
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

// lasting are the states in which nothing is under way.
var lasting = map[string]bool{"running": true, "error": true, "has_changes": true, "completed": true, "stopped": true}

// await waits for what becomes of a playground, and says how it goes.
func (a *app) await(ctx context.Context, p client.Sources, g gen.Playground, w waiting) error {
	if w.detach {
		return a.shown(g)
	}
	within, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	said := ""
	for {
		now := g.State
		if g.Step != "" {
			now += ", " + g.Step
		}
		if g.Progress != "" {
			now += ": " + g.Progress
		}
		if now != said {
			said = now
			a.Progress("%s: %s", g.Name, a.Cell(now))
		}
		if lasting[g.State] && g.Step == "" {
			if err := a.shown(g); err != nil {
				return err
			}
			if g.State != "running" {
				return a.Exit(1, fmt.Errorf("%s is %s: %s\n  fuse playground explain %s says more", g.Name, g.State, a.Cell(or(g.Failure.Text, or(g.Reason, "no reason is known"))), g.Name))
			}
			return nil
		}
		next, err := p.Playground(within, g.ID, 2)
		switch {
		case err == nil:
			g = next
		case within.Err() != nil:
			a.Progress("the server goes on with it; see 'fuse playground get %s'", g.Name)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return a.Exit(124, errors.New("it takes longer than that"))
		default:
			return err
		}
	}
}

func (a *app) shown(g gen.Playground) error {
	b := g.Branch
	fields := [][2]string{
		{"name", g.Name}, {"id", g.ID}, {"state", g.State}, {"marquee", a.marquee(g.Marquee)}, {"branch", b.Branch + " of " + b.Repository},
		{"commit", or(b.Commit, "-")}, {"checked out", or(b.Head, "-")}, {"reason", g.Reason},
	}
	if b.Problem != "" {
		fields = append(fields, [2]string{"problem", b.Problem + ", " + a.since(b.ProblemAt) + ": " + b.Why})
	}
	if g.Failure.Text != "" {
		fields = append(fields, [2]string{"failure", g.Failure.Text})
	}
	return a.show(g, g.ID, fields)
}

// follow is "playground follow".
func (a *app) follow() *cobra.Command {
	var req gen.FollowBranch
	var vars, secrets []string
	var hosts string
	var w waiting
	cmd := a.verb("follow REPOSITORY", "Bring up a branch of a git repository, and every commit that reaches it", cobra.ExactArgs(1),
		func(cmd *cobra.Command, p client.Sources, args []string) (err error) {
			req.Repository = args[0]
			if req.Variables, err = a.pairs("--var", vars); err != nil {
				return err
			}
			if req.SecretVariables, err = a.pairs("--secret-var", secrets); err != nil {
				return err
			}
			if hosts != "" {
				raw, err := os.ReadFile(hosts)
				if err != nil {
					return fmt.Errorf("read the known hosts: %w", err)
				}
				req.KnownHosts = string(raw)
			}
			req.Name = or(req.Name, nameOf(req.Repository, req.Branch))
			g, err := p.FollowBranch(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.await(cmd.Context(), p, g, w)
		})
	cmd.Long = "follow has the marquee check the branch out and brings up its compose file. From then on each\n" +
		"commit that reaches the branch is brought up as 'fuse playground up' would: services that do not\n" +
		"change keep running, and a definition that is refused or does not come up leaves the version\n" +
		"before in place. A checkout that somebody works in stays as it is.\n\n" +
		"FUSE_BRANCH, FUSE_COMMIT and FUSE_NAME can be used in the compose file."
	f := cmd.Flags()
	f.StringVarP(&req.Name, "name", "n", "", "`name` of the playground (default: the repository's and the branch's)")
	f.StringVarP(&req.Marquee, "marquee", "m", "", "`marquee` to run on (default: the only one)")
	f.StringVarP(&req.Branch, "branch", "b", "main", "`branch` to follow")
	f.StringVarP(&req.Path, "path", "f", "", "compose `file` in the repository (default: compose.yaml and its like)")
	f.StringVar(&req.Secret, "secret", "", "`name` of the secret to fetch with: a token for https, a deploy key for ssh")
	f.StringVar(&hosts, "known-hosts", "", "`file` with the ssh server's keys, as ssh-keyscan prints them")
	f.IntVar(&req.Depth, "depth", 0, "`commits` to fetch at once (default 50)")
	f.BoolVar(&req.Submodules, "submodules", false, "check submodules out too")
	f.StringArrayVar(&vars, "var", nil, "fill in a variable, `NAME=value` (repeatable)")
	f.StringArrayVar(&secrets, "secret-var", nil, "fill in a variable with a secret, `NAME=secret` (repeatable)")
	f.StringVar(&req.Pull, "pull", "", "`when` images are fetched before they are needed: missing, always or digest")
	f.StringVar(&req.Expires, "expires", "", "when it ends by itself: 72h, a time, or never")
	f.BoolVar(&req.KeepVolumes, "keep-volumes", false, "a destroy leaves the named volumes")
	w.register(cmd)
	return cmd
}

// nameOf is the name of a playground that was given none.
func nameOf(repository, branch string) string {
	name := strings.TrimSuffix(strings.TrimRight(repository, "/"), ".git")
	name = name[strings.LastIndexAny(name, "/:")+1:]
	if branch != "main" && branch != "master" {
		name += "-" + strings.ReplaceAll(branch, "/", "-")
	}
	return name
}

func (a *app) branchAction(use, action, short string) *cobra.Command {
	return a.verb(use, short, cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Sources, args []string) error {
		g, err := p.ActOnBranch(cmd.Context(), args[0], action)
		if err != nil {
			return err
		}
		a.Progress("its marquee is asked to; 'fuse playground get %s' shows in some seconds what came of it", g.Name)
		return a.shown(g)
	})
}
