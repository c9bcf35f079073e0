package standby

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Gate checks callers of what a standby answers itself.
type Gate interface {
	CheckAddress(r *http.Request) error
	Authenticate(r *http.Request) (auth.Principal, error)
}

// FrontConfig wires a Front. All but the zero-able numbers are needed.
type FrontConfig struct {
	Self    state.Candidate
	Version string
	Gate    Gate
	// MetricsHandler answers /metrics while another server leads; with
	// MetricsOpen without a token under a loopback name.
	MetricsHandler http.Handler
	MetricsOpen    bool
	WriteTimeout   time.Duration // of one write to a caller; zero is a minute
	BodyTimeout    time.Duration // of a caller's body; zero is DefaultBodyTimeout
	MaxCalls       int           // calls that are passed on at a time; zero is DefaultMaxCalls
	Logger         *slog.Logger
}

// DefaultBodyTimeout leaves a leader the time to give up a body first, and to say
// so.
const DefaultBodyTimeout = 20 * time.Second

// DefaultMaxCalls is how many calls a standby passes on at a time.
const DefaultMaxCalls = 10_000

// Front answers whatever comes to a server process, in the part that the
// process plays at the moment. Its methods are safe for concurrent use.
type Front struct {
	cfg     FrontConfig
	started time.Time
	slots   chan struct{}
	peers   peers

	mu   sync.Mutex // one change of part at a time; never held over I/O
	part atomic.Pointer[part]
}

// part is what the process is; of reign and leader at most one is there.
type part struct {
	reign  *Reign
	leader *upstream
	why    error // neither
}

var (
	errStarting = fleet.Errorf(fleet.CodeUnavailable, "the server is starting")
	errStopping = fleet.Errorf(fleet.CodeUnavailable, "the server is stopping")
	errChanging = fleet.Errorf(fleet.CodeUnavailable, "the fleet is changing its leader")
	errLost     = fleet.Errorf(fleet.CodeUnavailable, "this server has just lost the lead: what came of this call is not known").
			With(fleet.DetailRemedy, "look, or repeat it with the same Idempotency-Key")
)

// NewFront makes a Front that waits.
func NewFront(cfg FrontConfig) *Front {
	if cfg.WriteTimeout <= 0 {
		cfg.WriteTimeout = time.Minute
	}
	if cfg.BodyTimeout <= 0 {
		cfg.BodyTimeout = DefaultBodyTimeout
	}
	if cfg.MaxCalls <= 0 {
		cfg.MaxCalls = DefaultMaxCalls
	}
	f := &Front{cfg: cfg, started: time.Now(), slots: make(chan struct{}, cfg.MaxCalls), peers: peers{seen: map[string]time.Time{}}}
	f.part.Store(&part{why: errStarting})
	return f
}

// Timeouts of an HTTP server.
type Timeouts struct {
	ReadHeader, Write, Idle time.Duration
	MaxHeaderBytes          int
}

// HTTPServer makes the server of f, with cert if not nil.
func (f *Front) HTTPServer(t Timeouts, cert *tls.Certificate) *http.Server {
	srv := &http.Server{
		Handler: f, ReadHeaderTimeout: t.ReadHeader, WriteTimeout: t.Write, IdleTimeout: t.Idle, MaxHeaderBytes: t.MaxHeaderBytes,
		ErrorLog:    slog.NewLogLogger(f.cfg.Logger.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return context.Background() },
	}
	if cert != nil {
		srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12}
	}
	return srv
}

// become changes the part and ends what belonged to the one before.
func (f *Front) become(next *part) {
	f.mu.Lock()
	before := f.part.Swap(next)
	f.mu.Unlock()
	if before.leader != nil && before.leader != next.leader {
		before.leader.close()
	}
}

// Wait implements View: nobody leads that this process knows of.
func (f *Front) Wait(reason error) {
	if f.part.Load().reign == nil {
		f.become(&part{why: reason})
	}
}

// Stop makes a process that passes calls on end them. What it answers itself
// goes on.
func (f *Front) Stop() { f.Wait(errStopping) }

// Lead makes f answer with h, the API of the plane that now owns the fleet.
func (f *Front) Lead(h http.Handler) *Reign {
	r := &Reign{front: f, handler: h, calls: newFlight()}
	r.over, r.end = context.WithCancelCause(context.Background())
	f.become(&part{reign: r})
	f.cfg.Logger.Info("leading the fleet")
	return r
}

// Reign is the time during which a Front answers with one plane.
type Reign struct {
	front   *Front
	handler http.Handler
	calls   *flight
	over    context.Context
	end     context.CancelCauseFunc
}

// endWait is how long calls may take to end once they are cancelled.
const endWait = 2 * time.Second

// End lets no call in any more, waits until ctx ends for those under way, then
// cancels them because of cause. It reports whether all have gone.
func (r *Reign) End(ctx context.Context, cause error) bool {
	r.front.become(&part{why: cause})
	gone := r.calls.close()
	select {
	case <-gone:
	case <-ctx.Done():
	}
	r.end(cause)
	late := time.NewTimer(endWait)
	defer late.Stop()
	select {
	case <-gone:
		return true
	case <-late.C:
		return false
	}
}

func (r *Reign) serve(w http.ResponseWriter, req *http.Request) bool {
	if !r.calls.enter() {
		return false
	}
	defer r.calls.leave()
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	rec := &answered{ResponseWriter: w}
	stop := context.AfterFunc(r.over, func() {
		cancel(context.Cause(r.over))
		// One who does not read must not hold up the end.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(endWait / 2))
	})
	defer stop()
	r.handler.ServeHTTP(rec, req.WithContext(ctx))
	if !rec.begun && r.over.Err() != nil {
		r.front.refuse(w, req, errLost)
	}
	return true
}

// answered knows whether an answer has begun.
type answered struct {
	http.ResponseWriter
	begun bool
}

// WriteHeader implements http.ResponseWriter.
func (a *answered) WriteHeader(status int) {
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answered) Write(p []byte) (int, error) {
	a.begun = true
	return a.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController through; who takes the connection over
// has answered.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Hijack implements http.Hijacker.
func (a *answered) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.begun = true
	return http.NewResponseController(a.ResponseWriter).Hijack()
}

// ServeHTTP answers in the part that the process plays.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := f.part.Load()
	if p.reign != nil {
		if name, client, ok := forwarded(r, f.cfg.Self.Secret); ok {
			f.peers.note(name)
			if client != "" {
				r.RemoteAddr = client
			}
		}
		if p.reign.serve(w, r) {
			return
		}
		p = &part{why: errChanging}
	}
	switch r.URL.Path {
	case "/livez", "/health":
		f.headers(w, r)
		answer(w, http.StatusOK, map[string]string{"status": "ok"})
	case "/ready", "/readyz":
		f.headers(w, r)
		w.Header().Set("Retry-After", "1")
		answer(w, http.StatusServiceUnavailable, map[string]any{"status": "not_ready", "checks": map[string]string{"leadership": p.text()}})
	case "/metrics":
		f.metrics(w, r)
	default:
		f.pass(w, r, p)
	}
}

var requestIDRule = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// headers are those of every answer of the API.
func (f *Front) headers(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	id := cmp.Or(h.Get("X-Request-ID"), r.Header.Get("X-Request-ID"))
	if !requestIDRule.MatchString(id) {
		id = "req_" + strings.ToLower(rand.Text())
	}
	h.Set("X-Request-ID", id)
	h.Set("Server", "fuse-orchestrator/"+f.cfg.Version)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
}

// text says in public what the process does; it holds no address.
func (p *part) text() string {
	if p.leader != nil {
		return "standby: " + p.leader.info.Name + " leads, term " + strconv.FormatInt(p.leader.info.Term, 10)
	}
	return publicText(p.why)
}

func publicText(err error) string {
	var fe *fleet.Error
	if !errors.As(err, &fe) {
		return "not ready"
	}
	return fe.Message
}

func (f *Front) metrics(w http.ResponseWriter, r *http.Request) {
	if !f.cfg.MetricsOpen || auth.LocalName(r) != nil {
		if err := f.cfg.Gate.CheckAddress(r); err != nil {
			f.refuse(w, r, err)
			return
		}
		if _, err := f.cfg.Gate.Authenticate(r); err != nil {
			f.refuse(w, r, err)
			return
		}
	}
	f.headers(w, r)
	f.cfg.MetricsHandler.ServeHTTP(w, r)
}

// remedySoon is what helps while no leader answers.
const remedySoon = "repeat it in a few seconds: after a failure another server leads within twice --lease; `fuse server status` shows which"

// statuses of the codes that a standby answers with itself.
var statuses = map[fleet.Code]int{
	fleet.CodeForbidden: http.StatusForbidden, fleet.CodeUnauthorized: http.StatusUnauthorized,
}

// refuse answers with the envelope of the API.
func (f *Front) refuse(w http.ResponseWriter, r *http.Request, err error) {
	f.headers(w, r)
	var fe *fleet.Error
	if !errors.As(err, &fe) {
		fe = fleet.Wrap(fleet.CodeUnavailable, err, "the server cannot answer at the moment")
	}
	status, ok := statuses[fe.Code]
	if !ok {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
		if fe.Details[fleet.DetailRemedy] == "" {
			fe = fe.With(fleet.DetailRemedy, remedySoon)
		}
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="fuse"`)
	}
	body := map[string]any{"code": fe.Code, "message": fe.Message}
	if len(fe.Details) > 0 {
		body["details"] = fe.Details
	}
	answer(w, status, map[string]any{"error": body})
}

func answer(w http.ResponseWriter, status int, doc any) {
	raw, err := json.Marshal(doc)
	if err != nil { // maps of texts always encode
		raw = []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(raw, '\n')) // the caller left
}
