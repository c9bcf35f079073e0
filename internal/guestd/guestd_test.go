package guestd

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const testToken = "the-token"

// guest is a guest agent on this machine, without one of its own.
type guest struct {
	*guestwire.Client
	socket   string // of the protocol
	agent    string // address of the published port
	fuseDir  string
	etcDir   string
	certPEM  []byte
	server   *Server
	dials    atomic.Int32
	shutdown atomic.Bool
}

// startGuest serves until the test ends.
func startGuest(t *testing.T) *guest {
	t.Helper()
	g := &guest{socket: filepath.Join(t.TempDir(), "link"), fuseDir: filepath.Join(t.TempDir(), "fuse"), etcDir: filepath.Join(t.TempDir(), "etc")}
	cert, key := certificate(t)
	g.certPEM = cert
	reaper := process.NewReaper()
	runner, err := process.NewRunner(process.Config{Reaper: reaper})
	if err != nil {
		t.Fatal(err)
	}
	server, err := New(Config{
		VMID: "vm-1", Token: testToken, CertPEM: cert, KeyPEM: key, Version: "v1.2.3", FuseDir: g.fuseDir, EtcDir: g.etcDir,
		BootPhases: []BootPhase{{"disk", 3 * time.Millisecond}},
		Shutdown:   func() { g.shutdown.Store(true) },
		Log:        slog.New(slog.DiscardHandler),
	}, runner)
	if err != nil {
		t.Fatal(err)
	}
	g.server = server
	// A unix socket buffers little, so what a slow reader costs can be seen.
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
		if err := g.Close(); err != nil {
			t.Errorf("close client: %v", err)
		}
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		runner.Close()
		reaper.Wait()
	})
	return g
}

func (g *guest) dial(ctx context.Context) (net.Conn, error) {
	g.dials.Add(1)
	var d net.Dialer
	return d.DialContext(ctx, "unix", g.socket)
}

func certificate(t *testing.T) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "vm-1"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func sh(script string) fleet.ExecSpec { return fleet.ExecSpec{Argv: []string{"sh", "-c", script}} }

func TestInfo(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	info, err := g.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Version != "v1.2.3" || info.WireVersion != guestwire.WireVersion || !info.Ready || info.UptimeMS <= 0 || len(info.BootID) != 36 {
		t.Errorf("info is %+v", info)
	}
}

func TestDrainAndShutdown(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	for command, want := range map[string]fleet.ExecStatus{
		"":             {},
		"exit 3":       {ExitCode: 3},
		"kill -9 $$":   {ExitCode: 137, Signal: "KILL"},
		"echo ignored": {},
	} {
		if got, err := g.Drain(t.Context(), command); err != nil || got != want {
			t.Errorf("drain with %q: %+v, %v; want %+v", command, got, err, want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := g.Drain(ctx, "sleep 60"); fleet.CodeOf(err) != fleet.CodeDeadlineExceeded {
		t.Errorf("a drain that takes too long: %v", err)
	}
	if _, err := g.Info(t.Context()); err != nil {
		t.Errorf("the agent is not up after drains: %v", err)
	}
	if err := g.Shutdown(t.Context()); err != nil || !g.shutdown.Load() {
		t.Errorf("shutdown: %v, called %v", err, g.shutdown.Load())
	}
}

// All calls of a client share one connection.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	if _, err := g.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.server.Used():
		t.Error("used before the first command")
	default:
	}
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			var out bytes.Buffer
			st, err := g.Exec(t.Context(), sh("cat; exit 7"), fleet.Stdio{Stdin: strings.NewReader("hello"), Stdout: &out})
			if err != nil || st.ExitCode != 7 || out.String() != "hello" {
				t.Errorf("exec: %+v, %v, %q", st, err, out.String())
			}
		})
	}
	all.Wait()
	testkit.Eventually(t, waitForGuest, "the guest is used", func() bool {
		select {
		case <-g.server.Used():
			return true
		default:
			return false
		}
	})
	if n := g.dials.Load(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

func TestTokenIsNeeded(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	for _, token := range []string{"", "wrong", testToken + "x", testToken[:len(testToken)-1]} {
		c := guestwire.NewClient(g.dial, token)
		_, infoErr := c.Info(t.Context())
		_, execErr := c.Exec(t.Context(), sh("exit 0"), fleet.Stdio{})
		writeErr := c.WriteFiles(t.Context(), []fleet.GuestFile{{Path: filepath.Join(g.fuseDir, "x")}})
		_, drainErr := c.Drain(t.Context(), "")
		for call, err := range map[string]error{"info": infoErr, "exec": execErr, "write": writeErr, "drain": drainErr, "shutdown": c.Shutdown(t.Context())} {
			if fleet.CodeOf(err) != fleet.CodeInternal || !strings.Contains(err.Error(), "token is missing or wrong") {
				t.Errorf("%s with token %q: %v", call, token, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if g.shutdown.Load() {
		t.Error("a stranger shut the machine down")
	}
}

func TestRefusesToBeOpen(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	for name, cfg := range map[string]Config{
		"no token":       {CertPEM: cert, KeyPEM: key},
		"no certificate": {Token: "x", KeyPEM: key},
		"no key":         {Token: "x", CertPEM: cert},
	} {
		if s, err := New(cfg, nil); err == nil || s != nil {
			t.Errorf("%s: a server was made", name)
		}
	}
}

// A certificate that is of no use is told, and leaves the published port
// closed to everybody rather than open in clear text.
func TestWrongCertificate(t *testing.T) {
	t.Parallel()
	cert, _ := certificate(t)
	_, key := certificate(t)
	for name, pair := range map[string][2][]byte{"another's key": {cert, key}, "noise": {[]byte("x"), []byte("y")}} {
		s, err := New(Config{Token: "x", CertPEM: pair[0], KeyPEM: pair[1], Log: slog.New(slog.DiscardHandler)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.CheckCertificate(); err == nil {
			t.Errorf("%s: the certificate was accepted", name)
		}
		server := s.agentServer()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- server.ServeTLS(listener, "", "") }()
		conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			t.Errorf("%s: a handshake succeeded", name)
			_ = conn.Close()
		}
		if err := errors.Join(server.Close(), <-served); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}
}

func TestServeTellsWhatFailed(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	s, err := New(Config{Token: "x", CertPEM: cert, KeyPEM: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	link, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	agent, err := net.Listen("tcp", "127.0.0.1:0")
	if err := errors.Join(err, agent.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(t.Context(), link, agent); err == nil || !strings.Contains(err.Error(), "closed network connection") {
		t.Errorf("error is %v, want the listener's", err)
	}
	if _, err := link.Accept(); err == nil {
		t.Error("the other listener is left open")
	}
}

func TestGuestThatIsNotThere(t *testing.T) {
	t.Parallel()
	c := guestwire.NewClient(func(context.Context) (net.Conn, error) { return nil, io.ErrClosedPipe }, "x")
	_, err := c.Info(t.Context())
	if fleet.CodeOf(err) != fleet.CodeUnavailable || !errors.Is(err, fleet.ErrGuestUnavailable) || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error is %v", err)
	}
	_, err = c.Exec(t.Context(), sh("exit 0"), fleet.Stdio{})
	if fleet.CodeOf(err) != fleet.CodeUnavailable || !errors.Is(err, fleet.ErrGuestUnavailable) {
		t.Errorf("error is %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
