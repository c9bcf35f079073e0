package amend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Providers finds the provider of a registered host.
type Providers interface {
	Provider(hostID string) (provider.Provider, error)
}

// Reader looks at the state.
type Reader interface {
	View(fn func(*state.ReadTx) error) error
}

// WithPorts lets the service change what environments publish.
func (s *Service) WithPorts(r Reader, p Providers) *Service {
	s.reader, s.providers = r, p
	return s
}

// publish makes the host publish exactly what is asked for, and returns it as
// it is. The row never tells of a port that is not there: what goes is taken
// out of it before the host is asked, what comes is added after.
func (s *Service) publish(ctx context.Context, id string, r *Request) (life string, err error) {
	r.Expose = slices.Clone(r.Expose)
	if err := fleet.CheckExpose(r.Expose); err != nil {
		return "", err
	}
	if s.providers == nil {
		return "", fleet.Errorf(fleet.CodeUnimplemented, "this server changes no published ports").With(fleet.DetailScope, "expose")
	}
	var vm fleet.VM
	err = s.reader.View(func(tx *state.ReadTx) error {
		row, ok := tx.VMs().Get(id)
		if !ok || !auth.Visible(ctx)(row.Owner) {
			return notFound(id)
		}
		vm = *row
		if vm.State != fleet.VMStateRunning {
			return fleet.Errorf(fleet.CodeConflict, "cannot change the ports of environment %s while it is %s: %w", id, vm.State, fleet.ErrVMNotRunning).
				With(fleet.DetailScope, id)
		}
		// Whatever else is wrong shows before the host is asked.
		dry := vm
		return apply(&dry, *r, time.Now())
	})
	if err != nil {
		return "", err
	}
	if err := s.withdraw(ctx, &vm, r.Expose); err != nil {
		return "", err
	}
	p, err := s.providers.Provider(vm.HostID)
	if err != nil {
		return "", err
	}
	env := p.Open(provider.Ref{ID: vm.ID, UID: vm.UID, Generation: vm.Generation, OpID: uid.New()})
	r.endpoints, err = provider.Publish(ctx, env, r.Expose)
	if err != nil {
		err = fmt.Errorf("publish the ports of %s: %w", id, err)
		if !errors.Is(err, provider.ErrNoAnswer) { // refused, so all is as it was
			err = errors.Join(err, s.putEndpoints(ctx, &vm, func([]fleet.Endpoint) []fleet.Endpoint { return vm.Endpoints }))
		}
		return "", err
	}
	return vm.UID, nil
}

func same(e fleet.Endpoint, x fleet.ExposeSpec) bool {
	return e.Port == x.Port && (e.Protocol == x.Protocol || e.Protocol == "" && x.Protocol == fleet.ProtocolTCP)
}

// withdraw takes out of the row what is to go, or to change its number.
func (s *Service) withdraw(ctx context.Context, vm *fleet.VM, expose []fleet.ExposeSpec) error {
	stays := func(e fleet.Endpoint) bool {
		return slices.ContainsFunc(expose, func(x fleet.ExposeSpec) bool { return x.HostPort == 0 && same(e, x) })
	}
	if !slices.ContainsFunc(vm.Endpoints, func(e fleet.Endpoint) bool { return !stays(e) }) {
		return nil
	}
	return s.putEndpoints(ctx, vm, func(now []fleet.Endpoint) []fleet.Endpoint {
		return slices.DeleteFunc(slices.Clone(now), func(e fleet.Endpoint) bool { return !stays(e) })
	})
}

func (s *Service) putEndpoints(ctx context.Context, vm *fleet.VM, change func([]fleet.Endpoint) []fleet.Endpoint) error {
	_, err := s.store.Update(ctx, func(tx *state.Tx) error {
		row, ok := tx.VMs().Get(vm.ID)
		if !ok || row.UID != vm.UID {
			return notFound(vm.ID)
		}
		now := *row
		now.Endpoints = change(row.Endpoints)
		now.UpdatedAt = tx.Now()
		return tx.PutVM(now)
	})
	return err
}

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", id, fleet.ErrVMNotFound)
}
