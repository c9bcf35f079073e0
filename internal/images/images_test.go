package images

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const digest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// registry stands for a registry whose tags all mean one digest.
type registry struct {
	asked atomic.Int64
	err   error
}

func (r *registry) IsReference(image string) bool { return strings.ContainsAny(image, "/:@") }

func (r *registry) Pin(ctx context.Context, image string) (string, error) {
	r.asked.Add(1)
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if r.err != nil {
		return "", r.err
	}
	return image + "@" + digest, nil
}

func (r *registry) Login(string) provider.RegistryLogin {
	return provider.RegistryLogin{Username: "robot", Password: "secret"}
}

// host is a provider whose host keeps images.
type host struct {
	provider.Provider
	mu      sync.Mutex
	images  []provider.HostImage
	pulls   []string
	logins  []provider.RegistryLogin
	created []string
	fail    error
	slow    time.Duration
	unseen  bool
}

func (h *host) Images(context.Context) ([]provider.HostImage, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unseen {
		return nil, errors.New("no answer")
	}
	return h.images, nil
}

func (h *host) PullImage(ctx context.Context, ref string, login provider.RegistryLogin, progress func(provider.PullProgress)) (provider.HostImage, error) {
	if progress != nil {
		progress(provider.PullProgress{Phase: "pulling image", Done: 30, Total: 100})
		progress(provider.PullProgress{Phase: "pulling image", Done: 35, Total: 100})
		progress(provider.PullProgress{Phase: "making the file system"})
	}
	select {
	case <-time.After(time.Second + h.slow):
	case <-ctx.Done():
		return provider.HostImage{}, ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail != nil {
		return provider.HostImage{}, h.fail
	}
	h.pulls, h.logins = append(h.pulls, ref), append(h.logins, login)
	img := provider.HostImage{Name: "pulled", Digest: digest, InUse: 1}
	h.images = []provider.HostImage{img}
	return img, nil
}

func (h *host) RemoveImage(context.Context, string, bool) error { return h.fail }

func (h *host) PruneImages(context.Context, time.Duration, int64) ([]provider.HostImage, int64, error) {
	return h.images, 7, h.fail
}

func (h *host) Create(ctx context.Context, req provider.CreateRequest) (provider.Created, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.created = append(h.created, req.Spec.Image)
	if d, ok := ctx.Deadline(); !ok || time.Until(d) > 5*time.Minute {
		return provider.Created{}, errors.New("no limit in time")
	}
	return provider.Created{Boot: fleet.BootRecord{Steps: []fleet.StepTime{{Step: "boot"}}}}, nil
}

type pool map[string]provider.Provider

func (p pool) Active() ([]string, error) {
	var ids []string
	for _, id := range []string{"a", "b", "c"} {
		if p[id] != nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func (p pool) Provider(id string) (provider.Provider, error) {
	if h := p[id]; h != nil {
		return h, nil
	}
	return nil, fleet.ErrHostNotFound
}

func service(t *testing.T, r Registry, p pool) *Service {
	t.Helper()
	s, err := New(Config{Hosts: p, Registry: r, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPinAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{}
		s := service(t, r, pool{})
		if got, err := s.Pin(t.Context(), "minimal"); err != nil || got != "minimal" || r.asked.Load() != 0 {
			t.Errorf("a name: %q, %v", got, err)
		}
		var wg sync.WaitGroup
		first, leave := context.WithCancel(t.Context())
		for i := range 5 {
			wg.Go(func() {
				ctx := t.Context()
				if i == 0 {
					ctx = first
				}
				got, err := s.Pin(ctx, "x/y:1")
				if i > 0 && (err != nil || got != "x/y:1@"+digest) {
					t.Errorf("%q, %v", got, err)
				}
			})
		}
		synctest.Wait()
		leave() // the others' answer comes all the same
		wg.Wait()
		if r.asked.Load() != 1 {
			t.Errorf("asked %d times", r.asked.Load())
		}
		if _, err := s.Pin(t.Context(), "x/y:1"); err != nil || r.asked.Load() != 2 {
			t.Errorf("a later question: %v, asked %d times", err, r.asked.Load())
		}
		r.err = fleet.Errorf(fleet.CodeInvalidArgument, "no such image")
		var fe *fleet.Error
		if _, err := s.Pin(t.Context(), "x/z:1"); !errors.As(err, &fe) || fe.Details[fleet.DetailScope] != "spec.image" {
			t.Errorf("got %v", err)
		}
	})
}

func create(ctx context.Context, s *Service, hostID, image string) (steps []string, out provider.Created, err error) {
	p, err := s.Provider(hostID)
	if err != nil {
		return nil, out, err
	}
	req := provider.CreateRequest{Spec: fleet.Spec{Image: image}, Progress: func(step string) { steps = append(steps, step) }}
	out, err = p.Create(ctx, req)
	return steps, out, err
}

func TestCreatePullsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{}
		s := service(t, &registry{}, pool{"a": h})
		pinned := "x/y:1@" + digest
		steps, out, err := create(t.Context(), s, "a", pinned)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"pulling image", "pulling image 30%", "making the file system"}, steps); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]fleet.StepTime{{Step: StepPull, Took: time.Second}, {Step: "boot"}}, out.Boot.Steps); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(map[string]bool{"a": true}, s.Holders(pinned)); diff != "" || h.pulls[0] != pinned || h.logins[0].Username != "robot" {
			t.Errorf("%s, pulls %v, logins %v", diff, h.pulls, h.logins)
		}
		p, err := s.Provider("a")
		if err != nil {
			t.Fatal(err)
		}
		service := "x/db:2@" + digest
		var told []string
		_, err = p.Create(t.Context(), provider.CreateRequest{
			Spec: fleet.Spec{Image: "minimal", ServiceImages: []string{"named", service}}, Progress: func(step string) { told = append(told, step) },
		})
		if err != nil || len(h.pulls) != 2 || h.pulls[1] != service || len(told) == 0 || !strings.HasSuffix(told[0], " of service: "+service) {
			t.Errorf("images of services: %v, pulls %v, told %v", err, h.pulls, told)
		}
		h.pulls, h.created = h.pulls[:1], h.created[:1]
		if _, _, err := create(t.Context(), s, "a", "minimal"); err != nil || len(h.pulls) != 1 || len(h.created) != 2 {
			t.Errorf("a name: %v, pulls %v", err, h.pulls)
		}
	})
}

// What is wrong with a host has another one asked; what is wrong with the
// image does not.
func TestFailedPulls(t *testing.T) {
	for name, c := range map[string]struct {
		fail      error
		slow      time.Duration
		elsewhere bool
		code      fleet.Code
	}{
		"unknown":  {fleet.Errorf(fleet.CodeInvalidArgument, "no such image").With(fleet.DetailReason, "image_unknown"), 0, false, fleet.CodeInvalidArgument},
		"registry": {fleet.Errorf(fleet.CodeUnavailable, "not reached").With(fleet.DetailReason, "image_registry"), 0, true, fleet.CodeUnavailable},
		"no room":  {fleet.Errorf(fleet.CodeUnavailable, "full").With(fleet.DetailReason, "image_no_room"), 0, true, fleet.CodeUnavailable},
		"silence":  {fleet.Wrap(fleet.CodeUnavailable, provider.ErrNoAnswer, "no answer"), 0, false, fleet.CodeUnavailable},
		"too slow": {nil, time.Hour, true, fleet.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &host{fail: c.fail, slow: c.slow}
				_, _, err := create(t.Context(), service(t, &registry{}, pool{"a": h}), "a", "x/y:1@"+digest)
				if errors.Is(err, fleet.ErrNoCapacity) != c.elsewhere || fleet.CodeOf(err) != c.code || len(h.created) != 0 {
					t.Errorf("got %v (%s), created %v", err, fleet.CodeOf(err), h.created)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h := &host{fail: fleet.Errorf(fleet.CodeUnimplemented, "an old agent")}
		if _, _, err := create(t.Context(), service(t, &registry{}, pool{"a": h}), "a", "x/y:1@"+digest); err != nil || len(h.created) != 1 {
			t.Errorf("an old agent: %v", err)
		}
	})
}

func TestListKnowsHoldersAndTheUnseen(t *testing.T) {
	held := provider.HostImage{Name: "minimal", Digest: "sha256:1", InUse: 2}
	a, b := &host{images: []provider.HostImage{held}}, &host{images: []provider.HostImage{held, {Name: "x/y:1", Digest: digest, Resolved: "sha256:index"}}}
	c := &host{unseen: true}
	s := service(t, &registry{}, pool{"a": a, "b": b, "c": c})
	list, unseen, err := s.List(t.Context())
	if err != nil || len(list) != 2 || unseen["c"] == nil {
		t.Fatalf("%v, %v, %v", list, unseen, err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, list[0].Hosts); diff != "" || list[0].InUse != 4 {
		t.Errorf("%s: %+v", diff, list[0])
	}
	for image, want := range map[string]map[string]bool{
		"minimal": {"a": true, "b": true}, "x/y:1@" + digest: {"b": true}, "x/y@sha256:index": {"b": true}, "other": {},
	} {
		if diff := cmp.Diff(want, s.Holders(image)); diff != "" {
			t.Errorf("%s: %s", image, diff)
		}
	}
	b.unseen = true // it keeps what it was known for
	if _, _, err := s.List(t.Context()); err != nil || !s.Holders("minimal")["b"] {
		t.Errorf("forgotten: %v", err)
	}
	delete(s.cfg.Hosts.(pool), "b")
	if _, _, err := s.List(t.Context()); err != nil || s.Holders("minimal")["b"] {
		t.Errorf("a host that is gone is remembered: %v", err)
	}
}

func TestVerbsOnHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &host{}, &host{fail: fleet.Errorf(fleet.CodeUnavailable, "down")}
		s := service(t, &registry{}, pool{"a": a, "b": b})
		pinned, out, err := s.Pull(t.Context(), "x/y:1", nil)
		if err != nil || pinned != "x/y:1@"+digest || len(out) != 2 || out[0].Err != nil || out[1].Err == nil {
			t.Errorf("%q, %+v, %v", pinned, out, err)
		}
		if _, _, err := s.Pull(t.Context(), "minimal", nil); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("a name: %v", err)
		}
		if out, err := s.Remove(t.Context(), "x/y:1", []string{"a", "gone"}, false); err != nil || out[0].Err != nil || out[1].Err == nil {
			t.Errorf("remove: %+v, %v", out, err)
		}
		if out, err := s.Prune(t.Context(), nil, 0, 0); err != nil || out[0].Count != 1 || out[0].Freed != 7 || out[1].Err == nil {
			t.Errorf("prune: %+v, %v", out, err)
		}
		if _, err := service(t, &registry{}, pool{}).Prune(t.Context(), nil, 0, 0); !errors.Is(err, fleet.ErrNoHosts) {
			t.Errorf("without hosts: %v", err)
		}
	})
}

// A pull can be watched while it goes on, and is gone from the list after.
func TestPullsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := service(t, &registry{}, pool{"a": &host{}})
		done := make(chan error, 1)
		go func() {
			_, _, err := s.Pull(t.Context(), "x/y:1", nil)
			done <- err
		}()
		<-time.After(1500 * time.Millisecond) // a second to pin it
		want := []UnderWay{{Image: "x/y:1@" + digest, HostID: "a", PullProgress: provider.PullProgress{Phase: "making the file system"}}}
		if diff := cmp.Diff(want, s.UnderWay()); diff != "" {
			t.Error(diff)
		}
		if err := <-done; err != nil || len(s.UnderWay()) != 0 {
			t.Errorf("afterwards: %v, %v", s.UnderWay(), err)
		}
	})
}

func TestRunKeepsLooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{}
		s := service(t, &registry{}, pool{"a": h})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		synctest.Wait()
		h.mu.Lock()
		h.images = []provider.HostImage{{Name: "new", Digest: "sha256:2"}}
		h.mu.Unlock()
		<-time.After(31 * time.Second)
		synctest.Wait()
		if !s.Holders("new")["a"] {
			t.Error("a new image was not seen")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
