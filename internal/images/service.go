package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// Hosts are the hosts of the fleet.
type Hosts interface {
	// Active are the ids of the hosts that take work.
	Active() ([]string, error)
	Provider(hostID string) (provider.Provider, error)
}

// Registry reads references and asks registries.
type Registry interface {
	// IsReference tells a reference from the name of an image of hosts.
	IsReference(image string) bool
	// Pin returns the reference with the digest that it stands for now.
	Pin(ctx context.Context, image string) (string, error)
	// Login is how the reference's registry is logged in to.
	Login(image string) provider.RegistryLogin
}

// Config wires a Service. Hosts, Registry and Logger are needed.
type Config struct {
	Hosts    Hosts
	Registry Registry
	Logger   *slog.Logger

	PinTimeout   time.Duration // of one question to a registry; 30 s
	PullTimeout  time.Duration // of one pull at a host; 20 min
	BootTimeout  time.Duration // of one boot once the image is there; 5 min
	RefreshEvery time.Duration // between looks at what hosts hold; 30 s
}

// Service is the fleet's images. Run keeps its knowledge fresh.
type Service struct {
	cfg  Config
	pins singleflight.Group

	mu   sync.Mutex
	held map[string]map[string]bool // by host: names and digests
	// pulling are the pulls under way, numbered by pulls.
	pulling map[int64]UnderWay
	pulls   int64
}

// At once are so many hosts asked.
const atOnce = 16

// New makes a Service.
func New(cfg Config) (*Service, error) {
	if cfg.Hosts == nil || cfg.Registry == nil || cfg.Logger == nil {
		return nil, errors.New("images: hosts, registry and logger are needed")
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&cfg.PinTimeout, 30 * time.Second}, {&cfg.PullTimeout, 20 * time.Minute}, {&cfg.BootTimeout, 5 * time.Minute}, {&cfg.RefreshEvery, 30 * time.Second}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	return &Service{cfg: cfg, held: map[string]map[string]bool{}, pulling: map[int64]UnderWay{}}, nil
}

// CreateTimeout is what one create at a host may take, a pull included.
func (s *Service) CreateTimeout() time.Duration { return s.cfg.PullTimeout + s.cfg.BootTimeout }

// Pin resolves a reference to the digest it stands for now; the name of an
// image of hosts is returned as it is. Questions of the same moment are one.
func (s *Service) Pin(ctx context.Context, image string) (string, error) {
	if image == "" || !s.cfg.Registry.IsReference(image) {
		return image, nil
	}
	found := s.pins.DoChan(image, func() (any, error) {
		// The first caller may go away; others wait for the same answer.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.PinTimeout)
		defer cancel()
		return s.cfg.Registry.Pin(ctx, image)
	})
	select {
	case r := <-found:
		if r.Err != nil {
			return "", scoped(r.Err)
		}
		return r.Val.(string), nil
	case <-ctx.Done():
		return "", fleet.Wrap(fleet.CodeDeadlineExceeded, context.Cause(ctx), "the image was not resolved in time")
	}
}

func scoped(err error) error {
	var fe *fleet.Error
	if errors.As(err, &fe) && fe.Details[fleet.DetailScope] == "" {
		return fe.With(fleet.DetailScope, "spec.image")
	}
	return err
}

// Holders are the hosts that are known to hold an image, by id.
func (s *Service) Holders(image string) map[string]bool {
	key := image
	if _, digest, ok := strings.Cut(image, "@"); ok {
		key = digest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]bool{}
	for host, has := range s.held {
		if has[key] {
			out[host] = true
		}
	}
	return out
}

// Run keeps what is known of the hosts fresh until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.RefreshEvery)
	defer tick.Stop()
	for {
		if _, err := s.look(ctx, nil); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Warn("images of hosts not seen", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// HostImages are the images of one host, or why they could not be seen.
type HostImages struct {
	HostID string
	Images []provider.HostImage
	Err    error
}

// look asks hosts, all active ones if none are named, what they hold.
func (s *Service) look(ctx context.Context, hostIDs []string) ([]HostImages, error) {
	ids, err := s.hosts(hostIDs)
	if err != nil {
		return nil, err
	}
	out := make([]HostImages, len(ids))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, id := range ids {
		g.Go(func() error {
			out[i] = HostImages{HostID: id}
			im, err := s.imager(id)
			if err == nil {
				out[i].Images, err = im.Images(ctx)
			}
			out[i].Err = err
			return nil
		})
	}
	_ = g.Wait() // the errors are in out
	s.remember(out, hostIDs == nil)
	return out, nil
}

func (s *Service) hosts(ids []string) ([]string, error) {
	if len(ids) > 0 {
		return ids, nil
	}
	return s.cfg.Hosts.Active()
}

// remember keeps what was seen; a host that could not be seen keeps what it
// was known for until it is gone.
func (s *Service) remember(seen []HostImages, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[string]bool{}
	for _, h := range seen {
		known[h.HostID] = true
		if h.Err != nil {
			continue
		}
		has := map[string]bool{}
		for _, i := range h.Images {
			has[i.Name], has[i.Digest] = true, true
			if i.Resolved != "" {
				has[i.Resolved] = true
			}
		}
		s.held[h.HostID] = has
	}
	if all {
		maps.DeleteFunc(s.held, func(id string, _ map[string]bool) bool { return !known[id] })
	}
}

func (s *Service) imager(hostID string) (provider.Imager, error) {
	p, err := s.cfg.Hosts.Provider(hostID)
	if err != nil {
		return nil, err
	}
	im, ok := p.(provider.Imager)
	if !ok {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "host %s keeps no images that can be managed", hostID)
	}
	return im, nil
}

// Held is an image and the hosts that hold it.
type Held struct {
	provider.HostImage
	Hosts []string
}

// List tells which hosts hold what, and of which hosts nothing could be seen.
func (s *Service) List(ctx context.Context) (held []Held, unseen map[string]error, err error) {
	seen, err := s.look(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	unseen = map[string]error{}
	by := map[string]*Held{}
	for _, h := range seen {
		if h.Err != nil {
			unseen[h.HostID] = h.Err
		}
		for _, i := range h.Images {
			key := i.Name + " " + i.Digest
			if by[key] == nil {
				by[key] = &Held{HostImage: i}
				by[key].InUse = 0
			}
			e := by[key]
			e.Hosts, e.InUse = append(e.Hosts, h.HostID), e.InUse+i.InUse
			if i.UsedAt.After(e.UsedAt) {
				e.UsedAt = i.UsedAt
			}
		}
	}
	for _, e := range by {
		slices.Sort(e.Hosts)
		held = append(held, *e)
	}
	slices.SortFunc(held, func(a, b Held) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Digest, b.Digest)) })
	return held, unseen, nil
}

// Outcome is what came of one host.
type Outcome struct {
	HostID string
	Image  provider.HostImage // of a pull
	Freed  int64              // of a prune, in bytes
	Count  int                // of a prune: images removed
	Err    error
}

// Pull has hosts pull an image, all active ones if none are named. It returns
// the pinned reference.
func (s *Service) Pull(ctx context.Context, image string, hostIDs []string) (pinned string, out []Outcome, err error) {
	if !s.cfg.Registry.IsReference(image) {
		return "", nil, fleet.Invalid("image", "a reference", "write it like docker.io/library/python:3.12", "%.80q is the name of an image of hosts, which is built or imported there", image)
	}
	if pinned, err = s.Pin(ctx, image); err != nil {
		return "", nil, err
	}
	out, err = s.each(hostIDs, func(im provider.Imager, o *Outcome) error {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.PullTimeout)
		defer cancel()
		img, err := s.pullAt(ctx, im, o.HostID, pinned, nil)
		if err == nil {
			o.Image = img
			s.add(o.HostID, pinned, img)
		}
		return err
	})
	return pinned, out, err
}

// Remove removes an image from hosts; one that a host does not have is no
// error there.
func (s *Service) Remove(ctx context.Context, image string, hostIDs []string, force bool) ([]Outcome, error) {
	defer func() { _, _ = s.look(ctx, hostIDs) }() // what is not seen now is seen later
	return s.each(hostIDs, func(im provider.Imager, _ *Outcome) error {
		err := im.RemoveImage(ctx, image, force)
		if fleet.CodeOf(err) == fleet.CodeInvalidArgument {
			return nil
		}
		return err
	})
}

// Prune removes pulled images that nothing uses from hosts.
func (s *Service) Prune(ctx context.Context, hostIDs []string, unused time.Duration, maxBytes int64) ([]Outcome, error) {
	defer func() { _, _ = s.look(ctx, hostIDs) }()
	return s.each(hostIDs, func(im provider.Imager, o *Outcome) error {
		gone, freed, err := im.PruneImages(ctx, unused, maxBytes)
		o.Count, o.Freed = len(gone), freed
		return err
	})
}

func (s *Service) each(hostIDs []string, do func(provider.Imager, *Outcome) error) ([]Outcome, error) {
	ids, err := s.hosts(hostIDs)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, fleet.Errorf(fleet.CodeUnavailable, "%w", fleet.ErrNoHosts).With(fleet.DetailRemedy, "register a host first")
	}
	out := make([]Outcome, len(ids))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, id := range ids {
		g.Go(func() error {
			out[i].HostID = id
			im, err := s.imager(id)
			if err == nil {
				err = do(im, &out[i])
			}
			out[i].Err = err
			return nil
		})
	}
	_ = g.Wait() // the errors are in out
	return out, nil
}

// add notes that a host holds an image now.
func (s *Service) add(hostID, pinned string, img provider.HostImage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[hostID] == nil {
		s.held[hostID] = map[string]bool{}
	}
	for _, key := range []string{img.Digest, img.Resolved, pinned[strings.LastIndex(pinned, "@")+1:]} {
		if key != "" {
			s.held[hostID][key] = true
		}
	}
}

func progressText(p provider.PullProgress) string {
	if p.Total <= 0 {
		return p.Phase
	}
	// In tenths, so that a step is told of ten times at most.
	return fmt.Sprintf("%s %d%%", p.Phase, min(p.Done*10/p.Total, 10)*10)
}
