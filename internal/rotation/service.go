package rotation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/keylock"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// SealKindPending is the kind of the sealed credentials of a rotation under
// way; the id is the life's uid.
const SealKindPending = "vm_pending"

const (
	hostLimit  = 45 * time.Second // of one call to a host
	retryEvery = 5 * time.Second  // between tries of what is under way
	atOnce     = 8                // tries at a time
)

// Store is the part of the state owner that a Service uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Providers finds the provider of a registered host.
type Providers interface {
	Provider(hostID string) (provider.Provider, error)
}

// Sealer encrypts what must not be stored in clear.
type Sealer interface {
	Seal(kind, id string, plain []byte) ([]byte, error)
	Open(kind, id string, sealed []byte) ([]byte, error)
}

// Config wires a Service. All but Admit are needed.
type Config struct {
	Store     Store
	Providers Providers
	Sealer    Sealer
	Logger    *slog.Logger
	// TokenKind is the kind that tokens of environments are sealed with.
	TokenKind string
	// Admit decides whether an actor may do something in an environment; nil
	// allows all.
	Admit func(ctx context.Context, actor, verb string, params map[string]string) error
}

// Service rotates tokens. It is safe for concurrent use.
type Service struct {
	cfg   Config
	locks keylock.Lock // by id of the environment
	base  context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup
}

// New makes a Service. Run must run beside it, or what a crash interrupted
// stays as it is.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Providers == nil || cfg.Sealer == nil || cfg.Logger == nil || cfg.TokenKind == "" {
		return nil, errors.New("rotation config: store, providers, sealer, logger and the kind of tokens are needed")
	}
	if cfg.Admit == nil {
		cfg.Admit = func(context.Context, string, string, map[string]string) error { return nil }
	}
	s := &Service{cfg: cfg}
	s.base, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// pending is what a rotation under way gives the guest.
type pending struct {
	Token string `json:"token"`
	Cert  []byte `json:"cert"`
	Key   []byte `json:"key"`
	Actor string `json:"actor"`
}

// Rotate replaces the token and certificate of a running environment. When it
// returns nil the new ones live in the guest, the old ones are dead, and the
// store knows. It goes on when the caller leaves. With an unavailable or
// deadline_exceeded error the outcome is open, and the service sees to it that
// the rotation is done. A rotation under way already is completed, not doubled.
func (s *Service) Rotate(ctx context.Context, id, actor string) error {
	if err := s.cfg.Admit(ctx, actor, "rotate-token", map[string]string{"id": id}); err != nil {
		return err
	}
	next, err := secrets.NewVMCredentials(id)
	if err != nil {
		return fmt.Errorf("make credentials: %w", err)
	}
	unlock, err := s.locks.Take(ctx, id)
	if err != nil {
		return err
	}
	vm, err := s.claim(ctx, id, pending{Token: next.Token, Cert: next.CertPEM, Key: next.KeyPEM, Actor: actor})
	if err == nil {
		err = failpoint.Hit("rotation.claimed")
	}
	if err != nil {
		unlock()
		return err
	}
	done := make(chan error, 1)
	s.work.Go(func() {
		defer unlock()
		done <- s.carryOut(s.base, vm.UID)
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fleet.Wrap(fleet.CodeDeadlineExceeded, ctx.Err(), fmt.Sprintf("the token of %s is still being rotated", id))
	}
}

// claim makes the rotation durable as an intent, with what it will give the
// guest, or finds the one that is under way.
func (s *Service) claim(ctx context.Context, id string, p pending) (fleet.VM, error) {
	doc, err := json.Marshal(p)
	if err != nil {
		return fleet.VM{}, fmt.Errorf("encode credentials: %w", err)
	}
	var row fleet.VM
	find := func(tx *state.ReadTx) error {
		vm, ok := tx.VMs().Get(id)
		if !ok || !auth.Visible(ctx)(vm.Owner) {
			return fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", id, fleet.ErrVMNotFound)
		}
		if vm.State != fleet.VMStateRunning {
			return fleet.Errorf(fleet.CodeConflict, "cannot rotate the token of environment %s while it is %s: %w", id, vm.State, fleet.ErrVMNotRunning).
				With(fleet.DetailScope, id).With(fleet.DetailUsage, "state "+string(vm.State))
		}
		if a := vm.Activity(); a != "" {
			return fleet.Errorf(fleet.CodeConflict, "cannot rotate the token of environment %s while it is %s", id, a).
				With(fleet.DetailScope, id).With(fleet.DetailRemedy, "resume it first: fuse resume "+id)
		}
		row = *vm
		return nil
	}
	if err := s.cfg.Store.View(find); err != nil {
		return row, err
	}
	sealed, err := s.cfg.Sealer.Seal(SealKindPending, row.UID, doc)
	if err != nil {
		return row, fmt.Errorf("seal credentials: %w", err)
	}
	life := row.UID
	_, err = s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		if err := find(&tx.ReadTx); err != nil {
			return err
		}
		if row.UID != life {
			return fleet.Errorf(fleet.CodeConflict, "environment %s is another one by now", id)
		}
		if len(row.PendingSealed) > 0 {
			return nil
		}
		row.PendingSealed = sealed
		row.Rotation++
		return tx.PutVM(row)
	})
	return row, err
}

// carryOut brings the rotation that a life has under way to its end: the guest
// first, then the store. Without one there is nothing to do. The lock of its
// environment is held.
func (s *Service) carryOut(ctx context.Context, life string) error {
	var vm fleet.VM
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		if row, ok := tx.VMs().GetUID(life); ok {
			vm = *row
		}
		return nil
	})
	if err != nil || len(vm.PendingSealed) == 0 {
		return err
	}
	p, err := s.open(&vm)
	if err != nil {
		return err
	}
	if err := s.tellHost(ctx, &vm, p); err != nil {
		if !refused(err) {
			return unsettled(err)
		}
		return errors.Join(err, s.drop(ctx, &vm, err))
	}
	if err := failpoint.Hit("rotation.told"); err != nil {
		return err
	}
	return s.settle(ctx, &vm, p)
}

func (s *Service) open(vm *fleet.VM) (p pending, err error) {
	doc, err := s.cfg.Sealer.Open(SealKindPending, vm.UID, vm.PendingSealed)
	if err != nil {
		return p, err
	}
	if json.Unmarshal(doc, &p) != nil {
		return p, fleet.Errorf(fleet.CodeInternal, "the credentials of the rotation of %s cannot be read", vm.ID)
	}
	return p, nil
}

func (s *Service) tellHost(ctx context.Context, vm *fleet.VM, p pending) error {
	host, err := s.cfg.Providers.Provider(vm.HostID)
	if err != nil {
		return err
	}
	// Any generation: a drain raises it, and is no reason to leave the guest
	// with a token that nobody knows.
	env, ok := host.Open(provider.Ref{ID: vm.ID, UID: vm.UID, OpID: uid.New()}).(provider.Rotator)
	if !ok {
		return fleet.Errorf(fleet.CodeUnimplemented, "the host of environment %s cannot rotate tokens", vm.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, hostLimit)
	defer cancel()
	return env.Rotate(ctx, vm.Rotation, provider.Credentials{Token: p.Token, CertPEM: p.Cert, KeyPEM: p.Key})
}

// refused reports whether a host has said that the guest has not got the new
// credentials and will not. A host that has just started does not know yet what
// it did before, and one that takes no change from this server, now or for good,
// may have done it when it still did: such conflicts decide nothing.
func refused(err error) bool {
	var fe *fleet.Error
	if errors.Is(err, provider.ErrNoAnswer) || errors.Is(err, fleet.ErrFenced) || errors.Is(err, fleet.ErrStaleTerm) || !errors.As(err, &fe) {
		return false
	}
	switch fe.Code {
	case fleet.CodeConflict:
		reason := fe.Details[fleet.DetailReason]
		return reason != "unadopted" && reason != "unclaimed"
	case fleet.CodeUnimplemented, fleet.CodeInvalidArgument:
		return true
	}
	return false
}

// unsettled is the error for a rotation whose outcome is not known yet.
func unsettled(err error) error {
	var fe *fleet.Error
	if errors.As(err, &fe) && fe.Code == fleet.CodeUnavailable {
		return fe.With(fleet.DetailReason, "the rotation goes on by itself; until it is done either token may be the guest's")
	}
	return fleet.Wrap(fleet.CodeUnavailable, err, "the host has not confirmed the rotation").
		With(fleet.DetailReason, "the rotation goes on by itself; until it is done either token may be the guest's")
}

// drop takes a rotation back that the guest will not get because of cause. A store
// that was restored learns from it how far the host has counted.
func (s *Service) drop(ctx context.Context, vm *fleet.VM, cause error) error {
	var counted int64
	var fe *fleet.Error
	if errors.As(cause, &fe) {
		counted, _ = strconv.ParseInt(fe.Details[fleet.DetailRotation], 10, 64) // absent: zero
	}
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := tx.VMs().GetUID(vm.UID)
		if !ok || row.Rotation != vm.Rotation || len(row.PendingSealed) == 0 {
			return nil
		}
		changed := *row
		changed.PendingSealed, changed.Rotation = nil, max(row.Rotation, counted)
		return tx.PutVM(changed)
	})
	return err
}

// settle makes durable that the guest has its new credentials.
func (s *Service) settle(ctx context.Context, vm *fleet.VM, p pending) error {
	sealed, err := s.cfg.Sealer.Seal(s.cfg.TokenKind, vm.UID, []byte(p.Token))
	if err != nil {
		return fmt.Errorf("seal the new token: %w", err)
	}
	_, err = s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := tx.VMs().GetUID(vm.UID)
		if !ok || row.Rotation != vm.Rotation || len(row.PendingSealed) == 0 {
			return nil // it has ended meanwhile
		}
		changed := *row
		changed.AuthTokenSealed, changed.CertPEM, changed.PendingSealed = sealed, p.Cert, nil
		if err := tx.PutVM(changed); err != nil {
			return err
		}
		tx.Emit(fleet.Event{
			EntityType: fleet.EntityVM, EntityID: row.ID, UID: row.UID, Type: fleet.EventVMTokenRotated,
			Reason: &fleet.Reason{Actor: p.Actor, Rule: fleet.RuleRequested},
		})
		return nil
	})
	if err != nil {
		return err
	}
	s.cfg.Logger.Info("token rotated", slog.String("vm_id", vm.ID), slog.String("uid", vm.UID), slog.String("host_id", vm.HostID))
	return nil
}

// Run brings rotations to their end that an earlier process, or a host that did
// not answer, left under way, until ctx is done.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for {
		if err := s.retry(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Warn("rotations under way not looked at", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (s *Service) retry(ctx context.Context) error {
	var open []*fleet.VM
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		for vm := range tx.VMs().All() {
			if len(vm.PendingSealed) > 0 && (vm.State == fleet.VMStateRunning || vm.State == fleet.VMStateDraining) {
				open = append(open, vm)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, vm := range open {
		g.Go(func() error {
			unlock, err := s.locks.Take(ctx, vm.ID)
			if err != nil {
				return err
			}
			defer unlock()
			if err := s.carryOut(ctx, vm.UID); err != nil && ctx.Err() == nil {
				s.cfg.Logger.Info("rotation still under way", slog.String("vm_id", vm.ID), slog.String("uid", vm.UID), slog.Any("error", err))
			}
			return nil
		})
	}
	return g.Wait()
}

// Close ends what is under way; the next owner of the fleet takes it up.
func (s *Service) Close() {
	s.stop()
	s.work.Wait()
}
