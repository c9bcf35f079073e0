package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/guest"
)

// maxStdin is how much standard input a buffered exec can carry: the API takes
// bodies of 1 MiB and base64 adds a third.
const maxStdin = 700 << 10

type execFlags struct {
	shell   bool
	stdin   bool
	timeout time.Duration
	env     []string
	cwd     string
	user    string
	tty     bool
	stream  bool
	keys    string
}

func (x *execFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.BoolVar(&x.shell, "shell", false, "run the arguments as one shell line (sh -lc)")
	s.BoolVarP(&x.stdin, "stdin", "i", false, "send standard input to the command (up to 700 KiB)")
	s.DurationVar(&x.timeout, "timeout", 0, "end the command after this long (default 60s; more than 600s counts as 600s)")
	s.StringArrayVarP(&x.env, "env", "e", nil, "set a variable, `k=v` (repeatable)")
	s.StringVarP(&x.cwd, "workdir", "w", "", "working directory")
	s.StringVarP(&x.user, "user", "u", "", "user: a name, uid or uid:gid (default root)")
}

func execCmd(a *app) *cobra.Command {
	var x execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] ID -- CMD [ARG...]",
		Short: "Run a command in an environment",
		Long: "exec runs a command and passes its output and exit code through: 126 cannot be\n" +
			"executed, 127 not found, 124 timed out, 128+n ended by signal n.",
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.completeEnvironments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if x.tty || x.stream {
				return x.join(cmd.Context(), a, args[0], args[1:])
			}
			req, err := x.request(a.Streams.In, args[1:])
			if err != nil {
				return err
			}
			return a.exec(cmd.Context(), args[0], req)
		},
	}
	x.register(cmd)
	s := cmd.Flags()
	s.BoolVarP(&x.tty, "tty", "t", false, "give the command a terminal and join it to this one")
	s.BoolVar(&x.stream, "stream", false, "pass output on as it comes, and input to any length; without limits of size and time")
	guest.DetachFlag(cmd, &x.keys)
	return cmd
}

// join runs a command whose streams are joined to ours.
func (x *execFlags) join(ctx context.Context, a *app, id string, argv []string) error {
	req := gen.StartProcess{Cmd: argv, Cwd: x.cwd, User: x.user, TimeoutMs: x.timeout.Milliseconds(), Stdin: x.stdin}
	if x.shell {
		req.Cmd, req.Shell = nil, strings.Join(argv, " ")
	}
	if x.tty {
		req.Tty, req.Stdin = &gen.TerminalSize{}, true
	}
	var err error
	if req.Env, err = pairs("--env", x.env, nil); err != nil {
		return err
	}
	return guest.Exec(ctx, a.tools(), id, req, x.keys)
}

func (x *execFlags) request(in io.Reader, argv []string) (gen.ExecRequest, error) {
	req := gen.ExecRequest{Cwd: x.cwd, User: x.user, TimeoutMs: x.timeout.Milliseconds()}
	if x.shell {
		req.Shell = strings.Join(argv, " ")
	} else {
		req.Cmd = argv
	}
	var err error
	if req.Env, err = pairs("--env", x.env, nil); err != nil || !x.stdin {
		return req, err
	}
	if req.StdinB64, err = io.ReadAll(io.LimitReader(in, maxStdin+1)); err != nil {
		return req, fmt.Errorf("read standard input: %w", err)
	}
	if len(req.StdinB64) > maxStdin {
		return req, usagef("standard input is larger than %d KiB, the most that exec can carry", maxStdin>>10)
	}
	return req, nil
}

// exec runs one command and passes on what came of it.
func (a *app) exec(ctx context.Context, id string, req gen.ExecRequest) error {
	format, err := a.format()
	if err != nil {
		return err
	}
	api, err := a.server()
	if err != nil {
		return err
	}
	res, err := api.Exec(ctx, id, req)
	if err != nil {
		return err
	}
	if format == "json" {
		err = a.printJSON(res)
	} else {
		stdout, stderr := client.Output(res)
		_, err1 := a.Streams.Out.Write(stdout)
		_, err2 := a.Streams.Err.Write(stderr)
		err = errors.Join(err1, err2)
	}
	if err != nil {
		return err
	}
	if res.Truncated {
		a.progressf("warning: the output was longer than the server keeps; its end is missing")
	}
	if res.ExitCode != 0 {
		return &ExitError{Code: res.ExitCode}
	}
	return nil
}
