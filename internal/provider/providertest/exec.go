package providertest

import (
	"bytes"
	"context"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// Exec runs a command and buffers its output, at most limit bytes a stream.
func Exec(ctx context.Context, env provider.Environment, spec fleet.ExecSpec, limit int) (provider.ExecResult, error) {
	stdout, stderr := &capped{limit: limit}, &capped{limit: limit}
	status, err := env.ExecStream(ctx, spec, fleet.Stdio{Stdout: stdout, Stderr: stderr})
	return provider.ExecResult{
		ExecStatus: status,
		Stdout:     stdout.Bytes(), Stderr: stderr.Bytes(),
		Truncated: stdout.over || stderr.over,
	}, err
}

type capped struct {
	bytes.Buffer
	limit int
	over  bool
}

func (c *capped) Write(p []byte) (int, error) {
	room := c.limit - c.Len()
	if room < len(p) {
		c.over = true
		c.Buffer.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return c.Buffer.Write(p)
}
