// Package supervise runs the services of the machine's manifest: it starts them
// in the order of their dependencies, starts again what ended as its policy
// says, probes their health, and stops them in reverse order.
package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/procs"
	"github.com/fusevm/fuse/internal/services"
)

// Processes are the machine's processes; a service is one of them while it
// runs, so its output is read as any other's.
type Processes interface {
	Start(ctx context.Context, spec procs.Spec) (procs.Info, error)
	Wait(ctx context.Context, id string, most time.Duration) (procs.Info, error)
	Signal(id string, sig syscall.Signal, tree bool) error
	Remove(ctx context.Context, id string) error
}

// Config of a Supervisor. All of it is needed but Contain and Program.
type Config struct {
	Processes Processes
	// Read reads a file of /fuse by its whole path, fs.ErrNotExist without it.
	Read func(path string) ([]byte, error)
	// Probe runs a command as any other and says how it ended.
	Probe func(ctx context.Context, spec fleet.ExecSpec) (exit int, output string, err error)
	// Contain makes of a service with an image of its own, its variables and the
	// names of all services what is started in its place; nil: there is no such thing.
	Contain func(ctx context.Context, s services.Service, env map[string]string, names []string) (Contained, error)
	// Program is the image's own: what a service without a command runs.
	Program []string
	Log     *slog.Logger
}

// Contained is a service in an image of its own as it is started.
type Contained struct {
	Command    fleet.ExecSpec
	Namespaces uintptr // flags of clone
	// Enter makes a command that runs where the service with that pid does.
	Enter func(pid int, argv []string) fleet.ExecSpec
}

// Supervisor runs the services of a manifest.
type Supervisor struct {
	cfg     Config
	changed chan struct{}

	mu      sync.Mutex
	graph   *graph // of the manifest in force; nil without one
	drained bool

	counting sync.Mutex
	numbers  map[string]int // of processes, by service
}

// New makes a supervisor; nothing runs before Run.
func New(cfg Config) *Supervisor {
	return &Supervisor{cfg: cfg, changed: make(chan struct{}, 1), numbers: map[string]int{}}
}

// number counts the processes of a service over all manifests, so that no
// process's id comes twice.
func (s *Supervisor) number(name string) int {
	s.counting.Lock()
	defer s.counting.Unlock()
	s.numbers[name]++
	return s.numbers[name]
}

// Changed says that the manifest may have been written.
func (s *Supervisor) Changed() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run follows the manifest until ctx ends. Services end with the machine's
// processes, not here.
func (s *Supervisor) Run(ctx context.Context) {
	var running string
	for {
		raw, list, err := s.load()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.WarnContext(ctx, "the manifest's services cannot be run", "error", err)
		}
		if err == nil && raw != running {
			running = raw
			s.replace(ctx, list)
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			if g := s.current(); g != nil {
				g.cancel()
				g.wait.Wait()
			}
			return
		}
	}
}

func (s *Supervisor) current() *graph {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.graph
}

// replace stops what another manifest asked for and starts list.
func (s *Supervisor) replace(ctx context.Context, list []services.Service) {
	if old := s.current(); old != nil {
		if err := old.stop(ctx); err != nil {
			s.cfg.Log.WarnContext(ctx, "services of the earlier manifest may still run", "error", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drained || ctx.Err() != nil {
		return
	}
	s.graph = newGraph(ctx, s, list)
	s.graph.start()
}

// load reads the manifest and the secrets that its services name.
func (s *Supervisor) load() (raw string, list []services.Service, err error) {
	doc, err := s.cfg.Read(fleet.GuestManifestPath)
	if err != nil {
		return "", nil, err
	}
	var m struct {
		Services map[string]json.RawMessage `json:"services"`
	}
	if err := json.Unmarshal(doc, &m); err != nil {
		return "", nil, errors.New("the manifest is no JSON") // the cause may quote it
	}
	list, err = services.Parse(m.Services)
	if err != nil {
		return "", nil, err
	}
	key, err := json.Marshal(m.Services)
	return string(key), list, err
}

// Drain stops all services in reverse order and starts none any more.
func (s *Supervisor) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.drained = true
	g := s.graph
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	return g.stop(ctx)
}

// List says how the services are, in the order of their starts.
func (s *Supervisor) List() []Status {
	g := s.current()
	if g == nil {
		return nil
	}
	out := make([]Status, len(g.units))
	for i, u := range g.units {
		out[i] = u.look()
	}
	return out
}
