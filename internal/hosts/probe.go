package hosts

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

const (
	maxProbes = 4 // at a time
	// probeAgain is the pause after a probe that went wrong.
	probeAgain = time.Minute
)

// probes asks hosts for their capacity: each as soon as it is seen for the
// first time or again, and then every ProbeInterval.
type probes struct {
	svc   *base
	goes  sync.WaitGroup
	slots chan struct{}

	mu   sync.Mutex
	busy map[string]bool // guarded by mu
}

func newProbes(s *base) *probes {
	return &probes{svc: s, slots: make(chan struct{}, maxProbes), busy: map[string]bool{}}
}

func (p *probes) wait() { p.goes.Wait() }

// start begins as many of the due probes as there are slots for; the others
// are due again at the next beat.
func (p *probes) start(ctx context.Context, now time.Time) {
	for _, id := range p.svc.due(now) {
		p.mu.Lock()
		busy := p.busy[id]
		p.mu.Unlock()
		if busy {
			continue
		}
		select {
		case p.slots <- struct{}{}:
		default:
			return
		}
		p.mu.Lock()
		p.busy[id] = true
		p.mu.Unlock()
		p.goes.Go(func() {
			p.svc.reprobe(ctx, id)
			p.mu.Lock()
			delete(p.busy, id)
			p.mu.Unlock()
			<-p.slots
		})
	}
}

// due lists the hosts to probe, the longest waiting first.
func (s *watch) due(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id, n := range s.sightings {
		again := s.cfg.ProbeInterval > 0 && now.Sub(n.probed) >= s.cfg.ProbeInterval
		if n.Misses == 0 && (again || n.probed.IsZero()) && now.Sub(n.failed) >= probeAgain {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		if c := s.sightings[a].probed.Compare(s.sightings[b].probed); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	return ids
}

// reprobe compares what a host has with what is recorded, and records what has
// changed. What its operator declared stays, and so does what is allocated:
// the agent reports the machine, not what is left of it.
func (s *base) reprobe(ctx context.Context, id string) {
	err := s.probeAgain(ctx, id)
	s.mu.Lock()
	if n, known := s.sightings[id]; known {
		if err == nil {
			n.probed, n.failed = time.Now(), time.Time{}
		} else {
			n.failed = time.Now()
		}
		s.sightings[id] = n
	}
	s.mu.Unlock()
	if err != nil && ctx.Err() == nil && fleet.CodeOf(err) != fleet.CodeNotFound {
		s.log.Warn("host not probed again", slog.String("host_id", id), slog.Any("error", err))
	}
}

func (s *base) probeAgain(ctx context.Context, id string) error {
	p, err := s.Provider(id)
	if err != nil {
		return err
	}
	prober, ok := p.(provider.CapacityProber)
	if !ok {
		return nil // nothing to learn, now or later
	}
	call, cancel := context.WithTimeout(ctx, s.cfg.ProbeTimeout)
	defer cancel()
	var now probed
	if now.capacity, now.facts, err = prober.Capacity(call); err != nil {
		return err
	}
	now.capacity.Arch = fleet.NormalizeArch(now.capacity.Arch)
	host, err := s.get(id)
	if err != nil {
		return err
	}
	next, err := remerged(host, now)
	if err != nil || same(host, next) {
		return err // nothing to write, as nearly always
	}
	var before, after fleet.Host
	_, err = s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := tx.Hosts().Get(id)
		if !ok {
			return notFound(id)
		}
		if before = *h; before.Declared == nil {
			return nil
		}
		if after, err = remerged(before, now); err != nil {
			return err
		}
		if same(before, after) {
			return nil
		}
		if changes := changed(before.Capacity, after.Capacity); len(changes) > 0 {
			tx.Emit(capacityChanged(id, changes))
		}
		return tx.PutHost(after)
	})
	if err != nil {
		return err
	}
	if changes := changed(before.Capacity, after.Capacity); len(changes) > 0 {
		s.log.Info("capacity of a host changed", slog.String("host_id", id), slog.String("changes", describe(changes)))
	}
	return nil
}

// remerged is the host with what its agent reports now.
func remerged(h fleet.Host, now probed) (fleet.Host, error) {
	if err := differs(h.Facts, now.facts); err != nil {
		return h, err
	}
	if now.facts.RegistryID != "" {
		h.Facts.OverheadMB, h.Facts.CPUOvercommit, h.Facts.FreeHugePages = now.facts.OverheadMB, now.facts.CPUOvercommit, now.facts.FreeHugePages
	}
	if h.Declared == nil {
		return h, nil
	}
	capacity, warnings, err := merge(RegisterRequest{ID: h.ID, Capacity: *h.Declared}, now)
	if err != nil {
		return h, err
	}
	h.Capacity, h.Warnings = capacity, warnings
	return h, nil
}

func same(a, b fleet.Host) bool {
	return len(changed(a.Capacity, b.Capacity)) == 0 && a.Capacity.Arch == b.Capacity.Arch && slices.Equal(a.Warnings, b.Warnings) &&
		a.Capacity.HugePages == b.Capacity.HugePages && a.Facts.FreeHugePages == b.Facts.FreeHugePages &&
		a.Facts.OverheadMB == b.Facts.OverheadMB && a.Facts.CPUOvercommit == b.Facts.CPUOvercommit
}

// change is one size before and after.
type change struct {
	Before int `json:"before"`
	After  int `json:"after"`
}

func changed(before, after fleet.HostCapacity) map[string]change {
	out := map[string]change{}
	for _, f := range capacityFields {
		if was, is := *f.of(&before), *f.of(&after); was != is {
			out[strings.TrimPrefix(f.name, "capacity.")] = change{was, is}
		}
	}
	return out
}

func describe(changes map[string]change) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		out = append(out, fmt.Sprintf("%s %d, was %d", name, changes[name].After, changes[name].Before))
	}
	return strings.Join(out, "; ")
}

func capacityChanged(id string, changes map[string]change) fleet.Event {
	return hostEvent(id, fleet.EventHostCapacity, fleet.Reason{
		Actor: fleet.ActorReconcile, Rule: ruleProbe, Evidence: "the agent was asked again: " + describe(changes),
	}, changes)
}
