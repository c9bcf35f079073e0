// Package reach is how the loop and people's commands get to a marquee: over
// the one connection that there is to it, with the keys of its record.
package reach

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

// Hosts reaches marquees.
type Hosts struct {
	Pool         *sshx.Pool
	Sealer       records.Sealer
	Installation model.InstallationID
}

// Host is one marquee.
type Host struct {
	hosts *Hosts
	row   records.Marquee
}

// Host returns the way to a marquee. It does no I/O.
func (h *Hosts) Host(m records.Marquee) *Host { return &Host{h, m} }

// Drop lets the connection to a marquee go once it is not used any more.
func (h *Hosts) Drop(id model.MarqueeID) { h.Pool.Drop(string(id)) }

// Target is how the marquee is connected to.
func (h *Host) Target() (sshx.Target, error) {
	t := sshx.Target{Address: h.row.Address, User: h.row.User, HostKey: h.row.HostKey, Agent: h.row.Agent}
	if len(h.row.KeySealed) > 0 {
		key, err := h.hosts.Sealer.Open(records.SealKindKey, string(h.row.ID), h.row.KeySealed)
		if err != nil {
			return t, fmt.Errorf("private key of marquee %s: %w", h.row.Name, err)
		}
		t.Keys = [][]byte{key}
	}
	for _, j := range h.row.Jumps {
		t.Jumps = append(t.Jumps, sshx.Target{Address: j.Address, User: j.User, HostKey: j.HostKey})
	}
	return t, nil
}

// Conn returns the connection.
func (h *Host) Conn(ctx context.Context) (*sshx.Conn, error) {
	t, err := h.Target()
	if err != nil {
		return nil, err
	}
	return h.hosts.Pool.Conn(ctx, string(h.row.ID), t)
}

// Runner is the runner there.
func (h *Host) Runner() (runner.Host, error) {
	layout, err := model.NewLayout(h.row.Root)
	return runner.Host{Layout: layout, Installation: h.row.Known(h.hosts.Installation)}, err
}

func (h *Host) both(ctx context.Context) (*sshx.Conn, runner.Host, error) {
	r, err := h.Runner()
	if err != nil {
		return nil, r, err
	}
	c, err := h.Conn(ctx)
	return c, r, err
}

// Look looks at the marquee. What keeps it from it is told by how the trip
// ended.
func (h *Host) Look(ctx context.Context) observe.Trip {
	ctx, cancel := context.WithTimeout(ctx, runner.LookTimeout)
	defer cancel()
	from := time.Now()
	c, r, err := h.both(ctx)
	if err != nil {
		ending := sshx.EndingOf(err)
		var typed *sshx.Error
		if !errors.As(err, &typed) { // a key that cannot be read
			ending = observe.EndedAuth
		}
		return observe.Trip{Nonce: strings.Repeat("0", 32), Ending: ending, Stderr: []byte(err.Error()), From: from, To: time.Now()}
	}
	return r.Observe(ctx, c)
}

// Claim implements work.Host.
func (h *Host) Claim(ctx context.Context, epoch uint64) error {
	c, r, err := h.both(ctx)
	if err != nil {
		return err
	}
	return r.Claim(ctx, c, epoch)
}

// Start implements work.Host.
func (h *Host) Start(ctx context.Context, req runner.Request) error {
	c, r, err := h.both(ctx)
	if err != nil {
		return err
	}
	return r.Start(ctx, c, req)
}

// Poll implements work.Host.
func (h *Host) Poll(ctx context.Context, op string) (runner.Progress, error) {
	ctx, cancel := context.WithTimeout(ctx, runner.LookTimeout)
	defer cancel()
	c, r, err := h.both(ctx)
	if err != nil {
		return runner.Progress{}, err
	}
	return r.Poll(ctx, c, op)
}

// Cancel implements work.Canceller.
func (h *Host) Cancel(ctx context.Context, epoch uint64, op string) error {
	c, r, err := h.both(ctx)
	if err != nil {
		return err
	}
	return r.Cancel(ctx, c, epoch, op)
}

// Reap implements work.Host.
func (h *Host) Reap(ctx context.Context, days int) error {
	c, r, err := h.both(ctx)
	if err != nil {
		return err
	}
	return r.Reap(ctx, c, days)
}

// Enroll makes the installation's place on the marquee.
func (h *Host) Enroll(ctx context.Context) error {
	c, r, err := h.both(ctx)
	if err != nil {
		return err
	}
	return r.Enroll(ctx, c)
}

// Run runs a command for a person.
func (h *Host) Run(ctx context.Context, cmd sshx.Command) (sshx.Result, error) {
	c, err := h.Conn(ctx)
	if err != nil {
		return sshx.Result{}, err
	}
	return c.Run(ctx, cmd)
}
