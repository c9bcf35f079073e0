package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// Store is the part of the state owner that lifecycle uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Providers finds the provider of a registered host.
type Providers interface {
	Provider(hostID string) (provider.Provider, error)
}

// Sealer encrypts what must not be stored in clear, bound to a kind and an id.
type Sealer interface {
	Seal(kind, id string, plain []byte) ([]byte, error)
}

// Kinds of sealed columns; the id is the life's uid.
const (
	SealKindVMToken = "vm_token"
	SealKindVMBoot  = "vm_boot"
)

// Defaults fill in what a request leaves out.
type Defaults struct {
	CPUs      int    // 1
	RamMB     int    // 512
	StorageGB int    // 4
	Image     string // empty: requests name their own
}

// Limits bound what a request may ask for and how much goes on at once. Zero
// fields take the defaults of DefaultLimits.
type Limits struct {
	MaxCPUs      int
	MinRamMB     int
	MaxRamMB     int
	MaxStorageGB int

	StartupTimeout time.Duration // when a request names none
	StartupCeiling time.Duration // more is refused, never clamped
	// AsyncStartupCeiling replaces StartupCeiling where nobody waits for the
	// answer.
	AsyncStartupCeiling time.Duration

	// Creates run at a time on one host; of Creates and Queue together so many
	// may be in flight in all. Beyond that a create is refused.
	Creates, Queue int
	Tries          int // hosts that one create asks at most

	HostCreate  time.Duration // one boot at the host, image included
	HostUpload  time.Duration // one batch of files
	HostDestroy time.Duration // one attempt
	Drain       time.Duration
}

// DefaultLimits are the limits of a server that sets none.
func DefaultLimits() Limits {
	return Limits{
		MaxCPUs: 256, MinRamMB: 64, MaxRamMB: 4 << 20, MaxStorageGB: 64 << 10,
		StartupTimeout: fleet.DefaultStartupScriptTimeout, StartupCeiling: fleet.DefaultMaxStartupScriptTimeout,
		AsyncStartupCeiling: time.Hour,
		Creates:             32, Queue: 256, Tries: 3,
		HostCreate: 5 * time.Minute, HostUpload: time.Minute, HostDestroy: time.Minute, Drain: time.Minute,
	}
}

// Config wires a Service. Store, Providers, Sealer and Logger are needed.
type Config struct {
	Store     Store
	Providers Providers
	Sealer    Sealer
	Logger    *slog.Logger
	Admission *admission.Desk // nil: any host with room, spread
	VMPrefix  string          // empty: fleet.DefaultVMPrefix
	Defaults  Defaults
	Limits    Limits
	// Pin resolves a reference of an image, once; nil takes all as they are.
	Pin func(ctx context.Context, image string) (string, error)
	// Seed finds the snapshot that a spec names, in the transaction that places
	// the environment, and refuses one that cannot be begun with. nil: a server
	// without snapshots.
	Seed func(tx *state.ReadTx, spec fleet.Spec, sees func(owner string) bool) (Seed, error)
	// Admit is asked before every verb; nil allows all.
	Admit Admit
	// Created is told of every create that got past validation, once it has
	// ended: its time, its steps and its error. May be nil.
	Created func(took time.Duration, steps []fleet.StepTime, err error)
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c *Config) complete() error {
	var errs []error
	if c.Store == nil || c.Providers == nil || c.Sealer == nil || c.Logger == nil {
		errs = append(errs, errors.New("store, providers, sealer and logger are needed"))
	}
	if c.Admission == nil {
		c.Admission = admission.New(admission.Config{})
	}
	orDefault(&c.VMPrefix, fleet.DefaultVMPrefix)
	orDefault(&c.Defaults.CPUs, 1)
	orDefault(&c.Defaults.RamMB, 512)
	orDefault(&c.Defaults.StorageGB, 4)
	if c.Admit == nil {
		c.Admit = func(context.Context, string, string, map[string]string) error { return nil }
	}
	if c.Pin == nil {
		c.Pin = func(_ context.Context, image string) (string, error) { return image, nil }
	}
	if c.Created == nil {
		c.Created = func(time.Duration, []fleet.StepTime, error) {}
	}
	c.Limits.complete()
	if l := c.Limits; l.StartupTimeout > l.StartupCeiling {
		errs = append(errs, fmt.Errorf("startup script timeout %s is above its ceiling %s", l.StartupTimeout, l.StartupCeiling))
	}
	d := sizes{c.Defaults.CPUs, c.Defaults.RamMB, c.Defaults.StorageGB}
	if err := d.check(c.Limits); err != nil {
		errs = append(errs, fmt.Errorf("default sizes: %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("lifecycle config: %w", err)
	}
	return nil
}

func (l *Limits) complete() {
	def := DefaultLimits()
	for _, p := range []struct{ v, def *int }{
		{&l.MaxCPUs, &def.MaxCPUs},
		{&l.MinRamMB, &def.MinRamMB},
		{&l.MaxRamMB, &def.MaxRamMB},
		{&l.MaxStorageGB, &def.MaxStorageGB},
		{&l.Creates, &def.Creates},
		{&l.Queue, &def.Queue},
		{&l.Tries, &def.Tries},
	} {
		orDefault(p.v, *p.def)
	}
	for _, p := range []struct{ v, def *time.Duration }{
		{&l.StartupTimeout, &def.StartupTimeout},
		{&l.StartupCeiling, &def.StartupCeiling},
		{&l.AsyncStartupCeiling, &def.AsyncStartupCeiling},
		{&l.HostCreate, &def.HostCreate},
		{&l.HostUpload, &def.HostUpload},
		{&l.HostDestroy, &def.HostDestroy},
		{&l.Drain, &def.Drain},
	} {
		orDefault(p.v, *p.def)
	}
}
