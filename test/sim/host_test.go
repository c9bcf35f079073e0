package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/sim"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

const hostToken = "a-token-for-simulated-hosts"

// host is one machine. Its agent can be killed and started again; its virtual
// machines go on meanwhile.
type host struct {
	id   string
	rec  *record
	log  *slog.Logger
	dir  string
	opts sim.Options

	mu     sync.Mutex
	agent  *agent // nil while it is down
	starts int
	lie    map[string]bool // uids left out of one listing: true once that is done
	mark   *hostwirev1.Fence
	wg     sync.WaitGroup
}

// agent is one process of a host agent.
type agent struct {
	h       *host
	dir     string
	core    *hostd.Host
	drv     *sim.Driver
	handler http.Handler
	ctx     context.Context // ends when the process is killed
	kill    context.CancelFunc
}

var errKilled = errors.New("the process was killed")

// start runs a new process of the agent on what the last one left on disk.
func (h *host) start() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.agent != nil {
		return nil
	}
	h.starts++
	a := &agent{h: h, dir: filepath.Join(h.dir, fmt.Sprint(h.starts))}
	if h.starts == 1 {
		if err := os.MkdirAll(a.dir, 0o700); err != nil {
			return err
		}
	}
	a.ctx, a.kill = context.WithCancel(context.Background())
	opts := h.opts
	opts.Seed += uint64(h.starts)
	var err error
	if a.drv, err = sim.New(opts); err != nil {
		return err
	}
	a.core, err = hostd.New(hostd.Config{
		Dir: a.dir, Driver: tap{a.drv, a}, Token: hostToken, Version: "sim", Logger: h.log,
		SweepEvery: 30 * time.Second, ExitEvery: 2 * time.Second,
	})
	if err != nil {
		return err
	}
	a.handler = a.core.Handler()
	h.wg.Go(func() {
		if err := a.core.Run(a.ctx); err != nil {
			h.log.Error("host agent ended", "host_id", h.id, "error", err)
		}
	})
	h.agent = a
	return nil
}

// crash kills the agent. What it had written is there for the next process;
// what it still does is done to a directory that nobody looks at any more.
func (h *host) crash() error {
	h.mu.Lock()
	a := h.agent
	h.agent = nil
	h.mu.Unlock()
	if a == nil {
		return nil
	}
	a.kill()
	h.rec.note(entry{Host: h.id, Deed: deedCrash})
	next := filepath.Join(h.dir, fmt.Sprint(h.starts+1))
	if err := copyTree(next, a.dir); err != nil {
		return err
	}
	h.wg.Go(func() { _ = a.core.Close() }) // a ghost's last words
	return nil
}

// stop ends the agent in order.
func (h *host) stop() error {
	h.mu.Lock()
	a := h.agent
	h.agent = nil
	h.mu.Unlock()
	if a == nil {
		return nil
	}
	a.kill()
	err := a.core.Close()
	h.wg.Wait()
	return err
}

func (h *host) now() *agent {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.agent
}

// copyTree copies files as they are at this instant, torn writes included.
func copyTree(to, from string) error {
	for range 100 { // what vanishes meanwhile makes it begin anew
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		err := os.CopyFS(to, os.DirFS(from))
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return fmt.Errorf("copy %s: it does not hold still", from)
}

// tap stands between the host agent and its driver: it keeps the record, and
// cuts a killed process off from the machines.
type tap struct {
	*sim.Driver
	a *agent
}

func (t tap) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(t.a.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// Start implements driver.Driver.
func (t tap) Start(ctx context.Context, vm driver.VM, id driver.Identity, step func(string)) (driver.Instance, error) {
	if t.a.ctx.Err() != nil {
		return nil, errKilled
	}
	end := t.a.h.rec.begin(entry{Host: t.a.h.id, Deed: deedStart, VMID: vm.ID, UID: vm.UID})
	ctx, cancel := t.bound(ctx)
	defer cancel()
	inst, err := t.Driver.Start(ctx, vm, id, step)
	if t.a.ctx.Err() != nil {
		return nil, errKilled // whether it was made is for the next process to find out
	}
	if err != nil {
		end(err.Error())
		return nil, err
	}
	end("")
	t.a.h.rec.note(entry{Host: t.a.h.id, Deed: deedStarted, VMID: vm.ID, UID: vm.UID})
	return inst, nil
}

// Remove implements driver.Driver.
func (t tap) Remove(ctx context.Context, vm driver.VM) error {
	if t.a.ctx.Err() != nil {
		return errKilled
	}
	end := t.a.h.rec.begin(entry{Host: t.a.h.id, Deed: deedRemove, VMID: vm.ID, UID: vm.UID})
	ctx, cancel := t.bound(ctx)
	defer cancel()
	if err := t.Driver.Remove(ctx, vm); err != nil {
		end(err.Error())
		return err
	}
	if t.a.ctx.Err() != nil {
		return errKilled
	}
	end("")
	t.a.h.rec.note(entry{Host: t.a.h.id, Deed: deedRemoved, VMID: vm.ID, UID: vm.UID})
	return nil
}

// Adopt implements driver.Driver.
func (t tap) Adopt(ctx context.Context, vm driver.VM) (driver.Instance, error) {
	ctx, cancel := t.bound(ctx)
	defer cancel()
	return t.Driver.Adopt(ctx, vm)
}

// Sweep implements driver.Driver.
func (t tap) Sweep(ctx context.Context, live []driver.VM) (driver.SweepReport, error) {
	if t.a.ctx.Err() != nil {
		return driver.SweepReport{}, errKilled
	}
	return t.Driver.Sweep(ctx, live)
}

// die ends a running machine from within, as a guest that powers off would.
func (h *host) die(vm fleet.ObservedVM, cause string) (died bool) {
	a := h.now()
	if a == nil {
		return false
	}
	end := h.rec.begin(entry{Host: h.id, Deed: deedDied, VMID: vm.ID, UID: vm.UID})
	died = a.drv.Stop(vm.UID, cause)
	if died {
		end("")
	} else {
		end("it did not run")
	}
	return died
}

// holds lists what the agent itself says it has; false while it is down or has
// not adopted yet.
func (h *host) holds(fleetID string) (hostd.Listing, bool) {
	a := h.now()
	if a == nil {
		return hostd.Listing{}, false
	}
	l := a.core.List(fleetID)
	return l, l.Complete
}

// directories counts what is left on the host's disk of machines.
func (h *host) directories() (int, error) {
	a := h.now()
	if a == nil {
		return 0, errKilled
	}
	entries, err := os.ReadDir(filepath.Join(a.dir, "vms"))
	return len(entries), err
}

// calm ends the failures of steps for this process of the agent and later ones.
func (h *host) calm() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opts.Fail = nil
	if h.agent != nil {
		h.agent.drv.Reliable()
	}
}
