package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
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
}

func (x *execFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.BoolVar(&x.shell, "shell", false, "run the arguments as one shell line (sh -lc)")
	s.BoolVarP(&x.stdin, "stdin", "i", false, "send standard input to the command (up to 700 KiB)")
	s.DurationVar(&x.timeout, "timeout", 0, "end the command after this long (default 60s, at most 600s)")
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
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.exec(cmd.Context(), args[0], &x, args[1:])
		},
	}
	x.register(cmd)
	return cmd
}

func (x *execFlags) body(in io.Reader, argv []string) (map[string]any, error) {
	body := map[string]any{}
	if x.shell {
		line := ""
		for i, w := range argv {
			if i > 0 {
				line += " "
			}
			line += w
		}
		body["shell"] = line
	} else {
		body["cmd"] = argv
	}
	if x.timeout != 0 {
		body["timeout_ms"] = x.timeout.Milliseconds()
	}
	env, err := pairs("--env", x.env, nil)
	if err != nil {
		return nil, err
	}
	if len(env) > 0 {
		body["env"] = env
	}
	if x.cwd != "" {
		body["cwd"] = x.cwd
	}
	if x.user != "" {
		body["user"] = x.user
	}
	if x.stdin {
		data, err := io.ReadAll(io.LimitReader(in, maxStdin+1))
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		if len(data) > maxStdin {
			return nil, usagef("standard input is larger than %d KiB, the most that exec can carry", maxStdin>>10)
		}
		body["stdin_b64"] = base64.StdEncoding.EncodeToString(data)
	}
	return body, nil
}

func (a *app) exec(ctx context.Context, id string, x *execFlags, argv []string) error {
	format, err := a.format()
	if err != nil {
		return err
	}
	body, err := x.body(a.Streams.In, argv)
	if err != nil {
		return err
	}
	var res execResult
	raw, err := a.fetch(ctx, call{method: http.MethodPost, path: environmentPath(id), query: url.Values{"action": {"exec"}}, body: body}, &res)
	if err != nil {
		return err
	}
	if format == "json" {
		err = a.printJSON(raw)
	} else {
		err = errors.Join(
			writeStream(a.Streams.Out, res.Stdout, res.StdoutB64),
			writeStream(a.Streams.Err, res.Stderr, res.StderrB64))
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

// writeStream writes output byte for byte: exact holds it when it is not
// UTF-8, which the API's JSON text cannot carry.
func writeStream(w io.Writer, text string, exact []byte) error {
	data := exact
	if len(data) == 0 {
		data = []byte(text)
	}
	_, err := w.Write(data)
	return err
}
