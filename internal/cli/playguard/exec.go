package playguard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
)

func (a *app) logs() *cobra.Command {
	var follow, stamps bool
	var tail int
	var since time.Duration
	cmd := a.verb("logs ID [SERVICE...]", "Print what a playground's containers wrote", cobra.MinimumNArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		params := gen.PlaygroundLogsParams{Tail: &tail}
		if len(args) > 1 {
			services := args[1:]
			params.Service = &services
		}
		if follow {
			params.Follow = &follow
		}
		if stamps {
			params.Timestamps = &stamps
		}
		if since > 0 {
			params.Since = new(int(since / time.Second))
		}
		err := p.Logs(cmd.Context(), args[0], params, a.Out)
		if follow && errors.Is(cmd.Context().Err(), context.Canceled) {
			return a.Exit(130, nil) // nothing goes on without it
		}
		return err
	})
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on as they write, until ^C")
	f.BoolVarP(&stamps, "timestamps", "t", false, "the time before each line")
	f.IntVar(&tail, "tail", 200, "this many lines of each container, at most 10000")
	f.DurationVar(&since, "since", 0, "not older than this")
	return cmd
}

// running is one "playground exec".
type running struct {
	*app
	env              []string
	user, workdir    string
	stdin, noConsole bool
}

func (a *app) exec() *cobra.Command {
	x := &running{app: a}
	cmd := a.verb("exec [flags] ID SERVICE -- CMD [ARG...]", "Run a command in a container of a service", cobra.MinimumNArgs(3), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		return x.run(cmd.Context(), p, args)
	})
	cmd.Long = "exec passes the command's output and exit code through. It gets a terminal if this is\none, and standard input if that is a terminal or with --stdin. ^C and a connection that is\nlost end the command."
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&x.stdin, "stdin", "i", false, "send standard input to the command")
	f.BoolVarP(&x.noConsole, "no-terminal", "T", false, "no terminal, also where there is one")
	f.StringArrayVarP(&x.env, "env", "e", nil, "set a variable, `k=v` (repeatable)")
	f.StringVarP(&x.workdir, "workdir", "w", "", "working directory")
	f.StringVarP(&x.user, "user", "u", "", "user: a name, uid or uid:gid")
	return cmd
}

func (x *running) run(ctx context.Context, p client.Playguard, args []string) error {
	command := args[2:]
	if command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 {
		return x.Usage("no command is given")
	}
	e := client.PlaygroundExec{
		ExecPlayground: gen.ExecPlayground{Service: args[1], Command: command, User: x.user, Workdir: x.workdir, Env: map[string]string{}},
		Stdout:         x.Out, Stderr: x.Err,
	}
	for _, v := range x.env {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return x.Usage("--env %q: want NAME=value", name)
		}
		e.Env[name] = value
	}
	terminal := x.IsTerminal(x.In) && x.IsTerminal(x.Out) && !x.noConsole
	if x.stdin || terminal {
		e.Input = x.In
	}
	if terminal {
		restore, err := x.console(ctx, &e)
		if err != nil {
			return err
		}
		defer restore()
	}
	status, err := p.Exec(ctx, args[0], e)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		x.Progress("the command in %s is told to end", args[1])
		return ctx.Err()
	case err != nil:
		return err
	case status != 0:
		return x.Exit(status, nil)
	}
	return nil
}

// console puts the terminal into raw mode and follows its size. Interrupts are
// the command's until restore.
func (x *running) console(ctx context.Context, e *client.PlaygroundExec) (restore func(), err error) {
	file, ok := x.In.(*os.File)
	if !ok {
		return nil, errors.New("standard input is no terminal")
	}
	fd := int(file.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("take over the terminal: %w", err)
	}
	size := func() gen.ExecTerminal {
		columns, rows, err := term.GetSize(fd)
		if err != nil {
			columns, rows = 80, 24
		}
		return gen.ExecTerminal{Name: os.Getenv("TERM"), Rows: rows, Columns: columns}
	}
	e.Terminal = size()
	sizes, changed := make(chan gen.ExecTerminal), make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			select {
			case <-ctx.Done():
				return
			case sizes <- size():
			}
		}
	}()
	e.Sizes = sizes
	return func() {
		cancel()
		signal.Stop(changed)
		term.Restore(fd, before) //nolint:errcheck // the terminal is gone then
	}, nil
}
