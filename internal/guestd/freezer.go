package guestd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/freeze"
	"github.com/fusevm/fuse/internal/guestd/renew"
	"github.com/fusevm/fuse/internal/guestd/rotated"
	"github.com/fusevm/fuse/internal/guestd/scrub"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
)

// Capture is what a machine needs to be captured and renewed.
type Capture struct {
	System      freeze.System
	Incarnation func() string
	Machine     renew.Machine
	// Settle does what the boot left for later; nothing is captured before.
	Settle func(ctx context.Context)
	// Grow extends the root filesystem to its disk.
	Grow func(ctx context.Context) error
	// Anew is what was renewed at the boot because the disk was another's.
	Anew []fleet.Renewal
}

// newFreezer makes the freezer of a machine that can be captured.
func (s *Server) newFreezer() *freeze.Freezer {
	c := s.cfg.Capture
	if c == nil {
		c = &Capture{System: noCapture{}, Incarnation: func() string { return "" }}
	}
	return freeze.New(freeze.Config{System: c.System, Starts: s.runner, Incarnation: c.Incarnation, Log: s.cfg.Log})
}

// freezerService implements the protocol's Freezer.
type freezerService struct{ *Server }

var _ guestwirev1connect.FreezerHandler = (*freezerService)(nil)

// authorizeFreezer lets Renew and Thaw through with the key of the freeze, for
// the machine's token is another's then; the other calls need the token.
func (s *Server) authorizeFreezer(next http.Handler, refuse http.HandlerFunc) http.Handler {
	guarded := s.authorize(next, refuse)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case guestwirev1connect.FreezerRenewProcedure, guestwirev1connect.FreezerThawProcedure:
			key, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !found || !s.freezer.Opens(key) {
				refuse(w, r)
				return
			}
			next.ServeHTTP(w, r)
		default:
			guarded.ServeHTTP(w, r)
		}
	})
}

// Freeze makes the machine stand still.
func (s *freezerService) Freeze(ctx context.Context, req *connect.Request[guestwirev1.FreezeRequest]) (*connect.Response[guestwirev1.FreezeResponse], error) {
	m := req.Msg
	r := freeze.Request{Processes: m.Processes, Filesystem: m.Filesystem, Limit: time.Duration(m.LimitMs) * time.Millisecond}
	if len(m.KeyHash) != len(r.KeyHash) && m.Processes {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("a freeze of the processes needs the hash of the key that opens what is made of the capture"))
	}
	copy(r.KeyHash[:], m.KeyHash)
	if c := s.cfg.Capture; c != nil && c.Settle != nil {
		c.Settle(ctx)
	}
	s.scrub() // what is captured has no third machine's secrets
	if m.Processes {
		s.rehearsed.Do(s.rehearse)
	}
	report, err := s.freezer.Freeze(ctx, r)
	if err != nil {
		return nil, guestwire.Refuse(err)
	}
	res := &guestwirev1.FreezeResponse{
		FrozeUs: report.Froze.Microseconds(), SyncedUs: report.Synced.Microseconds(), Processes: int32(report.Processes),
		WireVersion: guestwire.WireVersion,
	}
	if c := s.cfg.Capture; c != nil {
		res.SshHostKeys = freeze.SSHKeyKinds(c.Machine.Root)
	}
	return connect.NewResponse(res), nil
}

// rehearse has in memory what a renewal needs and would otherwise read from the
// disk or make first, in each machine that is made of the capture.
func (s *Server) rehearse() {
	word := "-"
	for _, m := range []proto.Message{
		&guestwirev1.RenewRequest{
			Generation: word, Cause: word, Entropy: []byte(word), Hostname: word, Network: &guestwirev1.RenewNetwork{Nameservers: []string{word}},
			SshHostKeys: []*guestwirev1.RenewSSHKey{{Kind: word}},
		},
		&guestwirev1.RenewResponse{Renewed: []*guestwirev1.RenewedItem{{Name: word}}},
		&guestwirev1.ThawRequest{Generation: word}, &guestwirev1.ThawResponse{Told: 1},
	} {
		doc, err := proto.Marshal(m)
		if err != nil || proto.Unmarshal(doc, m) != nil {
			return
		}
	}
	if c := s.cfg.Capture; c != nil {
		c.Machine.Rehearse()
	}
}

// Release lets the captured machine go on.
func (s *freezerService) Release(ctx context.Context, _ *connect.Request[guestwirev1.ReleaseRequest]) (*connect.Response[guestwirev1.ReleaseResponse], error) {
	held, err := s.freezer.Release(ctx)
	if err != nil {
		return nil, guestwire.Refuse(err)
	}
	return connect.NewResponse(&guestwirev1.ReleaseResponse{HeldUs: held.Microseconds()}), nil
}

// Renew gives the machine its own identity.
func (s *freezerService) Renew(ctx context.Context, req *connect.Request[guestwirev1.RenewRequest]) (*connect.Response[guestwirev1.RenewResponse], error) {
	m := req.Msg
	if m.Token == "" && !renew.Same(m.Cause) || strings.ContainsAny(m.Token, " \t\r\n") {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the machine's token is empty or has white space"))
	}
	// That certificate and key belong together is the host's to see: to read them
	// costs an emulated machine a tenth of its renewal.
	if (len(m.Cert) == 0 || len(m.Key) == 0) && (!renew.Same(m.Cause) || len(m.Cert)+len(m.Key) > 0) {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the machine's certificate or its key is missing"))
	}
	if s.cfg.Capture == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("this guest agent is not the machine's init"))
	}
	var res guestwirev1.RenewResponse
	err := s.freezer.Renew(ctx, m.Generation, func() error {
		done, set, err := s.renewOnce(ctx, m)
		if err != nil {
			return err
		}
		for _, r := range done {
			res.Renewed = append(res.Renewed, &guestwirev1.RenewedItem{Name: r.Name, Detail: r.Detail})
		}
		res.ClockUs = set.Microseconds()
		return nil
	})
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "the machine was not renewed and stays shut", "error", err)
		return nil, guestwire.Refuse(err)
	}
	res.NowUnixNs = time.Now().UnixNano()
	return connect.NewResponse(&res), nil
}

// renewed is a renewal that came to its end.
type renewed struct {
	generation string
	items      []fleet.Renewal
}

// renewOnce renews the machine. A repeat for the same generation is only about
// the time and randomness, so that it is quick: the host repeats it until it
// knows that the clock is right.
func (s *Server) renewOnce(ctx context.Context, m *guestwirev1.RenewRequest) ([]fleet.Renewal, time.Duration, error) {
	if last := s.renewed.Load(); last != nil && last.generation == m.Generation {
		kernel := s.cfg.Capture.Machine.Kernel
		if err := kernel.Reseed(m.Entropy); err != nil {
			return nil, 0, err
		}
		set, err := kernel.SetClock(time.Unix(0, m.NowUnixNs))
		return last.items, set, err
	}
	s.renewed.Store(nil)
	items, set, err := s.renew(ctx, m)
	if err == nil {
		s.renewed.Store(&renewed{m.Generation, items})
	}
	return items, set, err
}

// renew renews the machine and then who it is to its callers.
func (s *Server) renew(ctx context.Context, m *guestwirev1.RenewRequest) ([]fleet.Renewal, time.Duration, error) {
	r := renew.Request{
		Generation: m.Generation, Cause: m.Cause, Entropy: m.Entropy, Now: time.Unix(0, m.NowUnixNs).UTC(),
		Hostname: m.Hostname, MachineID: m.MachineId, Address: m.GetNetwork().GetAddress(), Nameservers: m.GetNetwork().GetNameservers(),
		SSHKeys: map[string]renew.Key{},
	}
	for _, k := range m.SshHostKeys {
		r.SSHKeys[k.Kind] = renew.Key{Private: k.Private, Public: k.Public}
	}
	next := s.next(m)
	// A renewal that fails after it has removed the files is asked for again.
	s.rotating.Lock()
	for _, secret := range s.secrets(m) {
		s.stale = append(s.stale, bytes.Clone(secret))
	}
	s.rotating.Unlock()
	done, set, err := s.cfg.Capture.Machine.Do(ctx, r)
	if err != nil {
		return nil, 0, err
	}
	if m.Grow && s.cfg.Capture.Grow != nil {
		if err := s.cfg.Capture.Grow(ctx); err != nil {
			return nil, 0, fmt.Errorf("grow the filesystem: %w", err)
		}
	}
	s.rotating.Lock()
	defer s.rotating.Unlock()
	if len(m.Cert) > 0 {
		if err := s.showCredentials(m.Token, m.Cert, m.Key); err != nil {
			return nil, 0, fmt.Errorf("keep the token: %w", err)
		}
	}
	s.id.Store(next)
	return append(done, fleet.Renewal{Name: fleet.RenewedToken}, fleet.Renewal{Name: fleet.RenewedTLSKey}), set, nil
}

// next is who the machine is from now on. One that goes on itself keeps what
// it is not told.
func (s *Server) next(m *guestwirev1.RenewRequest) *identity {
	if !renew.Same(m.Cause) {
		return newIdentity(m.VmId, rotated.Hash(m.Token), m.Cert, m.Key)
	}
	next := *s.id.Load()
	if m.Token != "" {
		next.token = rotated.Hash(m.Token)
	}
	if len(m.Cert) > 0 {
		next.cert = lazyCertificate(m.Cert, m.Key)
	}
	return &next
}

// secrets are those that the machine has from the one that was captured.
func (s *Server) secrets(m *guestwirev1.RenewRequest) [][]byte {
	var out [][]byte
	if renew.Same(m.Cause) {
		return nil
	}
	token, err := os.ReadFile(filepath.Join(s.cfg.FuseDir, "auth-token"))
	if err == nil && string(token) != m.Token {
		out = append(out, token)
	}
	key, err := os.ReadFile(filepath.Join(s.cfg.FuseDir, "tls/key.pem"))
	if err != nil || bytes.Equal(key, m.Key) {
		return out
	}
	for line := range bytes.Lines(key) {
		if line = bytes.TrimSpace(line); len(line) > scrub.MinLength && !bytes.HasPrefix(line, []byte("-----")) {
			out = append(out, line)
		}
	}
	return out
}

// Thaw lets the processes of the renewed machine go on.
func (s *freezerService) Thaw(ctx context.Context, req *connect.Request[guestwirev1.ThawRequest]) (*connect.Response[guestwirev1.ThawResponse], error) {
	generation := req.Msg.Generation
	told, held, err := s.freezer.Thaw(ctx, generation, func() error {
		if last := s.renewed.Load(); last == nil || last.generation != generation {
			return fleet.Errorf(fleet.CodeConflict, "the machine's renewal did not come to its end")
		}
		return nil
	})
	if err != nil {
		return nil, guestwire.Refuse(err)
	}
	s.probe.Changed()
	s.services.Changed()
	vmID := s.id.Load().vmID // what is made of a capture meanwhile is another's
	s.scrubbing.Go(func() {
		timer := time.NewTimer(scrubAfter)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.down:
		}
		s.cfg.Log.Info("renewed", "vm_id", vmID, "generation", generation, "told", told)
		s.scrub()
	})
	return connect.NewResponse(&guestwirev1.ThawResponse{Told: int32(told), HeldUs: held.Microseconds()}), nil
}

// scrubAfter is when another machine's secrets are overwritten. The first command
// after a thaw tends to come at once and should have the processor for itself.
const scrubAfter = time.Second

// scrub overwrites what this program still holds of the captured machine's
// secrets. They count no more here; this is for who reads its memory.
func (s *Server) scrub() {
	s.scrubs.Lock()
	defer s.scrubs.Unlock()
	s.rotating.Lock()
	stale := s.stale
	s.stale = nil
	s.rotating.Unlock()
	if len(stale) == 0 {
		return
	}
	n, err := scrub.Self(stale...)
	if err != nil {
		s.cfg.Log.Warn("this program's memory could not be looked through for another machine's secrets", "error", err)
		return
	}
	s.cfg.Log.Info("another machine's secrets overwritten", "places", n)
}

// awaitThaw holds strangers' handshakes up while the machine stands still: its
// randomness may be another machine's, too.
func (s *Server) awaitThaw(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	ctx, cancel := context.WithTimeout(hello.Context(), headerTimeout)
	defer cancel()
	return nil, s.freezer.Await(ctx)
}

// noCapture is the system of a guest agent that is not the machine's init.
type noCapture struct{}

var errNoCapture = fleet.Errorf(fleet.CodeUnimplemented, "this guest agent is not the machine's init")

func (noCapture) FreezeProcesses(context.Context) (int, error) { return 0, errNoCapture }
func (noCapture) ThawProcesses() error                         { return nil }
func (noCapture) FreezeFilesystem(context.Context) error       { return errNoCapture }
func (noCapture) ThawFilesystem() error                        { return nil }
func (noCapture) Tell() (int, error)                           { return 0, nil }

// tokenHash is the hash by which a token is known.
type tokenHash = [sha256.Size]byte
