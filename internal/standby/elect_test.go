package standby

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const period = 15 * time.Second

// server is one process as far as the election goes.
type server struct {
	name    string
	secret  string
	journal *memory.Journal
	leading *reigns
	ended   chan error

	mu        sync.Mutex
	following state.LeaseInfo
	waiting   error
}

// reigns records who leads; two at once are an error.
type reigns struct {
	t   *testing.T
	mu  sync.Mutex
	now string
	log []string
	at  []time.Time
}

func (r *reigns) begin(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now != "" {
		r.t.Errorf("%s leads while %s does", name, r.now)
	}
	r.now = name
	r.log, r.at = append(r.log, name), append(r.at, time.Now())
}

func (r *reigns) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = ""
}

// newest is who began to lead last, and when.
func (r *reigns) newest() (string, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log[len(r.log)-1], r.at[len(r.at)-1]
}

func (r *reigns) leader() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (s *server) Follow(_ context.Context, info state.LeaseInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.following, s.waiting = info, nil
}

func (s *server) Wait(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.following, s.waiting = state.LeaseInfo{}, reason
}

func (s *server) sees() (state.LeaseInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.following, s.waiting
}

// lead holds the lease until ctx ends or the term is lost.
func (s *server) lead(ctx context.Context) error {
	g, err := s.journal.Acquire(ctx, state.Candidate{Name: s.name, Address: "http://" + s.name, Secret: s.secret})
	if err != nil {
		return err
	}
	s.leading.begin(s.name)
	select {
	case <-ctx.Done():
		s.leading.end()
		return g.Tenure.Release(context.WithoutCancel(ctx))
	case <-g.Tenure.Lost():
		s.leading.end()
		return g.Tenure.Check()
	}
}

func start(ctx context.Context, j *memory.Journal, r *reigns, name string) *server {
	s := &server{name: name, secret: "secret of " + name, journal: j, leading: r, ended: make(chan error, 1)}
	e := NewElector(Config{Leaders: j, View: s, Lead: s.lead, Secret: s.secret, Poll: time.Second})
	go func() { s.ended <- e.Run(ctx) }()
	return s
}

func TestOneLeadsAndTheNextTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{Lease: period})
		r := &reigns{t: t}
		all, stops := map[string]*server{}, map[string]context.CancelFunc{}
		for i := range 4 {
			ctx, stop := context.WithCancel(t.Context())
			name := fmt.Sprint("s", i)
			all[name], stops[name] = start(ctx, j.Reopen(), r, name), stop
			<-time.After(time.Millisecond)
		}
		<-time.After(time.Minute)
		for len(all) > 0 {
			leader := r.leader()
			for name, s := range all {
				if info, why := s.sees(); name != leader && (info.Name != leader || info.Address != "http://"+leader) {
					t.Errorf("%s follows %q (%v), %q leads", name, info.Name, why, leader)
				}
			}
			asked := time.Now()
			stops[leader]()
			if err := <-all[leader].ended; err != nil {
				t.Errorf("%s ended with %v", leader, err)
			}
			delete(all, leader)
			<-time.After(3 * time.Second)
			if len(all) == 0 {
				break
			}
			if next, since := r.newest(); next == leader || since.Sub(asked) > time.Second {
				t.Errorf("%s leads %v after %s was stopped", next, since.Sub(asked), leader)
			}
		}
	})
}

// cut is a way to the lease that can be broken.
type cut struct {
	*memory.Journal
	mu   sync.Mutex
	fail error
}

func (c *cut) Leader(ctx context.Context) (state.LeaseInfo, bool, error) {
	c.mu.Lock()
	err := c.fail
	c.mu.Unlock()
	if err != nil {
		return state.LeaseInfo{}, false, err
	}
	return c.Journal.Leader(ctx)
}

func (c *cut) set(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = err
}

func TestAStoreOutOfReachIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		c := &cut{Journal: memory.New(memory.Options{Lease: period})}
		c.set(fleet.Wrap(fleet.CodeUnavailable, fleet.ErrStoreUnavailable, "state database db.internal:5432/fuse cannot be reached"))
		r := &reigns{t: t}
		s := &server{name: "a", journal: c.Journal, leading: r, ended: make(chan error, 1)}
		e := NewElector(Config{Leaders: c, View: s, Lead: s.lead, Poll: time.Second, StoreTimeout: time.Minute})
		go func() { s.ended <- e.Run(ctx) }()
		<-time.After(50 * time.Second)
		if _, why := s.sees(); !errors.Is(why, fleet.ErrStoreUnavailable) {
			t.Errorf("it waits because of %v", why)
		} else if text := publicText(why); text != "the state store cannot be reached" {
			t.Errorf("whoever asks is told %q", text)
		}
		c.set(nil)
		<-time.After(6 * time.Second)
		if r.leader() != "a" {
			t.Error("it does not lead once the store answers")
		}
		stop()
		if err := <-s.ended; err != nil {
			t.Error(err)
		}
	})
}

func TestAStandbyThatIsCutOffFollowsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		j := memory.New(memory.Options{Lease: period})
		r := &reigns{t: t}
		leader := start(ctx, j, r, "a")
		<-time.After(time.Second)
		c := &cut{Journal: j.Reopen()}
		s := &server{name: "b", journal: c.Journal, leading: r, ended: make(chan error, 1)}
		e := NewElector(Config{Leaders: c, View: s, Lead: s.lead, Poll: time.Second, StoreTimeout: time.Minute})
		go func() { s.ended <- e.Run(ctx) }()
		<-time.After(5 * time.Second)
		c.set(fleet.ErrStoreUnavailable)
		<-time.After(time.Hour)
		if info, why := s.sees(); info.Name != "a" {
			t.Errorf("it follows %q, waits because of %v", info.Name, why)
		}
		c.set(nil)
		<-time.After(time.Minute)
		stop()
		if err := errors.Join(<-leader.ended, <-s.ended); err != nil {
			t.Error(err)
		}
	})
}

func TestAStoreThatNeverAnswersEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cut{Journal: memory.New(memory.Options{Lease: period})}
		c.set(fmt.Errorf("dial: %w", fleet.ErrStoreUnavailable))
		s := &server{name: "a", journal: c.Journal, leading: &reigns{t: t}}
		start := time.Now()
		err := NewElector(Config{Leaders: c, View: s, Lead: s.lead, Poll: time.Second, StoreTimeout: time.Minute}).Run(t.Context())
		if took := time.Since(start); !errors.Is(err, fleet.ErrStoreUnavailable) || took < time.Minute || took > 66*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestWhatTimeDoesNotHealEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("the schema is newer than this program")
		s := &server{name: "a"}
		lead := func(context.Context) error { return broken }
		err := NewElector(Config{Leaders: memory.New(memory.Options{Lease: period}), View: s, Lead: lead, Poll: time.Second}).Run(t.Context())
		if !errors.Is(err, broken) {
			t.Error(err)
		}
	})
}

func TestOnesOwnLostLeaseIsNotFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		j := memory.New(memory.Options{Lease: period})
		g, err := j.Acquire(ctx, state.Candidate{Name: "a", Secret: "secret of a"})
		if err != nil {
			t.Fatal(err)
		}
		s := start(ctx, j.Reopen(), &reigns{t: t}, "a")
		<-time.After(time.Minute)
		if info, why := s.sees(); why == nil || info.Name != "" {
			t.Errorf("it follows %+v, waits because of %v", info, why)
		}
		stop()
		if err := errors.Join(<-s.ended, g.Tenure.Release(context.WithoutCancel(ctx))); err != nil {
			t.Error(err)
		}
	})
}

// A server that could not go on with what the leader has sealed says so while
// there is a leader, not when it is to follow.
func TestALeaderThatCannotBeFollowedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		g, err := j.Acquire(t.Context(), state.Candidate{Name: "leader", Secret: "other", KeyID: "theirs"})
		if err != nil {
			t.Fatal(err)
		}
		refusal := errors.New("another key")
		s := &server{name: "late", journal: j, leading: &reigns{t: t}}
		err = NewElector(Config{Leaders: j, View: s, Lead: s.lead, Secret: "own", Poll: time.Second, Admit: func(leader state.Candidate) error {
			if leader.Name != "leader" || leader.KeyID != "theirs" {
				t.Errorf("asked about %+v", leader)
			}
			return refusal
		}}).Run(t.Context())
		if !errors.Is(err, refusal) {
			t.Errorf("run: %v", err)
		}
		if info, _ := s.sees(); info.Name != "" {
			t.Error("it follows the leader")
		}
		if err := errors.Join(g.Tenure.Release(t.Context()), j.Close()); err != nil {
			t.Error(err)
		}
	})
}
