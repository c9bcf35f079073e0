package decide_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// bout is a trick on a model host, with a job that may be cut anywhere.
type bout struct {
	t      *rapid.T
	host   *modelHost
	p      model.Playground
	now    time.Time
	job    []model.OpKind // what it has yet to do; nil: there is none
	starts map[string]int // of the deciding container, by its id
	exits  map[string]int // how it ended there
}

func (b *bout) stack() *stack { return b.host.stack(b.p.Project) }

// id is the deciding container's, as looks show it.
func (b *bout) id() string { return fmt.Sprintf("life %d", b.stack().life) }

// compose does what Compose does: an up starts everything that does not run,
// also what has ended.
func (b *bout) compose(kind model.OpKind) {
	st := b.stack()
	switch kind {
	case model.OpFiles:
		st.dir, st.compose = true, b.p.Desired
	case model.OpDown:
		st.containers = nil
	case model.OpUp:
		if len(st.containers) == 0 {
			volumes := st.volumes
			st.place(services, "c1")
			st.volumes = union(volumes, st.volumes)
			st.life++
			for i := range st.containers {
				st.containers[i].state, st.containers[i].started = "created", b.now
			}
		}
		for i := range st.containers {
			if c := &st.containers[i]; c.state != "running" {
				c.state, c.exit = "running", 0
				if c.service == "web" {
					b.starts[b.id()]++
				}
			}
		}
	}
}

// work lets the job take a step, or cuts it.
func (b *bout) work(cut bool) {
	switch {
	case b.job == nil:
	case cut:
		b.job = nil
	case b.p.State == model.StatePending:
		b.p.State, b.p.StateSince = model.StateInProgress, b.now
	case b.p.State != model.StateInProgress:
		b.job = nil
	case len(b.job) == 0:
		b.p.State, b.p.StateSince, b.job = model.StateRunning, b.now, nil
	default:
		b.compose(b.job[0])
		b.job = b.job[1:]
	}
}

func (b *bout) begin() {
	b.job = []model.OpKind{model.OpFiles, model.OpUp}
	if b.p.Trick.Attempt > 1 {
		b.job = []model.OpKind{model.OpFiles, model.OpDown, model.OpUp}
	}
}

func (b *bout) pass(after time.Duration) []decide.Step {
	b.now = b.now.Add(after)
	jobs := map[model.PlaygroundID]decide.Job{b.p.ID: decide.JobNone}
	if b.job != nil {
		jobs[b.p.ID] = decide.JobAlive
	}
	steps := decide.Decide(decide.Input{
		Now: b.now, Policy: model.DefaultPolicy(), Marquee: marquee(b.host), Playgrounds: []model.Playground{b.p}, Look: b.host.look(b.now), Jobs: jobs, Epoch: 7, Sent: 1, Heard: 1, Rows: 1,
	})
	for _, s := range steps {
		q, there := decide.Apply(b.p, s, model.DefaultPolicy(), decide.Stamp{At: b.now, OpID: "op", Epoch: 7})
		if !there {
			b.t.Fatalf("its record goes: %v", s)
		}
		b.p = q
		if r, ok := s.Act.(decide.Remote); ok {
			b.p = settled(b.p, b.host.run(b.p, decide.VerbOf(r.Op), b.now), b.now)
		} else if s.Works() {
			b.begin()
		}
	}
	return steps
}

// ends lets the deciding program come to its end.
func (b *bout) ends(code int) {
	for i := range b.stack().containers {
		if c := &b.stack().containers[i]; c.service == "web" && c.state == "running" {
			c.state, c.exit, c.finished = "exited", code, b.now
			b.exits[b.id()] = code
		}
	}
}

func (b *bout) keepLogs() {
	if t := *b.p.Trick; !t.Open() && t.Last().Logs == model.LogsOwed {
		t.Attempts = slices.Clone(t.Attempts)
		t.Attempts[len(t.Attempts)-1].Logs = model.LogsKept
		b.p.Trick = &t
	}
}

// TestTrickRunsOnce: whatever is cut, lost or unseen, no program of an attempt
// is started twice, no attempt is begun beyond those that were asked for, and
// the codes are those that programs gave, in their order.
func TestTrickRunsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := &bout{t: t, host: newHost(), p: playground("job", "job"), now: noon, starts: map[string]int{}, exits: map[string]int{}}
		b.p.State, b.p.Intent, b.p.Owed = model.StatePending, model.IntentJob, model.ActionCreate
		b.p.Trick = &model.Trick{Watch: []string{"web"}, Since: noon, Attempt: 1, Retries: rapid.IntRange(0, 2).Draw(t, "retries"), Backoff: time.Minute}
		b.begin()
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			switch rapid.IntRange(0, 6).Draw(t, "kind") {
			case 0, 1:
				b.work(false)
			case 2:
				b.work(true)
			case 3:
				b.ends(rapid.IntRange(0, 2).Draw(t, "code"))
			case 4:
				b.keepLogs()
			case 5:
				b.host.ending = rapid.SampledFrom([]observe.Ending{observe.EndedExit, observe.EndedDial}).Draw(t, "link")
			}
			b.pass(rapid.SampledFrom([]time.Duration{time.Second, 30 * time.Second, 5 * time.Minute}).Draw(t, "gap"))
		}
		b.host.ending = observe.EndedExit
		for range 60 {
			for range 5 {
				b.work(false)
			}
			b.ends(0)
			b.keepLogs()
			b.pass(2 * time.Minute)
		}
		trick := b.p.Trick
		if b.p.State != model.StateCompleted || len(b.stack().containers) > 0 || len(trick.Attempts) > trick.Retries+1 {
			t.Fatalf("it ends as %s with %d containers and %+v", b.p.State, len(b.stack().containers), trick)
		}
		for id, n := range b.starts {
			if n > 1 {
				t.Fatalf("the program of %s was started %d times", id, n)
			}
		}
		var codes, told []int
		for life := 1; life <= b.stack().life; life++ {
			if code, ended := b.exits[fmt.Sprintf("life %d", life)]; ended {
				codes = append(codes, code)
			}
		}
		for _, a := range trick.Attempts {
			told = append(told, a.Code)
		}
		if !slices.Equal(codes, told) {
			t.Fatalf("programs ended with %v, told is %v: %+v", codes, told, trick)
		}
	})
}
