package guestd

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
)

// tail keeps the end of what a command prints.
type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - fleet.MaxHealthMessage/2; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// runProbe runs a command of the healthcheck, as any other command.
func (s *Server) runProbe(ctx context.Context, argv []string, timeout time.Duration) (exit int, output string, err error) {
	var out, errs tail
	status, err := s.runner.Run(ctx, fleet.ExecSpec{Argv: argv, Timeout: timeout}, process.IO{Stdout: &out, Stderr: &errs}, nil)
	text := string(errs.buf)
	if len(errs.buf) == 0 {
		text = string(out.buf)
	}
	if status.TimedOut {
		text = "no end within " + timeout.String()
	}
	return status.ExitCode, text, err
}
