package lifecycle

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/tailbuf"
)

const (
	// startupGrace is how much longer than the script's own timeout the call
	// to the host may take before it is given up.
	startupGrace = 15 * time.Second
	// shownOutput is how much of a failed script's output goes into the error.
	shownOutput = 2 << 10
)

// startupScript runs the caller's script and keeps its output, whatever comes
// of it.
func (s *recipe) startupScript(ctx context.Context, b *build) error {
	if b.boot.StartupScript == "" {
		return nil
	}
	out := &tailbuf.Buffer{Limit: fleet.MaxStartupLog}
	spec := fleet.ExecSpec{Argv: []string{"sh", "-lc", b.startupCommand()}, Timeout: b.boot.StartupScriptTimeout}
	status, err := bounded(ctx, spec.Timeout+startupGrace, func(ctx context.Context) (fleet.ExecStatus, error) {
		return b.created.Environment.ExecStream(ctx, spec, fleet.Stdio{Stdout: out, Stderr: out})
	})
	output, cut := out.Bytes()
	output = []byte(b.redact(string(output)))
	b.startupLog = &fleet.StartupLog{
		UID: b.uid, ExitCode: status.ExitCode, TimedOut: status.TimedOut, Truncated: cut, Output: output, EndedAt: time.Now().UTC(),
	}
	switch {
	case err != nil:
		b.startupLog.ExitCode = -1
		return err
	case status.TimedOut:
		return withOutput(fleet.Errorf(fleet.CodeInvalidArgument, "%w: %s", fleet.ErrStartupScriptTimeout, spec.Timeout).
			With(fleet.DetailLimit, spec.Timeout.String()).
			With(fleet.DetailRemedy, "raise startup_script_timeout_seconds, or do the long part in an exec"), output)
	case status.ExitCode == 0:
		return nil
	case (status.ExitCode == 126 || status.ExitCode == 127) && b.noShell(ctx):
		return fleet.Errorf(fleet.CodeInvalidArgument, "the image has no shell to run the startup script with").
			With(fleet.DetailReason, "no_shell").With(fleet.DetailRemedy, "use an image with /bin/sh, or leave the script out")
	default:
		return withOutput(fleet.Errorf(fleet.CodeInvalidArgument, "the startup script ended with exit code %d", status.ExitCode).
			With("exit_code", strconv.Itoa(status.ExitCode)), output)
	}
}

// startupCommand puts the script into its workspace without moving its line
// numbers.
func (b *build) startupCommand() string {
	w := shellQuote(b.manifest.Machine.Workspace)
	return fmt.Sprintf("mkdir -p %s && cd %s || exit 1; %s", w, w, b.boot.StartupScript)
}

// noShell tells a missing shell from a script whose own last command was
// missing.
func (b *build) noShell(ctx context.Context) bool {
	status, err := bounded(ctx, startupGrace, func(ctx context.Context) (fleet.ExecStatus, error) {
		return b.created.Environment.ExecStream(ctx, fleet.ExecSpec{Argv: []string{"sh", "-c", ":"}, Timeout: startupGrace}, fleet.Stdio{})
	})
	return err == nil && status.ExitCode != 0
}

// withOutput adds the end of a script's output to its error.
func withOutput(e *fleet.Error, output []byte) *fleet.Error {
	if len(output) > shownOutput {
		output = output[len(output)-shownOutput:]
	}
	return e.With("output", string(bytes.ToValidUTF8(output, []byte("\uFFFD"))))
}
