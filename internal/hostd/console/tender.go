package console

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Tender keeps the logs of all VMs short, with one goroutine.
type Tender struct {
	mu     sync.Mutex
	dirs   map[string]bool
	cancel context.CancelFunc
	done   chan struct{}
}

const tendEvery = 10 * time.Second

// Start begins; files are the logs' names in each directory.
func (t *Tender) Start(log *slog.Logger, files ...string) {
	ctx, cancel := context.WithCancel(context.Background())
	t.dirs, t.cancel, t.done = map[string]bool{}, cancel, make(chan struct{})
	go func() {
		defer close(t.done)
		tick := time.NewTicker(tendEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				t.trim(log, files)
			}
		}
	}()
}

// Stop ends it and waits for its end.
func (t *Tender) Stop() {
	t.cancel()
	<-t.done
}

// Add takes a directory under its care.
func (t *Tender) Add(dir string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dirs[dir] = true
}

// Remove lets a directory go.
func (t *Tender) Remove(dir string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.dirs, dir)
}

func (t *Tender) trim(log *slog.Logger, files []string) {
	t.mu.Lock()
	dirs := slices.Collect(maps.Keys(t.dirs))
	t.mu.Unlock()
	for _, dir := range dirs {
		for _, name := range files {
			if err := Trim(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				log.Warn("log of a vm not trimmed", "file", name, "dir", dir, "error", err)
			}
		}
	}
}
