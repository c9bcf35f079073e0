package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// Event is one thing that a daemon said it did.
type Event struct {
	At     time.Time
	Type   string // container, volume, network, image
	Action string
	Actor  struct {
		ID         string
		Attributes map[string]string
	}
}

func (e Event) String() string {
	name := e.Actor.Attributes["name"]
	if name == "" {
		name = e.Actor.ID
	}
	return fmt.Sprintf("%s %s of %s", e.Type, e.Action, name)
}

// harms are the events that take something away. What a program does by
// itself (die, oom) is none.
var harms = map[string][]string{
	"container": {"destroy", "kill", "stop", "pause", "restart", "rename"},
	"volume":    {"destroy", "prune"},
	"network":   {"destroy", "prune"},
	"image":     {"delete", "untag", "prune"},
}

// Harms reports whether the event takes something away from somebody.
func (e Event) Harms() bool {
	action, _, _ := strings.Cut(e.Action, ":")
	return slices.Contains(harms[e.Type], action)
}

// Watch hears every event of a daemon, over its restarts, until the test ends.
type Watch struct {
	api    *api
	mu     sync.Mutex
	events []Event
	marks  int
	seen   chan struct{}
}

// NewWatch begins to listen.
func NewWatch(t testing.TB, d *dockertest.Daemon) *Watch {
	t.Helper()
	w := &Watch{api: newAPI(t, d), seen: make(chan struct{}, 1)}
	ctx, stop := context.WithCancel(context.Background())
	var goes sync.WaitGroup
	listening := make(chan struct{})
	goes.Go(func() {
		var once sync.Once
		for ctx.Err() == nil {
			w.listen(ctx, func() { once.Do(func() { close(listening) }) })
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() {
		stop()
		goes.Wait()
	})
	<-listening
	return w
}

func (w *Watch) listen(ctx context.Context, on func()) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/events", http.NoBody)
	if err != nil {
		return
	}
	res, err := w.api.client.Do(req)
	if err != nil {
		return
	}
	defer res.Body.Close()
	on()
	scan := bufio.NewScanner(res.Body)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		var raw struct {
			Event
			TimeNano int64 `json:"timeNano"`
		}
		if json.Unmarshal(scan.Bytes(), &raw) != nil {
			continue
		}
		raw.At = time.Unix(0, raw.TimeNano)
		w.mu.Lock()
		w.events = append(w.events, raw.Event)
		w.mu.Unlock()
		select {
		case w.seen <- struct{}{}:
		default:
		}
	}
}

// Since returns what was heard since a moment, once what happened before the
// call has surely been heard: a tag that the call sets is heard too. It is set again
// now and then, for who listens may be on the way back to a daemon that was started
// again.
func (w *Watch) Since(t testing.TB, at time.Time) []Event {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		mark := w.mark()
		again := time.After(2 * time.Second)
	hear:
		for {
			w.mu.Lock()
			all := slices.Clone(w.events)
			w.mu.Unlock()
			if slices.ContainsFunc(all, func(e Event) bool { return e.Action == "tag" && e.Actor.Attributes["name"] == mark }) {
				return slices.DeleteFunc(all, func(e Event) bool { return e.At.Before(at) })
			}
			select {
			case <-w.seen:
			case <-again:
				break hear
			case <-deadline:
				t.Fatal("the watcher hears nothing any more")
			}
		}
	}
}

// mark sets a tag, and returns its name.
func (w *Watch) mark() string {
	w.mu.Lock()
	w.marks++
	n := fmt.Sprint(w.marks)
	w.mu.Unlock()
	w.api.do(http.MethodPost, "/images/"+dockertest.Image+"/tag", url.Values{"repo": {"fuse-test/mark"}, "tag": {n}}, nil)
	return "fuse-test/mark:" + n
}

// Span is an operation of ours, or something that a test did itself, and when
// it was at work.
type Span struct {
	Op       string
	Project  string       // empty: a test did it, to anything
	Kind     model.OpKind // empty: a test did it
	Volumes  []string     // that a destroy names
	Named    bool         // which it named is not known: any of the project's
	Epoch    uint64
	Current  uint64 // the epoch that its marquee had when it was started
	From, To time.Time
}

// Begun is an epoch that a marquee had from a moment on.
type Begun struct {
	Epoch uint64
	At    time.Time
}

// Epochs are those that a marquee had, oldest first.
type Epochs []Begun

// At is the epoch of a moment; 0 before the first.
func (e Epochs) At(at time.Time) (epoch uint64) {
	for _, b := range e {
		if !b.At.After(at) {
			epoch = b.Epoch
		}
	}
	return epoch
}

// may lists what each kind of operation may take away; of a container all, or
// what is named.
var may = map[model.OpKind][]string{
	model.OpUp:      {"container", "network"}, // changed and removed services
	model.OpBranch:  {"container pause"},      // while it looks for work
	model.OpStop:    {"container"},
	model.OpDown:    {"container", "network"},
	model.OpDestroy: {"container", "network", "volume"},
	model.OpReclaim: {"container", "network", "volume"},
	model.OpSweep:   {"container", "network"},
}

// Unexplained lists the events that took something away without an operation
// of the then current epoch on that project, or somebody's own hand.
func Unexplained(events []Event, spans []Span) []string {
	const slack = 2 * time.Second // between Docker's note and ours of the same moment
	var out []string
	for _, e := range events {
		if !e.Harms() {
			continue
		}
		if !slices.ContainsFunc(spans, func(s Span) bool {
			if e.At.Before(s.From.Add(-slack/10)) || e.At.After(s.To.Add(slack)) {
				return false
			}
			return s.Kind == "" && (s.Project == "" || s.Project == projectOf(e)) || s.explains(e)
		}) {
			out = append(out, e.At.Format("15:04:05.000 ")+e.String())
		}
	}
	return out
}

func (s Span) explains(e Event) bool {
	if kinds := may[s.Kind]; s.Epoch != s.Current || !slices.Contains(kinds, e.Type) && !slices.Contains(kinds, e.Type+" "+e.Action) {
		return false
	}
	switch e.Type {
	case "volume": // its events carry no labels: by name, and only if named
		return slices.Contains(s.Volumes, e.Actor.ID) || s.Named && strings.HasPrefix(e.Actor.ID, s.Project+"_")
	case "network":
		return strings.HasPrefix(e.Actor.Attributes["name"], s.Project+"_")
	}
	return projectOf(e) == s.Project
}

func projectOf(e Event) string { return e.Actor.Attributes["com.docker.compose.project"] }
