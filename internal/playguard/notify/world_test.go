package notify

import (
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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/internal/webhooks"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is notifications over the real state.
type world struct {
	t     testing.TB
	store *state.Store
	svc   *Service
	acts  func(owner string, least fleet.Role) bool // nil: for everybody somebody can act
}

func newWorld(t testing.TB) *world {
	t.Helper()
	store, sealer := storetest.OpenSealed(t)
	w := &world{t: t, store: store}
	var err error
	if w.svc, err = New(Config{Store: store, Sealer: sealer, Logger: slog.New(slog.DiscardHandler), Poster: webhooks.NewPoster(true, SendTime), Acting: func(state.Reader) func(string, fleet.Role) bool {
		return func(owner string, least fleet.Role) bool { return w.acts == nil || w.acts(owner, least) }
	}}); err != nil {
		t.Fatal(err)
	}
	project, err := model.NewProject("shop", "p1")
	if err != nil {
		t.Fatal(err)
	}
	w.update(func(tx *state.Tx) error {
		return errors.Join(records.PutMarquee(tx, records.Marquee{Marquee: model.Marquee{ID: "m1"}, Name: "box"}),
			records.PutPlayground(tx, records.Playground{Name: "shop", Owner: "ann", Playground: model.Playground{ID: "p1", Marquee: "m1", Project: project}}))
	})
	return w
}

func (w *world) update(fn func(tx *state.Tx) error) {
	w.t.Helper()
	if _, err := w.store.Update(context.Background(), fn); err != nil {
		w.t.Fatal(err)
	}
}

// happens commits an event of the playground, or with an m of the marquee.
func (w *world) happens(typ, text string) {
	w.t.Helper()
	w.update(func(tx *state.Tx) error {
		e := fleet.Event{EntityType: fleet.EntityPlayground, EntityID: "p1", Owner: "ann", Type: typ, Error: text}
		if strings.HasPrefix(typ, "marquee.") {
			e.EntityType, e.EntityID, e.Owner = fleet.EntityMarquee, "m1", "master"
		}
		if typ == fleet.EventPlaygroundStateChanged {
			e.Payload = events.Payload(events.PlaygroundChange{To: text})
		}
		tx.Emit(e)
		return nil
	})
}

// run tells until the returned function is called or the test ends.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.svc.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("run ended with %v", err)
			}
		})
	}
	w.t.Cleanup(stop)
	return stop
}

// post is a mail server that keeps what it gets.
type post struct {
	mu       sync.Mutex
	got      []string
	to       []string
	refuse   bool
	user     string
	password string
	logins   int
}

// startPost starts one that wants STARTTLS and a login, and returns where it
// is, and the certificate that signs its own.
func startPost(t *testing.T, p *post) (port int, ca string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mail"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	s := smtp.NewServer(p)
	s.Domain, s.MaxMessageBytes, s.AllowInsecureAuth = "localhost", 1<<20, false
	s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	s.ReadTimeout, s.WriteTimeout = 10*time.Second, 10*time.Second
	s.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).Port, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// NewSession implements smtp.Backend.
func (p *post) NewSession(*smtp.Conn) (smtp.Session, error) { return &letter{p: p}, nil }

func (p *post) letters() ([]string, []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.got...), append([]string(nil), p.to...)
}

// letter is one session with the mail server.
type letter struct {
	p  *post
	to []string
	in bool
}

// AuthMechanisms implements smtp.AuthSession.
func (*letter) AuthMechanisms() []string { return []string{sasl.Plain} }

// Auth implements smtp.AuthSession.
func (s *letter) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		s.p.mu.Lock()
		defer s.p.mu.Unlock()
		s.p.logins++
		if user != s.p.user || password != s.p.password {
			return smtp.ErrAuthFailed
		}
		s.in = true
		return nil
	}), nil
}

// Mail implements smtp.Session.
func (s *letter) Mail(string, *smtp.MailOptions) error {
	if !s.in {
		return smtp.ErrAuthRequired
	}
	return nil
}

// Rcpt implements smtp.Session.
func (s *letter) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.to = append(s.to, to)
	return nil
}

// Data implements smtp.Session.
func (s *letter) Data(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.refuse {
		return &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 3, 0}, Message: "not now"}
	}
	s.p.got, s.p.to = append(s.p.got, string(raw)), append(s.p.to, s.to...)
	return nil
}

// Reset implements smtp.Session.
func (s *letter) Reset() { s.to = nil }

// Logout implements smtp.Session.
func (*letter) Logout() error { return nil }
