package runner_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

// babbler is a host that never says that output begins.
type babbler struct {
	piece string
	said  int
}

func (b *babbler) Run(_ context.Context, cmd sshx.Command) (sshx.Result, error) {
	to := cmd.Stderr
	if cmd.Terminal != nil {
		to = cmd.Stdout
	}
	for cmd.Stream && b.said < 8<<20 {
		n, err := io.WriteString(to, b.piece)
		if b.said += n; err != nil {
			return sshx.Result{Ending: observe.EndedOutputOver}, &sshx.Error{Ending: observe.EndedOutputOver, Op: "run", Err: err}
		}
	}
	return sshx.Result{Ending: observe.EndedExit}, nil
}

// What comes before the output is bounded, with ends of lines and without.
func TestTooMuchBeforeTheOutput(t *testing.T) {
	layout, err := model.NewLayout("/opt/fuse")
	if err != nil {
		t.Fatal(err)
	}
	h := runner.Host{Layout: layout, Installation: "inst1"}
	for _, piece := range []string{strings.Repeat("x", 1000), strings.Repeat("y\n", 500)} {
		for name, run := range map[string]func(sh runner.Shell) error{
			"logs": func(sh runner.Shell) error {
				return h.Logs(t.Context(), sh, runner.Logs{Playground: "pg1"}, io.Discard)
			},
			"exec": func(sh runner.Shell) error {
				_, err := h.Exec(t.Context(), sh, runner.Exec{Playground: "pg1", Service: "web", Command: []string{"id"}})
				return err
			},
			"terminal": func(sh runner.Shell) error {
				_, err := h.Exec(t.Context(), sh, runner.Exec{Playground: "pg1", Service: "web", Command: []string{"id"}, Terminal: &sshx.Terminal{}})
				return err
			},
		} {
			b := &babbler{piece: piece}
			if err := run(b); err == nil || b.said > 80<<10 {
				t.Errorf("%s: %d bytes were taken: %v", name, b.said, err)
			}
		}
	}
}
