package guestops

import (
	"context"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/uid"
)

// defaultSessions bounds what is under way at a time besides commands:
// followed output, attached terminals, transfers.
const defaultSessions = 4096

// Use is what somebody wants to do in an environment, for Admit.
type Use struct {
	Actor, Verb string
	Params      map[string]string // beside the environment's id
}

// looks says that the use changes nothing in the guest: what a drained one has
// left, its output above all, can still be read.
func (u Use) looks() bool { return strings.HasSuffix(u.Verb, ".read") }

// Session reaches into one environment. It counts as a use of it until closed.
type Session struct {
	guestwire.Surface
	VM *fleet.VM

	s   *Service
	env provider.Environment
	end func()
}

// Open admits a use of a running environment and returns the way in.
func (s *Service) Open(ctx context.Context, id string, use Use) (*Session, error) {
	params := map[string]string{"id": id}
	for k, v := range use.Params {
		params[k] = v
	}
	if err := s.cfg.Admit(ctx, use.Actor, use.Verb, params); err != nil {
		return nil, err
	}
	vm, err := s.running(ctx, id, use.looks())
	if err != nil {
		return nil, err
	}
	p, err := s.cfg.Providers.Provider(vm.HostID)
	if err != nil {
		return nil, err
	}
	env := p.Open(provider.Ref{ID: vm.ID, UID: vm.UID, Generation: vm.Generation, OpID: uid.New()})
	guest, ok := env.(provider.GuestReacher)
	if !ok {
		why := fleet.ErrExecUnsupported
		if use.Verb == "attach" {
			why = fleet.ErrAttachUnsupported
		}
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "the host of environment %s knows neither processes nor files: %w", id, why)
	}
	select {
	case s.sessions <- struct{}{}:
	default:
		n := strconv.Itoa(cap(s.sessions))
		return nil, fleet.Errorf(fleet.CodeUnavailable, "%s sessions and transfers are open already", n).
			With(fleet.DetailScope, "sessions at a time").With(fleet.DetailLimit, n).With(fleet.DetailUsage, n).
			With(fleet.DetailRemedy, "try again when some have ended").With("retry_after", "1")
	}
	end, err := s.Begin(vm.UID)
	if err != nil {
		<-s.sessions
		return nil, err
	}
	if vm, err = s.awake(ctx, vm, use.Actor); err != nil {
		end()
		<-s.sessions
		return nil, err
	}
	return &Session{Surface: guest.Guest(), VM: vm, s: s, env: env, end: func() { end(); <-s.sessions }}, nil
}

// Dial connects to a TCP port of the guest, through its host.
func (s *Session) Dial(ctx context.Context, port int) (provider.PortConn, error) {
	p, ok := s.env.(provider.Publisher)
	if !ok {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "the host of environment %s leads to no ports", s.VM.ID)
	}
	return p.Dial(ctx, port)
}

// Close ends the use. It is called once.
func (s *Session) Close() { s.end() }

// Explain makes an error of a call of the session fit for callers: one that
// lost its environment meanwhile says so instead of how it noticed.
func (s *Session) Explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return s.s.explain(ctx, s.VM, err)
}

// Spec checks a request and makes the command of it.
func (r ExecRequest) Spec() (fleet.ExecSpec, error) { return r.spec() }
