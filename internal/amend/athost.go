package amend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle/uploads"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/services"
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

// Sealer is how secrets are stored.
type Sealer interface {
	Seal(kind, id string, plain []byte) ([]byte, error)
	Open(kind, id string, sealed []byte) ([]byte, error)
}

// WithHosts lets the service change what environments publish and what they may
// take.
func (s *Service) WithHosts(r Reader, p Providers) *Service {
	s.reader, s.providers = r, p
	return s
}

// WithSecrets lets it change secrets, which are in the boot options that are
// sealed under kind.
func (s *Service) WithSecrets(sealer Sealer, kind string) *Service {
	s.sealer, s.bootKind = sealer, kind
	return s
}

// atHost does at the host what has to be done there before the row may tell of
// it. A repeat of what had no answer does no harm.
func (s *Service) atHost(ctx context.Context, id string, r *Request) (life string, err error) {
	if r.Expose != nil {
		r.Expose = slices.Clone(r.Expose)
		if err := fleet.CheckExpose(r.Expose); err != nil {
			return "", err
		}
	}
	if s.providers == nil || len(r.Secrets) > 0 && s.sealer == nil {
		return "", fleet.Errorf(fleet.CodeUnimplemented, "this server changes neither ports nor limits nor secrets of what runs").
			With(fleet.DetailScope, "expose, limits and secrets").With(fleet.DetailRemedy, "create the environment anew")
	}
	var vm fleet.VM
	err = s.reader.View(func(tx *state.ReadTx) error {
		row, ok := tx.VMs().Get(id)
		if !ok || !auth.Visible(ctx)(row.Owner) {
			return notFound(id)
		}
		vm = *row
		if vm.State != fleet.VMStateRunning {
			return fleet.Errorf(fleet.CodeConflict, "cannot change ports, limits or secrets of environment %s while it is %s: %w", id, vm.State, fleet.ErrVMNotRunning).
				With(fleet.DetailScope, id)
		}
		if a := vm.Activity(); a != "" {
			return fleet.Errorf(fleet.CodeConflict, "cannot change ports, limits or secrets of environment %s while it is %s", id, a).
				With(fleet.DetailScope, id).With(fleet.DetailUsage, "activity "+string(a)).With(fleet.DetailRemedy, "resume it first: fuse resume "+id)
		}
		// Whatever else is wrong shows before the host is asked.
		dry := vm
		return apply(&dry, *r, time.Now())
	})
	if err != nil {
		return "", err
	}
	files, before, err := s.secretFiles(vm, r)
	if err != nil {
		return "", err
	}
	p, err := s.providers.Provider(vm.HostID)
	if err != nil {
		return "", err
	}
	env := p.Open(provider.Ref{ID: vm.ID, UID: vm.UID, Generation: vm.Generation, OpID: uid.New()})
	if r.Limits != nil {
		back := func(ctx context.Context) error {
			return wrap("put the limits back", provider.SetLimits(ctx, env, vm.Spec.Limits))
		}
		err := provider.SetLimits(ctx, env, *r.Limits)
		if err == nil || errors.Is(err, provider.ErrNoAnswer) {
			r.back = append(r.back, back)
		}
		if err != nil {
			return "", fmt.Errorf("change the limits of %s: %w", id, err)
		}
	}
	if len(files) > 0 {
		r.back = append(r.back, func(ctx context.Context) error { return wrap("put the secrets back", env.Upload(ctx, before)) })
		if err := env.Upload(ctx, files); err != nil {
			return "", fmt.Errorf("write the secrets of %s: %w", id, err)
		}
	}
	if r.Expose != nil {
		err = s.publish(ctx, &vm, env, r)
	}
	return vm.UID, err
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// backLimit bounds how long what was done is put back.
const backLimit = 30 * time.Second

// putBack makes host and guest again what the row still tells, since a later
// step failed. What cannot be put back joins the error.
func (r *Request) putBack(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), backLimit)
	defer cancel()
	for _, back := range slices.Backward(r.back) {
		err = errors.Join(err, back(ctx))
	}
	return err
}

// secretFiles merges secrets into those of the boot options, which it seals
// anew, and returns the guest's files of them, and those of the secrets before.
func (s *Service) secretFiles(vm fleet.VM, r *Request) (files, before []fleet.GuestFile, err error) {
	if len(r.Secrets) == 0 {
		return nil, nil, nil
	}
	plain, err := s.sealer.Open(s.bootKind, vm.UID, vm.BootSealed)
	if err != nil {
		return nil, nil, fmt.Errorf("open the boot options of %s: %w", vm.ID, err)
	}
	var boot fleet.BootOptions
	if json.Unmarshal(plain, &boot) != nil {
		return nil, nil, errors.New("the boot options of " + vm.ID + " cannot be read") // the cause may quote them
	}
	env, wanted, err := services.Machine(boot.Manifest)
	if err != nil {
		return nil, nil, err
	}
	if before, err = uploads.SecretFiles(boot.Secrets, vm.Spec.Egress, env.Lines(boot.Secrets)); err != nil {
		return nil, nil, err
	}
	if boot.Secrets = maps.Clone(boot.Secrets); boot.Secrets == nil {
		boot.Secrets = map[string]string{}
	}
	for k, v := range r.Secrets {
		if delete(boot.Secrets, k); v != nil {
			boot.Secrets[k] = *v
		}
	}
	if err := uploads.CheckSecrets(boot.Secrets, wanted); err != nil {
		return nil, nil, err
	}
	if plain, err = json.Marshal(boot); err != nil {
		return nil, nil, err
	}
	if r.sealed, err = s.sealer.Seal(s.bootKind, vm.UID, plain); err != nil {
		return nil, nil, err
	}
	r.before = vm.BootSealed
	files, err = uploads.SecretFiles(boot.Secrets, vm.Spec.Egress, env.Lines(boot.Secrets))
	return files, before, err
}
