package service

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/state"
)

// wayTo returns the way to a marquee that may be used.
func wayTo(s *Service, id model.MarqueeID) (h *reach.Host, l model.Layout, err error) {
	var m records.Marquee
	if err := s.Store.View(func(tx *state.ReadTx) error {
		row, ok := records.Marquees.Get(tx, string(id))
		if !ok {
			return notFound("marquee", string(id))
		}
		m = *row
		return nil
	}); err != nil {
		return nil, l, err
	}
	if m.Admin != model.AdminActive {
		return nil, l, fleet.Errorf(fleet.CodeConflict, "marquee %s is quarantined by a person: %s", m.Name, m.AdminWhy).With(fleet.DetailReason, "quarantined")
	}
	l, err = model.NewLayout(m.Root)
	return s.Hosts.Host(m), l, err
}

// runnerOn is the runner on a marquee that may be used, and the way to it.
func runnerOn(s *Service, id model.MarqueeID) (*reach.Host, runner.Host, error) {
	h, _, err := wayTo(s, id)
	if err != nil {
		return nil, runner.Host{}, err
	}
	r, err := h.Runner()
	return h, r, err
}

// Logs writes containers' output to w, each line as "service-number | text",
// until it is all there; with Follow until ctx ends, which is no error. At most
// two streams are open to a marquee; more is an unavailable error.
func (s *Service) Logs(ctx context.Context, id string, req LogsRequest, w io.Writer) error {
	p, err := s.Playground(ctx, id)
	if err != nil {
		return err
	}
	for _, name := range req.Services {
		if err := service(p, name); err != nil {
			return err
		}
	}
	if req.Tail < 0 || req.Tail > MaxTail {
		return fleet.Invalid("tail", fmt.Sprint(MaxTail), "ask for fewer lines", "is %d", req.Tail)
	}
	host, r, err := runnerOn(s, p.Marquee)
	if err != nil {
		return err
	}
	return explainReach(r.Logs(ctx, host, runner.Logs{
		Playground: p.ID, Services: req.Services, Follow: req.Follow, Tail: cmp.Or(req.Tail, MaxTail), Since: req.Since, Stamps: req.Timestamps,
	}, w))
}

func service(p Playground, name string) error {
	for _, s := range p.Services {
		if s.Name == name {
			return nil
		}
	}
	return notFound("service", name)
}

// Bounds of a command.
const (
	maxArgs     = 1000
	maxArgBytes = 64 << 10
)

func (req ExecRequest) check() error {
	total := 0
	for _, a := range req.Command {
		total += len(a)
	}
	if len(req.Command) == 0 || len(req.Command) > maxArgs || total > maxArgBytes {
		return fleet.Invalid("command", fmt.Sprintf("1 to %d words of at most %d bytes in all", maxArgs, maxArgBytes), "give a command", "has %d words of %d bytes", len(req.Command), total)
	}
	if len(req.Stdin) > MaxStdin {
		return fleet.Errorf(fleet.CodePayloadTooLarge, "standard input has %d bytes", len(req.Stdin)).
			With(fleet.DetailLimit, fmt.Sprint(MaxStdin)).With(fleet.DetailRemedy, "give less at a time")
	}
	return nil
}

// Exec runs a command in a service's container and returns its exit status.
// Output arrives as it comes. An error means that the command's end is not
// known, never that it failed; one whose caller goes away is told to end.
func (s *Service) Exec(ctx context.Context, id string, req ExecRequest) (status int, err error) {
	p, err := s.Playground(ctx, id)
	if err != nil {
		return 0, err
	}
	if err := service(p, req.Service); err != nil {
		return 0, err
	}
	if err := req.check(); err != nil {
		return 0, err
	}
	host, r, err := runnerOn(s, p.Marquee)
	if err != nil {
		return 0, err
	}
	status, err = r.Exec(ctx, host, runner.Exec{
		Playground: p.ID, Service: req.Service, Command: req.Command, Env: req.Env, User: req.User, Workdir: req.Workdir,
		Stdin: req.Stdin, Input: req.Input, Terminal: req.Terminal, Stdout: req.Stdout, Stderr: req.Stderr,
	})
	return status, explainReach(err)
}
