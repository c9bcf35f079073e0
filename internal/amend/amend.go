// Package amend changes what may change of a living environment: its limits, its
// tags and, at its host, the ports that it publishes.
package amend

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/keylock"
	"github.com/fusevm/fuse/internal/state"
)

// Store is the part of the state owner that a Service uses.
type Store interface {
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Service changes environments. It is safe for concurrent use.
type Service struct {
	store      Store
	reader     Reader       // nil: no ports
	providers  Providers    // nil: no ports
	sealer     Sealer       // nil: no secrets
	bootKind   string       // of what is sealed
	publishing keylock.Lock // by environment, while its ports change
}

// New makes a Service.
func New(store Store) *Service { return &Service{store: store} }

// Request is what is to change; what is nil stays.
type Request struct {
	// MaxRuntime and IdleTimeout are the new limits; zero is the fleet's default.
	MaxRuntime, IdleTimeout *time.Duration
	// Tags are merged into those that are there; nil removes one.
	Tags map[string]*string
	// Limits are all limits of what it takes from now on; nil leaves them.
	Limits *fleet.ResourceLimits
	// Secrets are merged into those that are there; nil removes one.
	Secrets map[string]*string
	// Expose are all ports that it is to publish from now on; nil leaves them.
	Expose []fleet.ExposeSpec

	endpoints []fleet.Endpoint // what became of Expose
	sealed    []byte           // the boot options with other secrets
	before    []byte           // as they were when sealed was made of them

	back []func(context.Context) error // what puts back what was done at the host
}

func (r Request) empty() bool {
	return r.MaxRuntime == nil && r.IdleTimeout == nil && len(r.Tags) == 0 && r.Expose == nil && r.Limits == nil && len(r.Secrets) == 0
}

// Amend changes a living environment. A limit that has passed already is refused
// as invalid: whoever wants an end asks for it by its name.
func (s *Service) Amend(ctx context.Context, id, actor string, r Request) error {
	if r.empty() {
		return fleet.Invalid("the body", "at least one of max_runtime_seconds, idle_timeout_seconds, tags, expose, limits and secrets", "name what is to change", "changes nothing")
	}
	var life string
	if r.Expose != nil || r.Limits != nil || len(r.Secrets) > 0 {
		unlock, err := s.publishing.Take(ctx, id)
		if err != nil {
			return err
		}
		defer unlock()
		if life, err = s.atHost(ctx, id, &r); err != nil {
			return r.putBack(ctx, err)
		}
	}
	_, err := s.store.Update(ctx, func(tx *state.Tx) error {
		row, ok := tx.VMs().Get(id)
		if !ok || !auth.Visible(ctx)(row.Owner) {
			return notFound(id)
		}
		if row.State == fleet.VMStateDestroying || life != "" && row.UID != life {
			return fleet.Errorf(fleet.CodeConflict, "environment %s is being destroyed", id).With(fleet.DetailScope, id)
		}
		vm := *row
		if err := apply(&vm, r, tx.Now()); err != nil {
			return err
		}
		if r.Expose != nil {
			vm.SetEndpoints(r.endpoints)
		}
		if r.sealed != nil {
			if !bytes.Equal(row.BootSealed, r.before) {
				return fleet.Errorf(fleet.CodeConflict, "the secrets of environment %s were changed by another meanwhile", id).With(fleet.DetailRemedy, "repeat the change")
			}
			vm.BootSealed = r.sealed
		}
		vm.UpdatedAt = tx.Now()
		payload, err := told(vm.Spec, r)
		if err != nil {
			return err
		}
		if err := tx.PutVM(vm); err != nil {
			return err
		}
		tx.Emit(fleet.Event{
			EntityType: fleet.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: fleet.EventVMAmended, Payload: payload,
			Reason: &fleet.Reason{Actor: actor},
		})
		return nil
	})
	if err != nil {
		return r.putBack(ctx, err)
	}
	return nil
}

// apply changes the row, which is a copy; its maps are not.
func apply(vm *fleet.VM, r Request, now time.Time) error {
	if r.MaxRuntime != nil {
		vm.Spec.MaxRuntime = *r.MaxRuntime
		if age := now.Sub(vm.CreatedAt); *r.MaxRuntime > 0 && *r.MaxRuntime <= age {
			return fleet.Invalid("max_runtime_seconds", fmt.Sprintf("above its age of %d s", int64(age.Seconds())),
				"count from its creation, or destroy it", "is %d", int64(r.MaxRuntime.Seconds()))
		}
	}
	if r.IdleTimeout != nil {
		vm.Spec.IdleTimeout = *r.IdleTimeout
	}
	if r.Limits != nil {
		vm.Spec.Limits = *r.Limits
	}
	if err := fleet.CheckLimits(vm.Spec); err != nil {
		return err
	}
	if len(r.Tags) > 0 {
		tags := maps.Clone(vm.Spec.Tags)
		if tags == nil {
			tags = map[string]string{}
		}
		for k, v := range r.Tags {
			if v == nil {
				delete(tags, k)
				continue
			}
			tags[k] = *v
		}
		vm.Spec.Tags = tags
	}
	return fleet.CheckTags(vm.Spec.Tags)
}

// told is what holds now of what was named.
func told(s fleet.Spec, r Request) (json.RawMessage, error) {
	now := map[string]any{}
	if r.MaxRuntime != nil {
		now["max_runtime_seconds"] = int64(s.MaxRuntime / time.Second)
	}
	if r.IdleTimeout != nil {
		now["idle_timeout_seconds"] = int64(s.IdleTimeout / time.Second)
	}
	if len(r.Tags) > 0 {
		now["tags"] = s.Tags
	}
	if r.Expose != nil {
		now["endpoints"] = r.endpoints
	}
	if r.Limits != nil {
		now["limits"] = s.Limits
	}
	if len(r.Secrets) > 0 {
		now["secrets"] = slices.Sorted(maps.Keys(r.Secrets)) // their names alone
	}
	return json.Marshal(now)
}
