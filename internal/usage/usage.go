// Package usage asks hosts what the machines of running environments take, and
// keeps the last two looks: totals from the last, rates from both.
package usage

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// Config of a Service. Store and Providers are needed.
type Config struct {
	Store interface {
		View(fn func(*state.ReadTx) error) error
		Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
	}
	Providers interface {
		Provider(hostID string) (provider.Provider, error)
	}
	// Took is told what the machines of a host have taken since it was told last.
	Took   func(hostID string, t Taken)
	Logger *slog.Logger
}

const (
	// every is the pace of looks that nobody asks for, fresh how old an answer
	// may be, lookLimit bounds one look.
	every     = 15 * time.Second
	fresh     = 5 * time.Second
	lookLimit = 10 * time.Second
	atOnce    = 16
	// leastRate is the shortest time that a rate is told over.
	leastRate = time.Second
)

// Rates are per second, on average since the look before.
type Rates struct {
	CPUs                                           float64
	DiskReadBps, DiskWriteBps, NetInBps, NetOutBps float64
}

// Sample is what one environment takes.
type Sample struct {
	fleet.Usage
	HostID, Owner string
	Rates         *Rates // nil: it was looked at for the first time
}

// Taken is what the machines of one host took between two looks, and hold now.
type Taken struct {
	CPUSeconds                   float64
	DiskRead, DiskWrite, In, Out int64
	Memory, Disk                 int64
	Machines                     int
}

// Service looks.
type Service struct {
	cfg    Config
	flight singleflight.Group

	mu     sync.Mutex
	at     time.Time         // of the end of the last look
	begun  time.Time         // when it read what runs
	last   map[string]Sample // by uid
	base   map[string]Sample // what was told of each life last, also of one that a look missed
	unseen []string          // hosts
}

// New makes a Service; Run looks on its own.
func New(cfg Config) *Service {
	if cfg.Took == nil {
		cfg.Took = func(string, Taken) {}
	}
	return &Service{cfg: cfg, last: map[string]Sample{}, base: map[string]Sample{}}
}

// Run looks from time to time until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.look(ctx)
		}
	}
}

// List is what all running environments take, by id, and the hosts that could
// not be asked or cannot say.
func (s *Service) List(ctx context.Context) (all []Sample, unseen []string) {
	s.refresh(ctx, time.Time{})
	s.mu.Lock()
	defer s.mu.Unlock()
	all = slices.SortedFunc(maps.Values(s.last), func(a, b Sample) int { return cmp.Compare(a.VMID, b.VMID) })
	return all, slices.Clone(s.unseen)
}

// Of is what one environment takes.
func (s *Service) Of(ctx context.Context, id string) (Sample, error) {
	var vm fleet.VM
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		row, ok := tx.VMs().Get(id)
		if !ok {
			return fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", id, fleet.ErrVMNotFound)
		}
		vm = *row
		return nil
	})
	if err != nil {
		return Sample{}, err
	}
	var since time.Time
	if vm.State == fleet.VMStateRunning {
		since = vm.UpdatedAt // a look before that may have found it on its way
	}
	s.refresh(ctx, since)
	s.mu.Lock()
	defer s.mu.Unlock()
	if sample, ok := s.last[vm.UID]; ok {
		return sample, nil
	}
	if vm.State != fleet.VMStateRunning {
		return Sample{}, fleet.Errorf(fleet.CodeConflict, "environment %s takes nothing while it is %s: %w", id, vm.State, fleet.ErrVMNotRunning).With(fleet.DetailScope, id)
	}
	if a := vm.Activity(); a != "" {
		return Sample{}, fleet.Errorf(fleet.CodeConflict, "environment %s takes neither CPU nor memory while it is %s", id, a).With(fleet.DetailScope, id).
			With(fleet.DetailUsage, "activity "+string(a)).With(fleet.DetailRemedy, "resume it first: fuse resume "+id)
	}
	if slices.Contains(s.unseen, vm.HostID) {
		return Sample{}, fleet.Errorf(fleet.CodeUnimplemented, "host %s cannot be asked, or cannot say, what its machines take", vm.HostID).
			With(fleet.DetailHostID, vm.HostID).With(fleet.DetailRemedy, "see fuse host get, or update the host agent")
	}
	return Sample{}, fleet.Errorf(fleet.CodeUnavailable, "the usage of environment %s could not be read", id).With(fleet.DetailRemedy, "try again in a moment")
}

// refresh looks unless the last look is fresh and from after since; callers of
// one moment share it.
func (s *Service) refresh(ctx context.Context, since time.Time) {
	s.mu.Lock()
	stale := time.Since(s.at) >= fresh || s.begun.Before(since)
	s.mu.Unlock()
	if !stale {
		return
	}
	done := s.flight.DoChan("", func() (any, error) {
		s.look(context.WithoutCancel(ctx))
		return nil, nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// look asks all hosts that have environments which run and do not stand still.
func (s *Service) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	begun := time.Now()
	byHost, alive := map[string][]fleet.VM{}, map[string]bool{}
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		for vm := range tx.VMs().All() {
			if vm.State != fleet.VMStateRunning || vm.HostID == "" {
				continue
			}
			// A pause that fails leaves the process, whose counters go on.
			alive[vm.UID] = vm.Activity() != fleet.ActivityPaused
			if vm.Paused == nil {
				byHost[vm.HostID] = append(byHost[vm.HostID], *vm)
			}
		}
		return nil
	})
	if err != nil {
		return // the next look tells
	}
	var mu sync.Mutex
	seen, unseen := map[string]Sample{}, []string{}
	var g errgroup.Group
	g.SetLimit(atOnce)
	for host, vms := range byHost {
		g.Go(func() error {
			list, err := s.ask(ctx, host, vms)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				unseen = append(unseen, host)
				if fleet.CodeOf(err) != fleet.CodeUnimplemented {
					s.cfg.Logger.DebugContext(ctx, "usage not read", "host_id", host, "error", err)
				}
			}
			for _, sample := range list {
				seen[sample.UID] = sample
			}
			return nil
		})
	}
	_ = g.Wait() // none fails
	slices.Sort(unseen)
	s.note(begun, seen, alive, unseen)
}

func (s *Service) ask(ctx context.Context, host string, vms []fleet.VM) ([]Sample, error) {
	p, err := s.cfg.Providers.Provider(host)
	if err != nil {
		return nil, err
	}
	m, ok := p.(provider.Meter)
	if !ok {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "host %s does not say what its machines take", host)
	}
	refs, byUID := make([]provider.Ref, len(vms)), map[string]fleet.VM{}
	for i, vm := range vms {
		refs[i] = provider.Ref{ID: vm.ID, UID: vm.UID, Generation: vm.Generation, OpID: "usage"}
		byUID[vm.UID] = vm
	}
	list, err := m.Usage(ctx, refs)
	var out []Sample
	for _, u := range list {
		if vm, ours := byUID[u.UID]; ours {
			s.tellReboots(ctx, vm, u.Reboots)
			u.VMID = vm.ID
			out = append(out, Sample{Usage: u, HostID: host, Owner: vm.Owner})
		}
	}
	return out, err
}

// note keeps a look, with rates over the time since the one before that saw each.
func (s *Service) note(begun time.Time, seen map[string]Sample, alive map[string]bool, unseen []string) {
	s.mu.Lock()
	took := map[string]Taken{}
	for uid, now := range seen {
		before, known := s.base[uid]
		if known && before.HostID == now.HostID && now.At.Sub(before.At) < leastRate && !now.At.Before(before.At) {
			now = before // two looks at once
		}
		if !known || before.HostID != now.HostID || now.CPUSeconds < before.CPUSeconds || now.NetInBytes < before.NetInBytes || now.DiskReadBytes < before.DiskReadBytes {
			before = Sample{} // another process: its counters began anew
		} else if seconds := now.At.Sub(before.At).Seconds(); seconds > 0 {
			now.Rates = &Rates{
				CPUs: (now.CPUSeconds - before.CPUSeconds) / seconds, DiskReadBps: rate(before.DiskReadBytes, now.DiskReadBytes, seconds),
				DiskWriteBps: rate(before.DiskWriteBytes, now.DiskWriteBytes, seconds),
				NetInBps:     rate(before.NetInBytes, now.NetInBytes, seconds), NetOutBps: rate(before.NetOutBytes, now.NetOutBytes, seconds),
			}
		}
		t := took[now.HostID]
		t.CPUSeconds += now.CPUSeconds - before.CPUSeconds
		t.DiskRead, t.DiskWrite = t.DiskRead+now.DiskReadBytes-before.DiskReadBytes, t.DiskWrite+now.DiskWriteBytes-before.DiskWriteBytes
		t.In, t.Out = t.In+now.NetInBytes-before.NetInBytes, t.Out+now.NetOutBytes-before.NetOutBytes
		t.Memory, t.Disk, t.Machines = t.Memory+now.MemoryBytes, t.Disk+now.DiskBytes, t.Machines+1
		took[now.HostID] = t
		seen[uid] = now
	}
	for _, old := range s.last {
		if _, told := took[old.HostID]; !told && !slices.Contains(unseen, old.HostID) {
			took[old.HostID] = Taken{} // its last machine has ended
		}
	}
	maps.DeleteFunc(s.base, func(uid string, _ Sample) bool { return !alive[uid] })
	maps.Copy(s.base, seen)
	s.last, s.unseen, s.begun, s.at = seen, unseen, begun, time.Now()
	s.mu.Unlock()
	for host, t := range took {
		s.cfg.Took(host, t)
	}
}

func rate(before, now int64, seconds float64) float64 { return max(0, float64(now-before)/seconds) }
