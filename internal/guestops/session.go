package guestops

import (
	"context"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// defaultSessions bounds what is under way at a time besides commands:
// followed output, attached terminals, transfers.
const defaultSessions = 4096

// Use is what somebody wants to do in an environment, for Admit.
type Use struct {
	Actor, Verb string
	Params      map[string]string // beside the environment's id
	// Left says that the use is for what is left of an environment, too: one that
	// does not run, or has ended.
	Left bool
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

	left bool
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
	left := err != nil && use.Left
	if left {
		vm, err = s.remains(ctx, id)
	}
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
	if !use.Left { // which takes one that stands still as it is
		vm, err = s.awake(ctx, vm, use.Actor)
	}
	if err != nil {
		end()
		<-s.sessions
		return nil, err
	}
	return &Session{Surface: guest.Guest(), VM: vm, s: s, env: env, end: func() { end(); <-s.sessions }, left: left}, nil
}

// remains finds an environment that does not run, or the last life of one that
// has ended.
func (s *Service) remains(ctx context.Context, id string) (found *fleet.VM, err error) {
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		if vm, ok := tx.VMs().Get(id); ok && auth.Visible(ctx)(vm.Owner) {
			found = vm
		} else if life, ended := tx.Lives().Latest(id); !ok && ended && auth.Visible(ctx)(life.Owner) {
			found = &fleet.VM{ID: life.VMID, UID: life.UID, HostID: life.HostID, Owner: life.Owner, State: life.State}
		}
		if found == nil {
			return fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", id, fleet.ErrVMNotFound).With(fleet.DetailScope, id)
		}
		if found.HostID == "" {
			return fleet.Errorf(fleet.CodeNotFound, "environment %s never was at a host", id).With(fleet.DetailScope, id)
		}
		return nil
	})
	return found, err
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
	switch {
	case err == nil:
		return nil
	case s.left && fleet.CodeOf(err) == fleet.CodeNotFound:
		return fleet.Errorf(fleet.CodeNotFound, "the host of environment %s keeps no console of it", s.VM.ID).
			With(fleet.DetailScope, s.VM.ID).With(fleet.DetailRemedy, "read it sooner: of what has ended a host keeps a bounded part, for a day at most")
	case s.left:
		return err
	}
	return s.s.explain(ctx, s.VM, err)
}

// Spec checks a request and makes the command of it.
func (r ExecRequest) Spec() (fleet.ExecSpec, error) { return r.spec() }
