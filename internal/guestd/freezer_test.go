package guestd

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/freeze"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestd/renew"
	"github.com/fusevm/fuse/internal/guestwire"
)

// stage is a machine that can be captured, and become its own copy.
type stage struct {
	frozen      atomic.Bool
	incarnation atomic.Value
	fail        atomic.Bool // of the clock
}

func (s *stage) FreezeProcesses(context.Context) (int, error) { s.frozen.Store(true); return 2, nil }
func (s *stage) ThawProcesses() error                         { s.frozen.Store(false); return nil }
func (s *stage) FreezeFilesystem(context.Context) error       { return nil }
func (s *stage) ThawFilesystem() error                        { return nil }
func (s *stage) Tell() (int, error)                           { return 2, nil }
func (s *stage) Reseed([]byte) error                          { return nil }
func (s *stage) SetHostname(string) error                     { return nil }
func (s *stage) FirstAddress() (string, error)                { return "10.0.0.2/30", nil }
func (s *stage) Addresses() ([]string, error)                 { return nil, errors.New("not to be asked") }
func (s *stage) SetClock(time.Time) (time.Duration, error) {
	if s.fail.Load() {
		return 0, errors.New("the clock is stuck")
	}
	return time.Minute, nil
}

// startCaptured serves a machine whose root is a directory.
func startCaptured(t *testing.T) (*guest, *stage) {
	t.Helper()
	s := &stage{}
	s.incarnation.Store("a")
	root := t.TempDir()
	g := &guest{socket: filepath.Join(t.TempDir(), "link"), fuseDir: filepath.Join(root, "fuse"), etcDir: filepath.Join(root, "etc/fuse")}
	cert, key := certificate(t)
	g.certPEM = cert
	reaper := process.NewReaper()
	runner, err := process.NewRunner(process.Config{Reaper: reaper})
	if err != nil {
		t.Fatal(err)
	}
	server, err := New(Config{
		VMID: "parent", Token: testToken, CertPEM: cert, KeyPEM: key, FuseDir: g.fuseDir, EtcDir: g.etcDir, Log: slog.New(slog.DiscardHandler),
		Capture: &Capture{System: s, Incarnation: func() string { return s.incarnation.Load().(string) }, Machine: renew.Machine{Root: root, Kernel: s}},
	}, runner)
	if err != nil {
		t.Fatal(err)
	}
	g.server = server
	link, err := net.Listen("unix", g.socket)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.agent = agent.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, link, agent) }()
	g.Client = guestwire.NewClient(g.dial, testToken)
	t.Cleanup(func() {
		_ = g.Close()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		runner.Close()
		reaper.Wait()
	})
	return g, s
}

func renewal(t *testing.T) guestwire.Renewal {
	t.Helper()
	cert, key := certificate(t)
	return guestwire.Renewal{
		Generation: "g-1", Cause: fleet.ThawFork, Entropy: make([]byte, 64), VMID: "child", Hostname: "child", MachineID: "0123456789abcdef0123456789abcdef",
		Token: "the-childs-own-token", CertPEM: cert, KeyPEM: key, Address: "10.0.0.2/30",
	}
}

func TestAChildIsOpenedByItsKeyAlone(t *testing.T) {
	g, s := startCaptured(t)
	ctx := t.Context()
	if err := g.WriteFiles(ctx, []fleet.GuestFile{{Path: g.fuseDir + "/secrets.json", Data: []byte("parent's")}}); err != nil {
		t.Fatal(err)
	}
	frozen, err := g.Freeze(ctx, guestwire.FreezeOptions{Processes: true, Limit: waitForGuest, ThawKey: "the key"})
	if err != nil || frozen.Processes != 2 || frozen.WireVersion != guestwire.WireVersion {
		t.Fatal(frozen, err)
	}
	r := renewal(t)
	if _, err := g.Renew(ctx, "the key", r); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("the captured machine itself was renewed: %v", err)
	}
	s.incarnation.Store("b") // this is the child now
	if _, err := g.Release(ctx); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("a child was released: %v", err)
	}
	for _, key := range []string{"", "another key", testToken} {
		if _, err := g.Renew(ctx, key, r); err == nil {
			t.Errorf("renewed with the key %q", key)
		}
		if _, _, err := g.Thaw(ctx, key, r.Generation); err == nil {
			t.Errorf("thawed with the key %q", key)
		}
	}
	// The key opens nothing else, and commands do not start.
	thief := guestwire.NewClient(g.dial, "the key")
	defer thief.Close()
	if _, err := thief.Info(ctx); err == nil {
		t.Error("the key of the capture passes for the token")
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := g.Exec(short, sh("true"), fleet.Stdio{}); err == nil {
		t.Error("a command ran in a machine that stands still")
	}
	conn := make(chan error, 1)
	go func() {
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: 2 * waitForGuest}, "tcp", g.agent, &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			err = c.Close()
		}
		conn <- err
	}()
	select {
	case err := <-conn:
		t.Errorf("a stranger got an answer: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	s.fail.Store(true)
	if _, err := g.Renew(ctx, "the key", r); err == nil {
		t.Error("renewed without a clock")
	}
	if _, _, err := g.Thaw(ctx, "the key", r.Generation); fleet.CodeOf(err) != fleet.CodeConflict || !s.frozen.Load() {
		t.Errorf("thawed after a renewal that failed: %v", err)
	}
	s.fail.Store(false)
	done, err := g.Renew(ctx, "the key", r)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range done.Items {
		names = append(names, i.Name)
	}
	if want := fleet.CertificateNames[:len(fleet.CertificateNames)-1]; !slices.Equal(names, want) {
		t.Errorf("renewed %v, want %v", names, want)
	}
	if !s.frozen.Load() {
		t.Fatal("the renewal let processes go on")
	}
	child := guestwire.NewClient(g.dial, r.Token)
	defer child.Close()
	if err := child.WriteFiles(ctx, []fleet.GuestFile{{Path: g.fuseDir + "/secrets.json", Data: []byte("child's")}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, _, err := child.Thaw(ctx, "the key", r.Generation); err != nil || s.frozen.Load() {
			t.Fatal(err)
		}
	}
	if err := <-conn; err != nil {
		t.Errorf("the stranger was turned away: %v", err)
	}
	if _, err := g.Info(ctx); err == nil {
		t.Error("the parent's token still counts")
	}
	info, err := child.Info(ctx)
	if err != nil || info.Frozen || info.Renewed != r.Generation {
		t.Errorf("%+v %v", info, err)
	}
	got := map[string]string{}
	for _, name := range []string{"secrets.json", "auth-token"} {
		b, err := os.ReadFile(filepath.Join(g.fuseDir, name))
		if err != nil {
			t.Error(err)
		}
		got[name] = string(b)
	}
	if got["secrets.json"] != "child's" || got["auth-token"] != r.Token {
		t.Errorf("files %v", got)
	}
	if _, err := child.Exec(ctx, sh("true"), fleet.Stdio{Stdout: io.Discard}); err != nil {
		t.Error(err)
	}
}

// A renewal that breaks off has removed the parent's files already.
func TestSecretsAreRememberedOverARenewalThatFails(t *testing.T) {
	g, s := startCaptured(t)
	ctx := t.Context()
	grown := errors.New("no room")
	g.server.cfg.Capture.Grow = func(context.Context) error { return grown }
	const secret = "the-parents-token-of-old"
	if err := g.WriteFiles(ctx, []fleet.GuestFile{{Path: g.fuseDir + "/auth-token", Data: []byte(secret)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Freeze(ctx, guestwire.FreezeOptions{Processes: true, Limit: waitForGuest, ThawKey: "k"}); err != nil {
		t.Fatal(err)
	}
	s.incarnation.Store("b")
	r := renewal(t)
	r.Grow = true
	if _, err := g.Renew(ctx, "k", r); err == nil {
		t.Fatal("renewed without room")
	}
	grown = nil
	if _, err := g.Renew(ctx, "k", r); err != nil {
		t.Fatal(err)
	}
	g.server.rotating.Lock()
	defer g.server.rotating.Unlock()
	if !slices.ContainsFunc(g.server.stale, func(b []byte) bool { return string(b) == secret }) {
		t.Error("the parent's token would stay in memory")
	}
}

// A child without a certificate of its own would show its parent's files, and
// nobody could call it.
func TestAChildNeedsACertificate(t *testing.T) {
	g, s := startCaptured(t)
	if _, err := g.Freeze(t.Context(), guestwire.FreezeOptions{Processes: true, Limit: waitForGuest, ThawKey: "k"}); err != nil {
		t.Fatal(err)
	}
	s.incarnation.Store("b")
	for name, spoil := range map[string]func(r *guestwire.Renewal){
		"no certificate":      func(r *guestwire.Renewal) { r.CertPEM = nil },
		"no key":              func(r *guestwire.Renewal) { r.KeyPEM = nil },
		"neither":             func(r *guestwire.Renewal) { r.CertPEM, r.KeyPEM = nil, nil },
		"a restore's: no key": func(r *guestwire.Renewal) { r.Cause, r.KeyPEM = fleet.ThawRestore, nil },
		"a resume's key":      func(r *guestwire.Renewal) { r.Cause, r.CertPEM = fleet.ThawResume, nil },
	} {
		r := renewal(t)
		spoil(&r)
		if _, err := g.Renew(t.Context(), "k", r); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := g.Thaw(t.Context(), "k", renewal(t).Generation); err == nil || !s.frozen.Load() {
		t.Error("it went on")
	}
}

func TestASourceGoesOn(t *testing.T) {
	g, s := startCaptured(t)
	if _, err := g.Freeze(t.Context(), guestwire.FreezeOptions{Processes: true}); err == nil {
		t.Error("a capture that nothing could open")
	}
	if _, err := g.Freeze(t.Context(), guestwire.FreezeOptions{Processes: true, Limit: waitForGuest, ThawKey: "k"}); err != nil {
		t.Fatal(err)
	}
	if info, err := g.Info(t.Context()); err != nil || !info.Frozen {
		t.Error(info, err)
	}
	if _, err := g.Release(t.Context()); err != nil || s.frozen.Load() {
		t.Error(err)
	}
	if _, err := g.Release(t.Context()); err != nil {
		t.Errorf("a repeat: %v", err)
	}
	if _, err := g.Exec(t.Context(), sh("true"), fleet.Stdio{}); err != nil {
		t.Error(err)
	}
}

func TestARestoredMachineKeepsItsToken(t *testing.T) {
	g, s := startCaptured(t)
	if _, err := g.Freeze(t.Context(), guestwire.FreezeOptions{Processes: true, Limit: waitForGuest, ThawKey: "k"}); err != nil {
		t.Fatal(err)
	}
	s.incarnation.Store("b")
	r := guestwire.Renewal{Generation: "g", Cause: fleet.ThawResume, Entropy: make([]byte, 64)}
	if _, err := g.Renew(t.Context(), "k", r); err != nil {
		t.Fatal(err)
	}
	if _, _, err := g.Thaw(t.Context(), "k", "g"); err != nil {
		t.Fatal(err)
	}
	if info, err := g.Info(t.Context()); err != nil || info.Renewed != "g" {
		t.Errorf("%+v %v", info, err)
	}
}

var _ freeze.System = (*stage)(nil)
