// Package guest holds the verbs that reach into environments: processes,
// terminals and copies of files.
package guest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/attachframe"
	"github.com/fusevm/fuse/internal/cli/kit"
)

type app struct{ kit.Tools }

// Commands are shell, attach, cp, process and service.
func Commands(t kit.Tools) []*cobra.Command {
	a := &app{t}
	return []*cobra.Command{a.shell(), a.attach(), a.copy(), a.process(), a.service()}
}

func (a *app) guest() (client.Guest, error) {
	api, err := a.Server()
	if err != nil {
		return client.Guest{}, err
	}
	return client.NewGuest(api), nil
}

// lingering is how long what somebody follows goes on when a connection is cut.
const lingering = 2 * time.Minute

// Exec runs a command whose streams are joined to ours: with a terminal, or
// with its output passed on as it comes and its input to any length.
func Exec(ctx context.Context, t kit.Tools, env string, req gen.StartProcess, detachKeys string) error {
	a := &app{t}
	g, err := a.guest()
	if err != nil {
		return err
	}
	req.ID, req.Hold, req.LingerMs = strings.ToLower(rand.Text()), true, lingering.Milliseconds()
	if req.Tty != nil {
		return a.interactive(ctx, g, env, &req, detachKeys)
	}
	if _, err := g.Start(ctx, env, req); err != nil {
		return err
	}
	defer a.forget(ctx, g, env, req.ID)
	if req.Stdin {
		feeding, stop := context.WithCancel(ctx)
		defer stop()
		// Not waited for: a read of standard input ends when it likes.
		go func() {
			if err := g.CopyInput(feeding, env, req.ID, a.In); err != nil && feeding.Err() == nil {
				a.Progress("standard input could not be sent: %v", err)
			}
		}()
	}
	exit, err := g.CopyOutput(ctx, env, req.ID, client.ProcessOutput{Stdout: a.Out, Stderr: a.Err, Follow: true})
	if err != nil {
		return err
	}
	return a.ended(exit)
}

// forget ends a process, if it still runs, and removes it.
func (a *app) forget(ctx context.Context, g client.Guest, env, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_ = g.Remove(ctx, env, id) // else it ends by itself
}

// ended passes an exit code on.
func (a *app) ended(exit *attachframe.ExitStatus) error {
	if exit == nil {
		return errors.New("the output ended before the process did")
	}
	if exit.Failure != "" {
		return a.Exit(exit.ExitCode, fmt.Errorf("the process was ended: %s", a.Cell(exit.Failure)))
	}
	if exit.ExitCode != 0 {
		return a.Exit(exit.ExitCode, nil)
	}
	return nil
}

func (a *app) shell() *cobra.Command {
	var user, cwd, keys string
	cmd := &cobra.Command{
		Use: "shell ID", Short: "Open a shell in an environment",
		Long: "shell opens a login shell on a terminal: bash where there is one, else sh. The\n" +
			"detach keys leave it running; 'fuse attach' comes back to it.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := gen.StartProcess{
				Cmd: []string{"/bin/sh", "-c", "[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l"}, User: user, Cwd: cwd, Stdin: true, Tty: &gen.TerminalSize{},
			}
			return Exec(cmd.Context(), a.Tools, args[0], req, keys)
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "user: a name, uid or uid:gid (default root)")
	cmd.Flags().StringVarP(&cwd, "workdir", "w", "", "working directory")
	DetachFlag(cmd, &keys)
	return cmd
}

// DetachFlag adds the flag of the keys that leave a terminal.
func DetachFlag(cmd *cobra.Command, keys *string) {
	cmd.Flags().StringVar(keys, "detach-keys", "ctrl-p,ctrl-q", "`keys` that leave the terminal and let the process go on; \"\" is none")
}

func (a *app) attach() *cobra.Command {
	var keys string
	cmd := &cobra.Command{
		Use: "attach ID PROCESS", Short: "Come back to the terminal of a process",
		Long: "attach shows a process's terminal again, with the output that is still kept.\n'fuse process ls ID' lists processes.",
		Args: cobra.ExactArgs(2), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := a.guest()
			if err != nil {
				return err
			}
			p, err := g.Process(cmd.Context(), args[0], args[1], 0)
			if err != nil {
				return err
			}
			if !p.TTY {
				return fmt.Errorf("process %s has no terminal; 'fuse process logs --follow %s %s' shows its output", args[1], args[0], args[1])
			}
			s := &session{app: a, g: g, env: args[0], id: args[1], seen: p.Stdout.Start, keys: client.NewKeyboard()}
			return s.run(cmd.Context(), keys)
		},
	}
	DetachFlag(cmd, &keys)
	return cmd
}

func (a *app) process() *cobra.Command {
	cmd := &cobra.Command{Use: "process", Aliases: []string{"proc", "processes"}, Short: "Processes that go on without their caller"}
	cmd.AddCommand(a.list(), a.start(), a.input(), a.logs(), a.wait(), a.kill(), a.remove(), a.attach())
	return cmd
}

func (a *app) list() *cobra.Command {
	return &cobra.Command{
		Use: "ls ID", Aliases: []string{"list", "ps"}, Short: "List processes that run or are kept", Args: cobra.ExactArgs(1), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.ListFormat()
			if err != nil {
				return err
			}
			g, err := a.guest()
			if err != nil {
				return err
			}
			list, err := g.Processes(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			switch format {
			case "json":
				return a.PrintJSON(list)
			case "name":
				for _, p := range list.Processes {
					fmt.Fprintln(a.Out, a.Cell(p.ID))
				}
				return nil
			}
			var rows [][]string
			for _, p := range list.Processes {
				rows = append(rows, []string{
					a.Cell(p.ID), stateOf(p), fmt.Sprint(p.PID), a.Age(time.Now(), p.StartedAt), fmt.Sprint(p.Stdout.End + p.Stderr.End), a.Cell(strings.Join(p.Cmd, " ")),
				})
			}
			return a.Table(a.Out, []string{"ID", "STATE", "PID", "AGE", "OUTPUT", "COMMAND"}, rows)
		},
	}
}

func stateOf(p gen.Process) string {
	if p.ExitCode != nil {
		return fmt.Sprintf("exited (%d)", *p.ExitCode)
	}
	return "running"
}

func (a *app) start() *cobra.Command {
	var shell, stdin bool
	var user, cwd string
	var keep int64
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "start [flags] ID -- CMD [ARG...]", Short: "Start a process in the background",
		Long: "start prints the new process's id and leaves it running. Of its output the end is\nkept for 'fuse process logs'.",
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := gen.StartProcess{ID: strings.ToLower(rand.Text()), Cmd: args[1:], User: user, Cwd: cwd, KeepBytes: keep, TimeoutMs: timeout.Milliseconds(), Stdin: stdin}
			if shell {
				req.Cmd, req.Shell = nil, strings.Join(args[1:], " ")
			}
			format, err := a.Format()
			if err != nil {
				return err
			}
			g, err := a.guest()
			if err != nil {
				return err
			}
			p, err := g.Start(cmd.Context(), args[0], req)
			switch {
			case err != nil:
				return err
			case format == "json":
				return a.PrintJSON(p)
			}
			_, err = fmt.Fprintln(a.Out, a.Cell(p.ID))
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&shell, "shell", false, "run the arguments as one shell line (sh -lc)")
	f.BoolVar(&stdin, "stdin", false, "it takes input: 'fuse process input' sends it")
	f.StringVarP(&user, "user", "u", "", "user: a name, uid or uid:gid (default root)")
	f.StringVarP(&cwd, "workdir", "w", "", "working directory")
	f.Int64Var(&keep, "keep", 0, "`bytes` of each output stream to keep (default 1 MiB)")
	f.DurationVar(&timeout, "timeout", 0, "end the process after this long (default never)")
	return cmd
}

func (a *app) input() *cobra.Command {
	var eof bool
	cmd := &cobra.Command{
		Use: "input ID PROCESS", Short: "Send our standard input to a process",
		Long: "input adds what it reads to the input of a process that was started with --stdin,\n" +
			"or has a terminal, and returns once all is taken. One at a time for a process.",
		Example: "  echo reload | fuse process input fuse-a PROCESS",
		Args:    cobra.ExactArgs(2), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := a.guest()
			if err != nil {
				return err
			}
			p, err := g.Process(cmd.Context(), args[0], args[1], 0)
			switch {
			case err != nil:
				return err
			case p.ExitCode != nil:
				return fmt.Errorf("process %s has ended and takes no more input", args[1])
			}
			return g.AddInput(cmd.Context(), args[0], args[1], a.In, p.StdinBytes, eof)
		},
	}
	cmd.Flags().BoolVar(&eof, "eof", false, "nothing follows: the process reads an end after it")
	return cmd
}

func (a *app) logs() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "logs ID PROCESS", Short: "Print the output of a process", Args: cobra.ExactArgs(2), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := a.guest()
			if err != nil {
				return err
			}
			return a.printOutput(cmd.Context(), g, args[0], args[1], follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for what is yet to come")
	return cmd
}

func (a *app) printOutput(ctx context.Context, g client.Guest, env, process string, follow bool) error {
	_, err := g.CopyOutput(ctx, env, process, client.ProcessOutput{
		Stdout: a.Out, Stderr: a.Err, Follow: follow,
		Dropped: func(stream int, n int64) {
			a.Progress("warning: %d bytes of %s were dropped before they were read", n, []string{"stdout", "stderr"}[stream-1])
		},
	})
	return err
}

func (a *app) wait() *cobra.Command {
	return &cobra.Command{
		Use: "wait ID PROCESS", Short: "Wait for a process and exit as it did", Args: cobra.ExactArgs(2), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := a.guest()
			if err != nil {
				return err
			}
			for {
				p, err := g.Process(cmd.Context(), args[0], args[1], time.Minute)
				if err != nil {
					return err
				}
				if p.ExitCode != nil {
					return a.ended(&attachframe.ExitStatus{ExitCode: *p.ExitCode, Failure: p.Failure})
				}
			}
		},
	}
}

func (a *app) kill() *cobra.Command {
	var signal string
	var tree bool
	cmd := &cobra.Command{
		Use: "kill ID PROCESS", Short: "Send a signal to a process", Args: cobra.ExactArgs(2), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := a.guest()
			if err != nil {
				return err
			}
			return g.Act(cmd.Context(), args[0], args[1], "signal", gen.ProcessAction{Signal: signal, Tree: tree})
		},
	}
	cmd.Flags().StringVarP(&signal, "signal", "s", "TERM", "a `name` or number")
	cmd.Flags().BoolVar(&tree, "tree", false, "to all that the process started as well")
	return cmd
}

func (a *app) remove() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID PROCESS...", Aliases: []string{"remove"}, Short: "End processes and forget them", Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := a.guest()
			if err != nil {
				return err
			}
			var errs []error
			for _, id := range args[1:] {
				errs = append(errs, g.Remove(cmd.Context(), args[0], id))
			}
			return errors.Join(errs...)
		},
	}
}

// terminalOf is our own terminal.
func terminalOf(in io.Reader, isTerminal func(any) bool) (*os.File, bool) {
	f, ok := in.(*os.File)
	return f, ok && isTerminal(f)
}
