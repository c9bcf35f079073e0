package sim

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/state"
)

// linkDatabase names the way to the database among the ways that can be cut;
// the others are named by host.
const linkDatabase = "database"

// server is a machine that runs server processes, one after another.
type server struct {
	w    *world
	name string

	mu  sync.Mutex
	db  *database // what its processes are started on
	cur *process
	wg  sync.WaitGroup
}

// process is one server process. Whatever leaves or enters it goes through
// pass, so it can be killed or stopped at any instant.
type process struct {
	s    *server
	db   *database
	log  *slog.Logger
	ctx  context.Context // ends when it is killed
	kill context.CancelFunc
	quit chan struct{} // closed: it stops in order
	once sync.Once     // closes quit
	done chan struct{} // it has ended

	mu      sync.Mutex
	resume  chan struct{} // not nil: it is stopped, as by SIGSTOP
	cuts    []string
	handler http.Handler // nil while it does not serve
	// queued is the handler of the moment when the process was stopped: its
	// kernel takes connections on, and they are served when it goes on, before
	// anything in it has had the time to notice what has changed.
	queued http.Handler
}

// pass lets a call through once the process is running; it fails when the
// process has been killed.
func (p *process) pass() error {
	for {
		p.mu.Lock()
		resume := p.resume
		p.mu.Unlock()
		if p.ctx.Err() != nil {
			return errKilled
		}
		if resume == nil {
			return nil
		}
		select {
		case <-resume:
		case <-p.ctx.Done():
		}
	}
}

func (p *process) isCut(link string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.cuts, link)
}

// setCuts replaces the ways that are cut.
func (p *process) setCuts(links ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts = links
}

// freeze stops the process; thaw lets it go on.
func (p *process) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resume == nil {
		p.resume, p.queued = make(chan struct{}), p.handler
	}
}

func (p *process) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resume != nil {
		close(p.resume)
		p.resume = nil
	}
}

func (p *process) frozen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resume != nil
}

func (p *process) die(why string) {
	p.log.Info("server killed", "server", p.s.name, "why", why)
	p.kill()
}

func (p *process) serve(h http.Handler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handler = h
}

func (p *process) serving() http.Handler {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return nil
	}
	if p.resume != nil {
		return p.queued
	}
	return p.handler
}

// start runs a new process, unless one runs.
func (s *server) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur != nil && s.cur.ctx.Err() == nil {
		return
	}
	p := &process{s: s, db: s.db, quit: make(chan struct{}), done: make(chan struct{})}
	p.log = s.w.log.With("server", s.name)
	p.ctx, p.kill = context.WithCancel(context.Background())
	s.cur = p
	s.wg.Go(p.run)
}

func (s *server) now() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// restore has the next processes work on another database.
func (s *server) restore(db *database) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.db = db
}

// stop ends the process in order and waits for it.
func (s *server) stop() {
	if p := s.now(); p != nil {
		p.thaw()
		p.once.Do(func() { close(p.quit) })
		<-p.done
	}
}

// run is the life of a process: it stands by, leads, and begins anew when it
// has lost the lead.
func (p *process) run() {
	defer close(p.done)
	defer p.kill()
	for p.ctx.Err() == nil {
		select {
		case <-p.quit:
			return
		default:
		}
		err := p.lead()
		p.serve(nil)
		if err != nil && !errors.Is(err, fleet.ErrNotLeader) {
			p.log.Info("server does not lead", "error", err)
		}
		select {
		case <-p.quit:
		default:
			_ = pause(p.ctx, p.ctx, lease.Timing{}.Poll()) // it ends with the loop
		}
	}
}

// lead takes the lease and serves until it is lost or the process ends.
func (p *process) lead() error {
	c := p.db.connect(p)
	store, err := state.Open(p.ctx, state.Config{
		Journal: c, Lease: c, Logger: p.log, Candidate: state.Candidate{Name: p.s.name},
	})
	if err != nil {
		return err
	}
	pl, err := p.s.w.newPlane(p, store)
	if err != nil {
		return errors.Join(err, store.Close(context.Background()))
	}
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	var work sync.WaitGroup
	ended := make(chan error, 5)
	work.Go(func() { ended <- pl.loop.Run(ctx) })
	work.Go(func() { ended <- pl.api.Run(ctx) })
	work.Go(func() { ended <- pl.hosts.Run(ctx) })
	if pl.snaps != nil {
		work.Go(func() { ended <- pl.snaps.Run(ctx) })
		work.Go(func() { ended <- pl.pauses.Run(ctx) })
	}
	work.Go(func() {
		if pl.loop.WaitRecovered(ctx) == nil {
			p.serve(pl.api)
		}
	})
	select {
	case <-store.Failed():
		err = store.Err()
	case err = <-ended:
	case <-p.ctx.Done():
		err = errKilled
	case <-p.quit:
	}
	p.serve(nil)
	cancel()
	grace, end := context.WithTimeout(context.Background(), 10*time.Second)
	if p.ctx.Err() != nil {
		end() // a killed process has no time
	}
	defer end()
	if closed := pl.close(grace); closed != nil {
		p.log.Debug("server closed", "error", closed)
	}
	work.Wait()
	return err
}
