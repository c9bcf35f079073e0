package standby

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Bounds of the way to a leader. There is none on the time to an answer: calls
// may take as long as the leader lets them, and a leader that is frozen loses
// its lease, which ends them.
const (
	dialTimeout  = 2 * time.Second
	idlePerHost  = 256
	idleTimeout  = 30 * time.Second
	checkTimeout = 2 * time.Second
)

// upstream is a leader as a standby sees it.
type upstream struct {
	front     *Front
	info      state.LeaseInfo
	base      *url.URL // nil: it has no address
	proxy     *httputil.ReverseProxy
	transport *http.Transport
	over      context.Context // ends when another one leads
	end       context.CancelCauseFunc
	looked    atomic.Int64 // when the lease was read last, Unix nanoseconds
	down      atomic.Pointer[error]
	checking  atomic.Bool
	told      atomic.Bool // a call that was not answered, since the leader was up last
}

// Follow implements View: calls go to the server of info from now on.
func (f *Front) Follow(_ context.Context, info state.LeaseInfo) {
	p := f.part.Load()
	if p.reign != nil {
		return
	}
	u := p.leader
	if u == nil || u.info.Term != info.Term || u.info.Candidate != info.Candidate {
		u = newUpstream(f, info)
		f.cfg.Logger.Info("standing by", slog.Any("leader", info.Candidate), slog.Int64("term", info.Term))
		f.become(&part{leader: u})
	}
	u.looked.Store(time.Now().UnixNano())
	u.check()
}

func newUpstream(f *Front, info state.LeaseInfo) *upstream {
	u := &upstream{front: f, info: info}
	u.over, u.end = context.WithCancelCause(context.Background())
	base, err := url.Parse(info.Address)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return u
	}
	u.base = &url.URL{Scheme: base.Scheme, Host: base.Host}
	u.transport = &http.Transport{
		DialContext:     (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig: pinned(info.CertSHA256), TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: idlePerHost, IdleConnTimeout: idleTimeout, DisableCompression: true,
		// HTTP/2 has no Upgrade.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	u.proxy = &httputil.ReverseProxy{
		Transport: u.transport, FlushInterval: -1,
		ErrorLog: slog.NewLogLogger(f.cfg.Logger.Handler(), slog.LevelDebug),
		Rewrite:  u.rewrite, ModifyResponse: u.annotate, ErrorHandler: u.failed,
	}
	return u
}

// pinned trusts the certificate whose fingerprint the store holds, whoever has
// signed it; without one, those that the system trusts.
func pinned(fingerprint string) *tls.Config {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if fingerprint == "" {
		return cfg
	}
	cfg.InsecureSkipVerify = true // VerifyConnection compares the fingerprint
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) > 0 && Fingerprint(cs.PeerCertificates[0].Raw) == fingerprint {
			return nil
		}
		return errors.New("the leader shows another certificate than it has announced")
	}
	return cfg
}

// Fingerprint of a certificate in DER, as a Candidate carries it.
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

func (u *upstream) close() {
	u.end(errChanging)
	if u.transport != nil {
		u.transport.CloseIdleConnections()
	}
}

// check looks whether the leader answers, beside everything else. It also tells
// the leader that somebody stands by.
func (u *upstream) check() {
	if u.base == nil || !u.checking.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer u.checking.Store(false)
		err := u.ask()
		if err == nil {
			u.down.Store(nil)
			u.told.Store(false)
		} else if u.over.Err() == nil {
			u.down.Store(&err)
		}
	}()
}

func (u *upstream) ask() error {
	ctx, cancel := context.WithTimeout(u.over, checkTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.base.String()+"/livez", nil)
	if err != nil {
		return err
	}
	sign(r.Header, u.info.Secret, u.front.cfg.Self.Name, "", r.Method, r.URL.RequestURI())
	resp, err := u.transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the leader answers %s", resp.Status)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<10))
	return err
}

// pass hands a call to the leader.
func (f *Front) pass(w http.ResponseWriter, r *http.Request, p *part) {
	if r.ContentLength != 0 {
		// net/http takes in what a refused call still sends, so it counts there too.
		in := &upload{r.Body, http.NewResponseController(w)}
		_ = in.conn.SetReadDeadline(time.Now().Add(f.cfg.BodyTimeout))
		r.Body = in
	}
	// The leader sees this process's address only, so the caller's is checked
	// here, and told there.
	if err := f.cfg.Gate.CheckAddress(r); err != nil {
		f.cfg.Logger.Debug("request refused", slog.String("remote", r.RemoteAddr), slog.String("path", r.URL.Path))
		f.refuse(w, r, err)
		return
	}
	u := p.leader
	switch {
	case u == nil:
		f.refuse(w, r, p.why)
		return
	case r.Header.Get(headerStandby) != "":
		// Another server took this one for the leader. Passing it on might send it
		// round in circles.
		f.refuse(w, r, errChanging)
		return
	case u.base == nil:
		f.refuse(w, r, fleet.Errorf(fleet.CodeUnavailable, "%.80s leads the fleet, and has not told an address to reach it by", u.info.Name).
			With(fleet.DetailRemedy, "start it with --advertise"))
		return
	}
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		n := strconv.Itoa(cap(f.slots))
		f.refuse(w, r, fleet.Errorf(fleet.CodeUnavailable, "%s calls are being passed on already", n).With(fleet.DetailLimit, n).With(fleet.DetailUsage, n).
			With(fleet.DetailRemedy, "repeat it in a moment, or ask another server"))
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(u.over, func() { cancel(context.Cause(u.over)) })()
	out := &rolling{w, f.cfg.WriteTimeout}
	out.rest()
	defer out.extend() // for what is still to be flushed
	u.proxy.ServeHTTP(out, r.WithContext(ctx))
}

// upload is the body of a call, which has to arrive within a time; what follows it
// on the connection has not.
type upload struct {
	io.ReadCloser
	conn *http.ResponseController
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = u.conn.SetReadDeadline(time.Time{})
	}
	return n, err
}

// rolling gives every write its own deadline, and none to the time between: an
// answer may take long, a caller who does not read may not. Over HTTP/2 a deadline
// that passes ends the answer even where nothing waits to be written.
type rolling struct {
	http.ResponseWriter
	timeout time.Duration
}

// WriteHeader implements http.ResponseWriter.
func (w *rolling) WriteHeader(status int) {
	w.extend()
	defer w.rest()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *rolling) Write(p []byte) (int, error) {
	w.extend()
	defer w.rest()
	return w.ResponseWriter.Write(p)
}

// FlushError is what http.ResponseController flushes by.
func (w *rolling) FlushError() error {
	w.extend()
	defer w.rest()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *rolling) extend() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.timeout))
}

func (w *rolling) rest() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Time{})
}

// Unwrap lets http.ResponseController through.
func (w *rolling) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (u *upstream) rewrite(pr *httputil.ProxyRequest) {
	pr.SetURL(u.base)
	pr.Out.Host = pr.In.Host
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // all of it, for the leader to refuse what it cannot read
	strip(pr.Out.Header)
	sign(pr.Out.Header, u.info.Secret, u.front.cfg.Self.Name, pr.In.RemoteAddr, pr.Out.Method, pr.Out.URL.RequestURI())
}

// failed answers when there is no answer of the leader. It tells apart a call
// that never went out from one of which nobody knows what came.
func (u *upstream) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil && u.over.Err() == nil {
		// The caller left, or its body did not come: one who is still there must not
		// take silence for a 200.
		panic(http.ErrAbortHandler)
	}
	level := slog.LevelDebug
	if u.told.CompareAndSwap(false, true) { // callers try again and again
		level = slog.LevelInfo
	}
	u.front.cfg.Logger.Log(r.Context(), level, "call not answered by the leader", slog.Any("leader", u.info.Candidate), slog.Any("error", err))
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		u.front.refuse(w, r, fleet.Wrap(fleet.CodeUnavailable, err, "the leader of the fleet cannot be reached; nothing was done"))
		return
	}
	u.front.refuse(w, r, fleet.Wrap(fleet.CodeUnavailable, err, "the answer of the fleet's leader was lost: what came of this call is not known").
		With(fleet.DetailRemedy, "look, or repeat it with the same Idempotency-Key"))
}

// statusPath is the one answer that a standby adds something to.
const statusPath = "/v1/server"

// maxStatus bounds the leader's account of itself.
const maxStatus = 64 << 10

// annotate adds what this process is to the leader's account of itself.
func (u *upstream) annotate(resp *http.Response) error {
	if resp.Request.URL.Path != statusPath || resp.Request.Method != http.MethodGet || resp.StatusCode != http.StatusOK ||
		!strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		return nil
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return err
	}
	doc["answered_by"] = u.front.standbyStatus(u)
	if raw, err = json.Marshal(doc); err != nil {
		return err
	}
	resp.Body = io.NopCloser(bytes.NewReader(raw))
	resp.ContentLength = int64(len(raw))
	resp.Header.Set("Content-Length", strconv.Itoa(len(raw)))
	return nil
}
