package snaprpc

import (
	"context"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/hostd/driver"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// taking is a capture under way, or what else is done with a VM and tells how far
// it is.
type taking struct {
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu    sync.Mutex
	phase string
	now   driver.Progress
	began time.Time // of the phase
}

// making is the capture that is being written under an id, if one is.
func (s *Service) making(id string) *taking {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taking[id]
}

// enter shows work to who asks how far it is, until the result is called.
func (s *Service) enter(key string, t *taking) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taking == nil {
		s.taking = map[string]*taking{}
	}
	s.taking[key] = t
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.taking[key] == t { // and no repeat of it
			delete(s.taking, key)
		}
	}
}

func (t *taking) step(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase, t.now, t.began = name, driver.Progress{}, time.Now()
}

func (t *taking) progress(p driver.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.Part != t.phase {
		t.phase, t.began = p.Part, time.Now()
	}
	t.now = p
}

// message is how far it is now.
func (t *taking) message() *hostwirev1.SnapshotProgress {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := &hostwirev1.SnapshotProgress{Phase: t.phase, DoneBytes: t.now.Done, TotalBytes: t.now.Total}
	if took := time.Since(t.began); took > 0 && t.now.Done > 0 {
		m.BytesPerSecond = int64(float64(t.now.Done) / took.Seconds())
	}
	return m
}

// tell reports how far a capture is until ctx ends.
func (s *Service) tell(ctx context.Context, id string, report func(*hostwirev1.SnapshotProgress) error) error {
	if report == nil {
		return nil
	}
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		t := s.making(id)
		if t == nil {
			continue
		}
		if err := report(t.message()); err != nil {
			return err
		}
	}
}

// telling tells beside other work, until the result is called; nothing is sent
// after that.
func (s *Service) telling(ctx context.Context, key string, report func(*hostwirev1.SnapshotProgress) error) (end func() error) {
	told := make(chan error, 1)
	ctx, stop := context.WithCancel(ctx)
	go func() { told <- s.tell(ctx, key, report) }()
	return func() error {
		stop()
		return <-told
	}
}

// told is work with a VM's memory and disk that tells how far it is to who
// follows the VM, until the result is called.
func (s *Service) told(ctx context.Context, vm string) (_ context.Context, t *taking, leave func()) {
	t = &taking{began: time.Now()}
	return driver.Telling(ctx, t.progress), t, s.enter(vm, t)
}
