package guestd

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestd/supervise"
)

// newServices makes the supervisor of the manifest's services.
func (s *Server) newServices() *supervise.Supervisor {
	return supervise.New(supervise.Config{
		Processes: s.procs, Contain: s.cfg.Contain, Read: s.readOwn, Program: s.cfg.Program, Log: s.cfg.Log,
		Probe: func(ctx context.Context, spec fleet.ExecSpec) (int, string, error) { return s.runProbe(ctx, spec) },
	})
}

// readOwn reads one of the machine's own files.
func (s *Server) readOwn(path string) ([]byte, error) {
	// What is no file, a pipe for one, must not hold the reader up.
	f, err := os.OpenFile(filepath.Join(s.cfg.FuseDir, filepath.Base(path)), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSecretsFile))
}

// runProbe runs a command of a healthcheck, as any other command.
func (s *Server) runProbe(ctx context.Context, spec fleet.ExecSpec) (exit int, output string, err error) {
	var out, errs tail
	status, err := s.runner.Run(ctx, spec, process.IO{Stdout: &out, Stderr: &errs}, nil)
	text := string(errs.buf)
	if len(errs.buf) == 0 {
		text = string(out.buf)
	}
	if status.TimedOut {
		text = "no end within " + spec.Timeout.String()
	}
	return status.ExitCode, text, err
}
