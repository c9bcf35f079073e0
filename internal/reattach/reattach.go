// Package reattach takes environments back that an earlier process left
// running: it opens what is sealed of each, hands its secrets to the guest once
// more, which costs little and helps one that rebooted meanwhile, and goes on
// with drains. Nothing that fails here ends an environment.
package reattach

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// Store is the part of the state owner that is used.
type Store interface {
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Providers finds the provider of a host.
type Providers interface {
	Provider(hostID string) (provider.Provider, error)
}

// Sealer opens what is stored sealed.
type Sealer interface {
	Open(kind, id string, sealed []byte) ([]byte, error)
}

// Drains goes on with a drain that an earlier process began.
type Drains interface {
	ResumeDrain(ctx context.Context, id, uid string) error
}

// Config is what a Service needs. Zero numbers mean the defaults.
type Config struct {
	Store     Store
	Providers Providers
	Sealer    Sealer
	Drains    Drains
	// TokenKind and BootKind are the kinds of the sealed columns.
	TokenKind, BootKind string
	// Secrets is what a guest gets of an environment's secrets.
	Secrets func(secrets map[string]string, egress fleet.EgressSpec) map[string]string
	Logger  *slog.Logger

	AtOnce  int           // environments at a time; 32
	Timeout time.Duration // of one upload; 30 s
	Pause   time.Duration // before an upload is tried again, doubled each time; 2 s
}

// tries is how often an upload is tried.
const tries = 3

// chunk bounds the events of one commit.
const chunk = 200

// Service takes environments back.
type Service struct {
	cfg   Config
	log   *slog.Logger
	slots chan struct{}
}

// New makes the service. It does nothing until Reattach.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Providers == nil || cfg.Sealer == nil || cfg.Drains == nil || cfg.Secrets == nil {
		return nil, errors.New("reattach: store, providers, sealer, drains and the guest's view of secrets are needed")
	}
	cfg.AtOnce = cmp.Or(cfg.AtOnce, 32)
	cfg.Timeout = cmp.Or(cfg.Timeout, 30*time.Second)
	cfg.Pause = cmp.Or(cfg.Pause, 2*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Service{cfg: cfg, log: cfg.Logger, slots: make(chan struct{}, cfg.AtOnce)}, nil
}

// Reattach takes back environments that their host lists as running, and
// returns when it has done with all or ctx ends. Calls beside each other share
// one bound.
func (s *Service) Reattach(ctx context.Context, vms []*fleet.VM) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var events []fleet.Event
	defer func() {
		wg.Wait()
		s.store(ctx, events)
	}()
	for _, vm := range vms {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			defer func() { <-s.slots }()
			ev, ok := s.one(ctx, vm)
			if !ok {
				return
			}
			mu.Lock()
			events = append(events, ev)
			full := events
			if len(events) >= chunk {
				events = nil
			}
			mu.Unlock()
			if len(full) >= chunk {
				s.store(ctx, full)
			}
		})
	}
}

// one takes one environment back; ok is false if there is nothing to tell.
func (s *Service) one(ctx context.Context, vm *fleet.VM) (ev fleet.Event, ok bool) {
	if vm.State == fleet.VMStateDraining {
		if err := s.cfg.Drains.ResumeDrain(ctx, vm.ID, vm.UID); err != nil {
			s.log.Warn("drain not gone on with", slog.String("vm_id", vm.ID), slog.Any("error", err))
		}
		return ev, false
	}
	boot, err := s.open(vm)
	if err == nil {
		if len(boot.Secrets) == 0 {
			return ev, false
		}
		err = s.upload(ctx, vm, boot)
	}
	if ctx.Err() != nil {
		return ev, false // the next process does it anew
	}
	ev = fleet.Event{
		EntityType: fleet.EntitySecrets, EntityID: vm.ID, UID: vm.UID, Type: fleet.EventSecretsRecovered,
		Reason: &fleet.Reason{Actor: fleet.ActorRecovery, Rule: fleet.RuleSettled},
	}
	if err != nil {
		s.log.Warn("secrets not handed over after a restart", slog.String("vm_id", vm.ID), slog.String("host_id", vm.HostID), slog.Any("error", err))
		ev.Type, ev.Error = fleet.EventSecretsRecoveryFailed, reason(err)
		return ev, true
	}
	names := slices.Sorted(maps.Keys(boot.Secrets))
	if ev.Payload, err = json.Marshal(map[string]any{"count": len(names), "names": names}); err != nil {
		ev.Payload = nil // strings always encode
	}
	return ev, true
}

// open reads what is sealed of an environment: that its token can be read is
// part of having it back.
func (s *Service) open(vm *fleet.VM) (boot fleet.BootOptions, err error) {
	if len(vm.AuthTokenSealed) > 0 {
		if _, err := s.cfg.Sealer.Open(s.cfg.TokenKind, vm.UID, vm.AuthTokenSealed); err != nil {
			return boot, fleet.Wrap(fleet.CodeInternal, err, "its token cannot be read with this server's key")
		}
	}
	if len(vm.BootSealed) == 0 {
		return boot, nil
	}
	doc, err := s.cfg.Sealer.Open(s.cfg.BootKind, vm.UID, vm.BootSealed)
	if err != nil {
		return boot, fleet.Wrap(fleet.CodeInternal, err, "its secrets cannot be read with this server's key")
	}
	if err := json.Unmarshal(doc, &boot); err != nil {
		return boot, fleet.Errorf(fleet.CodeInternal, "its boot options cannot be read") // the cause may quote them
	}
	return boot, nil
}

func (s *Service) upload(ctx context.Context, vm *fleet.VM, boot fleet.BootOptions) error {
	doc, err := json.Marshal(s.cfg.Secrets(boot.Secrets, vm.Spec.Egress))
	if err != nil {
		return fleet.Errorf(fleet.CodeInternal, "its secrets cannot be encoded")
	}
	p, err := s.cfg.Providers.Provider(vm.HostID)
	if err != nil {
		return err
	}
	env := p.Open(provider.Ref{ID: vm.ID, UID: vm.UID, Generation: vm.Generation})
	files := []fleet.GuestFile{{Path: fleet.FuseSecretsPath, Data: doc, Mode: 0o600}}
	for try, pause := 1, s.cfg.Pause; ; try, pause = try+1, 2*pause {
		err := s.uploadOnce(ctx, env, files)
		again := fleet.CodeOf(err) == fleet.CodeUnavailable || fleet.CodeOf(err) == fleet.CodeDeadlineExceeded
		if err == nil || !again || try == tries {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("upload: %w", context.Cause(ctx))
		}
	}
}

func (s *Service) uploadOnce(ctx context.Context, env provider.Environment, files []fleet.GuestFile) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return env.Upload(ctx, files)
}

// store writes what there is to tell; what cannot be written is in the log.
func (s *Service) store(ctx context.Context, events []fleet.Event) {
	if len(events) == 0 || ctx.Err() != nil {
		return
	}
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		for _, ev := range events {
			if _, ok := tx.VMs().GetUID(ev.UID); ok {
				tx.Emit(ev)
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("events of recovered secrets not stored", slog.Int("events", len(events)), slog.Any("error", err))
	}
}

// reason is the text of an error for people, without what it hides.
func reason(err error) string {
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fe.Message
	}
	return "the host did not take them"
}
