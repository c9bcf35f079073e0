package loop_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

// chaos is a world in which people, hosts and leaders do as they like.
type chaos struct {
	*world
	r        *rand.Rand
	leaders  []*leader // the last one leads
	term     int64
	projects map[model.PlaygroundID]model.Project
	made     int
}

// TestChaos lets things happen at random, then lets them be, and wants every
// playground to come to what was asked of it. What must never happen is checked
// whenever a host is asked for something.
func TestChaos(t *testing.T) {
	for seed := range testkit.Count(10, 300) {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			bubble(t, 2, func(w *world) {
				c := &chaos{world: w, r: rand.New(rand.NewPCG(uint64(seed), 1)), projects: map[model.PlaygroundID]model.Project{}}
				for _, s := range w.sims {
					c.watch(s)
				}
				c.takeOver()
				for range 60 {
					c.step()
					pass(time.Duration(c.r.IntN(45)) * time.Second)
				}
				c.calm()
				pass(4 * time.Hour)
				c.check()
				for _, l := range c.leaders {
					l.stop()
				}
			})
		})
	}
}

// watch adds what must never happen to what the world checks.
func (c *chaos) watch(s *sim) {
	durable := s.begun
	s.begun = func(r runner.Request) {
		durable(r)
		p, _ := c.get(r.Playground)
		starts := r.Verb.Kind() == model.OpUp || r.Verb.Kind() == model.OpFiles
		if starts && p.Intent != model.IntentUp && p.State != model.StateInProgress && p.Op.ID == r.Op {
			c.t.Errorf("%s of a playground that nobody wants up: %+v", r.Verb.Kind(), p)
		}
	}
}

// takeOver begins a term. The leader before does not notice by itself that its
// lease is over.
func (c *chaos) takeOver() {
	if n := len(c.leaders); n > 0 {
		c.leaders[n-1].holds.Store(false)
	}
	c.term++
	c.leaders = append(c.leaders, c.lead(c.term))
}

func (c *chaos) leader() *leader { return c.leaders[len(c.leaders)-1] }

func (c *chaos) any() (model.PlaygroundID, records.Playground, bool) {
	ids := make([]model.PlaygroundID, 0, len(c.projects))
	for i := range c.made {
		ids = append(ids, model.PlaygroundID(fmt.Sprintf("p%d", i)))
	}
	if len(ids) == 0 {
		return "", records.Playground{}, false
	}
	id := ids[c.r.IntN(len(ids))]
	p, ok := c.get(id)
	return id, p, ok
}

// step is one thing that happens.
func (c *chaos) step() {
	s := c.sims[model.MarqueeID(fmt.Sprintf("m%d", c.r.IntN(2)))]
	id, p, there := c.any()
	hurt := func(fn func(p *project)) {
		if there {
			c.sims[p.Marquee].set(func(s *sim) {
				if found := s.projects[p.Project.String()]; found != nil {
					fn(found)
				}
			})
		}
	}
	switch c.r.IntN(16) {
	case 0, 1:
		if c.made < 4 {
			id := model.PlaygroundID(fmt.Sprintf("p%d", c.made))
			c.made++
			c.projects[id] = c.ask(c.leader(), model.MarqueeID(fmt.Sprintf("m%d", c.r.IntN(2))), id, version("a"))
		}
	case 2, 3:
		if there && p.State.Allows(model.ActionRollout) {
			v := version(strconv.Itoa(c.r.IntN(6)))
			c.sims[p.Marquee].set(func(s *sim) { s.bad["web-3"], s.noImage[version("4").Digest] = true, true })
			c.ask(c.leader(), p.Marquee, id, v)
		}
	case 4, 5, 6:
		actions := model.Actions()
		if a := actions[c.r.IntN(len(actions))]; there && p.State.Allows(a) && (a != model.ActionDestroy || c.r.IntN(4) == 0) {
			c.act(c.leader(), id, a)
		}
	case 7:
		hurt(func(p *project) { s.end(p, c.r.IntN(2)) })
	case 8:
		hurt(func(p *project) { p.boxes = nil })
	case 9:
		hurt(func(p *project) {
			if len(p.boxes) > 0 {
				p.boxes = p.boxes[:1]
			}
		})
	case 10:
		s.set(func(s *sim) { s.dead = !s.dead })
	case 11:
		s.set(func(s *sim) { s.hangs = !s.hangs })
	case 12:
		s.set(func(s *sim) { s.deaf = !s.deaf })
	case 13:
		s.set(func(s *sim) {
			s.boot, s.daemon = fmt.Sprint("boot", c.r.Uint32()), time.Now()
			for _, p := range s.projects {
				s.end(p, 0)
			}
		})
	case 14:
		c.takeOver()
	case 15:
		c.leader().stop()
		c.leaders = c.leaders[:len(c.leaders)-1]
		c.takeOver()
	}
}

// calm ends every fault.
func (c *chaos) calm() {
	for _, s := range c.sims {
		s.set(func(s *sim) { s.dead, s.hangs, s.deaf = false, false, false })
	}
}

// check is what has to be true once nothing happens any more.
func (c *chaos) check() {
	for id, name := range c.projects {
		p, there := c.get(id)
		var runs map[string]string
		for _, s := range c.sims {
			if r := s.running(name); len(r) > 0 {
				runs = r
			}
		}
		if !there {
			if len(runs) > 0 {
				c.t.Errorf("%s has no record and runs %v", id, runs)
			}
			continue
		}
		bad := ""
		switch p.State {
		case model.StateRunning:
			want := map[string]string{}
			for _, svc := range p.Services {
				want[svc.Name] = svc.Digest
			}
			if len(runs) != len(want) || runs["web"] != want["web"] || runs["db"] != want["db"] {
				bad = fmt.Sprintf("runs %v, want %v", runs, want)
			}
		case model.StateStopped:
			if len(runs) == 2 {
				bad = fmt.Sprintf("runs %v", runs)
			}
		case model.StateError:
			if p.Failure.Temporary() {
				bad = "a temporary failure did not end"
			}
		default:
			bad = "it does not end"
		}
		if bad != "" || !p.Op.IsZero() || p.Step != "" {
			c.t.Errorf("%s: %s\n%+v\n%v", id, bad, p, c.leader().Decisions(id))
		}
	}
	for id, s := range c.sims {
		c.epochs(id, s)
	}
	open := 0
	_ = c.store.View(func(tx *state.ReadTx) error {
		for _, e := range records.Entries.All(tx) {
			if e.Operation != nil && e.Operation.EndedAt.IsZero() {
				open++
			}
		}
		return nil
	})
	if open > 0 {
		c.t.Errorf("%d operations have no end", open)
	}
}

// epochs checks that nothing of an older term began after a newer one's.
func (c *chaos) epochs(id model.MarqueeID, s *sim) {
	newest := uint64(0)
	for _, op := range s.ran() {
		_, text, _ := strings.Cut(op, " ")
		epoch, err := strconv.ParseUint(text, 10, 64)
		if err = errors.Join(err); err != nil || epoch < newest {
			c.t.Errorf("%s: %v", id, s.ran())
			return
		}
		newest = epoch
	}
}
