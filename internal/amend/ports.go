package amend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// publish makes the host publish exactly what is asked for, and returns it as
// it is. The row never tells of a port that is not there: what goes is taken
// out of it before the host is asked, what comes is added after.
func (s *Service) publish(ctx context.Context, vm *fleet.VM, env provider.Environment, r *Request) error {
	if err := s.withdraw(ctx, vm, r.Expose); err != nil {
		return err
	}
	var err error
	if r.endpoints, err = provider.Publish(ctx, env, r.Expose); err != nil {
		err = fmt.Errorf("publish the ports of %s: %w", vm.ID, err)
		if !errors.Is(err, provider.ErrNoAnswer) { // refused, so all is as it was
			r.back = append(r.back, func(ctx context.Context) error {
				return s.putEndpoints(ctx, vm, func([]fleet.Endpoint) []fleet.Endpoint { return vm.Endpoints })
			})
			return err
		}
	}
	r.back = append(r.back, func(ctx context.Context) error {
		again, err := provider.Publish(ctx, env, published(vm.Endpoints))
		if err == nil {
			err = s.putEndpoints(ctx, vm, func([]fleet.Endpoint) []fleet.Endpoint { return again })
		}
		return wrap("put the ports back", err)
	})
	return err
}

// published is what was asked for to publish what is, at the same ports of the
// host.
func published(eps []fleet.Endpoint) []fleet.ExposeSpec {
	out := make([]fleet.ExposeSpec, 0, len(eps))
	for _, e := range eps {
		x := fleet.ExposeSpec{Port: e.Port, As: e.As, Protocol: e.Protocol}
		if _, port, err := net.SplitHostPort(e.URL); err == nil {
			x.HostPort, _ = strconv.Atoi(port)
		}
		out = append(out, x)
	}
	return out
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
		now.SetEndpoints(change(row.Endpoints))
		now.UpdatedAt = tx.Now()
		return tx.PutVM(now)
	})
	return err
}

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", id, fleet.ErrVMNotFound)
}
