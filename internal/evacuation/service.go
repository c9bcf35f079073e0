package evacuation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Limits and defaults of a drain.
const (
	DefaultGrace    = 30 * time.Second
	DefaultDeadline = 30 * time.Minute
	MaxDeadline     = 7 * 24 * time.Hour

	// beat is how often hosts that are being drained are looked at.
	beat = time.Second
	// perHost and inAll bound the environments that are worked on at a time.
	perHost = 8
	inAll   = 64
)

// Store is the part of the state owner that a Service uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Lives end and drain single environments, if holds does in the transaction
// that decides it.
type Lives interface {
	DrainLifeWhile(ctx context.Context, id, uid, actor string, holds func(*state.ReadTx) bool) (*fleet.VM, error)
	DestroyLifeWhile(ctx context.Context, id, uid string, reason fleet.Reason, holds func(*state.ReadTx) bool) error
}

// Mover takes an environment to another host. It reports moved false, without
// an error, for one that cannot be moved, which is then drained where it is.
type Mover interface {
	Move(ctx context.Context, vm fleet.VM, reason fleet.Reason) (moved bool, err error)
}

// Config wires a Service. Store, Lives and Logger are needed.
type Config struct {
	Store  Store
	Lives  Lives
	Mover  Mover // nil: nothing can be moved
	Logger *slog.Logger
	// Admit is asked before every verb; nil allows all.
	Admit func(ctx context.Context, actor, verb string, params map[string]string) error
}

// Service drains hosts.
type Service struct {
	cfg   Config
	log   *slog.Logger
	slots chan struct{}

	mu     sync.Mutex
	busy   map[string]string // host by uid that is worked on; guarded by mu
	failed map[string]failure
	told   map[string]counts // what was told of each drain last, by its id; guarded by mu
}

// failure is when something last went wrong with a life, and how often.
type failure struct {
	at time.Time
	n  int
}

// New makes a Service; Run does its work.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Lives == nil || cfg.Logger == nil {
		return nil, errors.New("evacuation config: store, lives and logger are needed")
	}
	if cfg.Admit == nil {
		cfg.Admit = func(context.Context, string, string, map[string]string) error { return nil }
	}
	return &Service{
		cfg: cfg, log: cfg.Logger, slots: make(chan struct{}, inAll),
		busy: map[string]string{}, failed: map[string]failure{}, told: map[string]counts{},
	}, nil
}

// Request is a drain to begin. A nil Grace and a zero Deadline are the defaults.
type Request struct {
	HostID   string
	Actor    string
	Grace    *time.Duration
	Deadline time.Duration // from now
}

func (r Request) validate() (grace, deadline time.Duration, err error) {
	grace, deadline = DefaultGrace, cmp.Or(r.Deadline, DefaultDeadline)
	if r.Grace != nil {
		grace = *r.Grace
	}
	if deadline < time.Second || deadline > MaxDeadline {
		return 0, 0, fleet.Invalid("deadline_seconds", "1 to "+fmt.Sprint(int64(MaxDeadline/time.Second)), "leave it out for half an hour", "is %s", deadline)
	}
	if grace < 0 || grace > MaxDeadline {
		return 0, 0, fleet.Invalid("grace_seconds", "0 to the deadline", "leave it out for 30 s", "is %s", grace)
	}
	return min(grace, deadline), deadline, nil
}

// Start begins to empty a host, which takes nothing new from then on. One drain
// of a host is under way at a time.
func (s *Service) Start(ctx context.Context, req Request) error {
	if err := s.cfg.Admit(ctx, req.Actor, "host_drain", map[string]string{"id": req.HostID}); err != nil {
		return err
	}
	grace, deadline, err := req.validate()
	if err != nil {
		return err
	}
	_, err = s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := tx.Hosts().Get(req.HostID)
		if !ok {
			return notFound(req.HostID)
		}
		if h.Drain != nil {
			return fleet.Errorf(fleet.CodeConflict, "host %s is being drained already, by %s since %s", h.ID, h.Drain.Actor, h.Drain.StartedAt.UTC().Format(time.RFC3339)).
				With(fleet.DetailHostID, h.ID).With(fleet.DetailRemedy, "wait for it, or cancel it first: fuse host drain --cancel "+h.ID)
		}
		n := count(&tx.ReadTx, h.ID)
		row := *h
		row.Drain = &fleet.HostDrain{
			ID: uid.New(), Actor: req.Actor, StartedAt: tx.Now(), Deadline: tx.Now().Add(deadline), Grace: grace, Was: h.State, Total: n.left(),
		}
		if row.Drain.Was == fleet.HostDraining {
			row.Drain.Was = fleet.HostActive
		}
		row.State, row.UpdatedAt = fleet.HostDraining, tx.Now()
		tx.Emit(event(h.ID, fleet.EventHostDrainStarted, fleet.Reason{Actor: req.Actor, Rule: fleet.RuleRequested},
			startedPayload{n, row.Drain.Deadline, grace.Seconds(), bound(&tx.ReadTx, h.ID)}))
		return tx.PutHost(row)
	})
	if err == nil {
		s.log.Info("host is being drained", slog.String("host_id", req.HostID), slog.String("actor", req.Actor), slog.Duration("deadline", deadline))
		s.tellBound(req.HostID)
	}
	return err
}

// tellBound warns of what a drain of a host cannot take elsewhere.
func (s *Service) tellBound(hostID string) {
	var b bindings
	// The closure never fails.
	_ = s.cfg.Store.View(func(tx *state.ReadTx) error { b = bound(tx, hostID); return nil })
	if b != (bindings{}) {
		s.log.Warn("a host that is being drained has paused environments or snapshots, which go nowhere else",
			slog.String("host_id", hostID), slog.Int("paused", b.Paused), slog.Int("snapshots", b.Snapshots))
	}
}

// Cancel stops emptying a host, which goes back to what it was before. What has
// begun to drain stays so: there is no way back from that.
func (s *Service) Cancel(ctx context.Context, hostID, actor string) error {
	if err := s.cfg.Admit(ctx, actor, "host_drain", map[string]string{"id": hostID}); err != nil {
		return err
	}
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := tx.Hosts().Get(hostID)
		if !ok {
			return notFound(hostID)
		}
		if h.Drain == nil {
			return fleet.Errorf(fleet.CodeConflict, "host %s is not being drained, it is %s", h.ID, h.State).With(fleet.DetailHostID, h.ID)
		}
		tx.Emit(event(h.ID, fleet.EventHostDrainCancelled, fleet.Reason{Actor: actor, Rule: fleet.RuleRequested}, count(&tx.ReadTx, h.ID)))
		row := *h
		row.State, row.Drain, row.UpdatedAt = cmp.Or(h.Drain.Was, fleet.HostActive), nil, tx.Now()
		return tx.PutHost(row)
	})
	return err
}

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "host %.80q: %w", id, fleet.ErrHostNotFound).With(fleet.DetailHostID, id)
}

// counts are the environments on a host by what they are doing.
type counts struct {
	Provisioning int `json:"provisioning"`
	Running      int `json:"running"`
	Draining     int `json:"draining"`
	Drained      int `json:"drained"`
	Destroying   int `json:"destroying"`
}

func (c counts) left() int {
	return c.Provisioning + c.Running + c.Draining + c.Drained + c.Destroying
}

func count(tx *state.ReadTx, hostID string) (c counts) {
	for vm := range tx.VMs().ByHost(hostID) {
		switch standing(vm) {
		case "drained":
			c.Drained++
		case string(fleet.VMStateProvisioning):
			c.Provisioning++
		case string(fleet.VMStateRunning):
			c.Running++
		case string(fleet.VMStateDraining):
			c.Draining++
		default:
			c.Destroying++
		}
	}
	return c
}

type startedPayload struct {
	counts
	Deadline     time.Time `json:"deadline"`
	GraceSeconds float64   `json:"grace_seconds"`
	bindings
}

// bindings are what of a host goes nowhere else: paused environments end with the
// drain, snapshots stay and are of use only there.
type bindings struct {
	Paused    int `json:"paused,omitempty"`
	Snapshots int `json:"snapshots,omitempty"`
}

func bound(tx *state.ReadTx, hostID string) (b bindings) {
	for vm := range tx.VMs().ByHost(hostID) {
		if vm.Paused != nil && vm.State == fleet.VMStateRunning {
			b.Paused++
		}
	}
	for s := range tx.Snapshots().All() {
		if s.HostID == hostID && s.State != fleet.SnapshotStateError {
			b.Snapshots++
		}
	}
	return b
}

type progressPayload struct {
	counts
	Total int `json:"total"`
	Left  int `json:"left"`
}

func event(hostID, kind string, why fleet.Reason, payload any) fleet.Event {
	raw, err := json.Marshal(payload)
	if err != nil {
		raw = nil // plain values always encode
	}
	return fleet.Event{EntityType: fleet.EntityHost, EntityID: hostID, Type: kind, Reason: &why, Payload: raw}
}
