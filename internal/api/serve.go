package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
)

// defaultReadTimeout bounds the time a body may take to arrive.
const defaultReadTimeout = 15 * time.Second

// noRoute is the label of requests that match nothing.
const noRoute = "none"

var requestIDRule = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// ServeHTTP answers one request. Whatever happens, the answer has the
// envelope, the request's id and a line in the log if the fault is ours.
func (s *Server) ServeHTTP(rw http.ResponseWriter, hr *http.Request) {
	start := time.Now()
	done := s.cfg.Metrics.RequestStarted()
	r := &request{Request: hr, id: requestID(hr)}
	w := &writer{ResponseWriter: rw}
	h := w.Header()
	h.Set("X-Request-ID", r.id)
	h.Set("Server", "fuse-orchestrator/"+s.cfg.Version)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	label := noRoute
	defer func() { // runs last, also when an answer is broken off
		took := time.Since(start)
		if w.stream {
			took = -1
		}
		done(label, hr.Method, w.status, took)
		s.log.Debug("request", slog.String("method", hr.Method), slog.String("route", label),
			slog.Int("status", w.status), slog.Duration("took", took), slog.String("request_id", r.id))
	}()
	defer func() {
		if v := recover(); v != nil {
			s.panicked(w, r, v)
		}
	}()
	path, param := s.router.match(hr.URL)
	if path != nil {
		label = path.pattern
	}
	r.param = param
	if err := s.serve(w, r, path); err != nil {
		s.writeError(w, r, err)
	}
}

func (s *Server) serve(w *writer, r *request, p *path) error {
	if r.ContentLength != 0 {
		// Lifted only when all is read: net/http discards what a refused
		// request still sends, and that must not take for ever.
		w.setReadDeadline(time.Now().Add(s.readTimeout))
	}
	if p == nil {
		if err := s.admit(r, byNobody); err != nil {
			return err
		}
		return fleet.Errorf(fleet.CodeRouteNotFound, "there is nothing at this path").
			With(fleet.DetailRemedy, "/openapi.json lists what there is")
	}
	rt := p.methods[r.Method]
	if rt == nil {
		if err := s.admit(r, byNobody); err != nil {
			return err
		}
		w.Header().Set("Allow", p.allow)
		return fleet.Errorf(fleet.CodeMethodNotAllowed, "this path does not take %.16s", r.Method).With(fleet.DetailLimit, p.allow)
	}
	r.route = rt
	if err := s.admit(r, rt.access); err != nil {
		return err
	}
	if rt.bodyLimit > 0 {
		if err := r.readBody(w, s.readTimeout); err != nil {
			return err
		}
	}
	if rt.slow {
		w.writeTimeout = s.cfg.WriteTimeout
		w.setWriteDeadline(time.Time{})
	}
	return rt.handle(w, r)
}

// admit checks address and token and puts the principal into the context.
func (s *Server) admit(r *request, a access) error {
	if a == byAnyone || a == byLocal && auth.LocalName(r.Request) == nil {
		return nil
	}
	if err := s.cfg.Gate.CheckAddress(r.Request); err != nil {
		s.refuse(r, fleet.EventIPRejected)
		return err
	}
	if a == byNobody {
		return nil
	}
	p, err := s.cfg.Gate.Authenticate(r.Request)
	if err != nil {
		s.refuse(r, fleet.EventAuthFailed)
		return err
	}
	r.Request = r.WithContext(auth.With(r.Context(), p))
	return nil
}

// refuse queues an event of a refused request. The queue is short and never
// waited for: a store that stands still must not hold up refusals.
func (s *Server) refuse(r *request, eventType string) {
	ev, ok := s.reporter.Report(eventType, r.Request, r.id)
	if !ok {
		return
	}
	s.log.Warn("request refused", slog.String("type", eventType), slog.String("remote", r.RemoteAddr),
		slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.String("request_id", r.id))
	select {
	case s.refused <- ev:
	default:
	}
}

func (r *request) principal() auth.Principal {
	p, _ := auth.From(r.Context())
	return p
}

// readBody reads the whole body, bounded in size and time, before anything
// looks at it: a body that is too large is refused as such whatever is in it.
func (r *request) readBody(w *writer, within time.Duration) error {
	if r.ContentLength == 0 {
		return nil
	}
	limit := r.route.bodyLimit
	if r.ContentLength > int64(limit) {
		w.Header().Set("Connection", "close")
		r.drain()
		return tooLarge(limit)
	}
	var err error
	r.body, err = io.ReadAll(http.MaxBytesReader(w.ResponseWriter, r.Body, int64(limit)))
	var over *http.MaxBytesError
	switch {
	case err == nil:
		w.setReadDeadline(time.Time{})
		return nil
	case errors.As(err, &over):
		r.drain()
		return tooLarge(limit)
	default:
		w.Header().Set("Connection", "close")
		return fleet.Wrap(fleet.CodeInvalidArgument, err, "the body could not be read").
			With(fleet.DetailLimit, "complete within "+within.String())
	}
}

// drainLimit bounds what is read of a body that is refused already.
const drainLimit = 8 << 20

// drain takes in a refused body, up to a limit and the read deadline: a client
// whose writing is cut off sees a reset connection instead of the refusal.
func (r *request) drain() {
	_, _ = io.CopyN(io.Discard, r.Body, drainLimit) // what is missing is not wanted
}

func tooLarge(limit int) error {
	return fleet.Errorf(fleet.CodePayloadTooLarge, "the body has more than %d bytes", limit).
		With(fleet.DetailLimit, strconv.Itoa(limit)+" bytes")
}

func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-ID"); requestIDRule.MatchString(id) {
		return id
	}
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return "req_" + hex.EncodeToString(raw[:])
}

func (s *Server) panicked(w *writer, r *request, v any) {
	if v == http.ErrAbortHandler { //nolint:errorlint,err113 // a panic value, compared as net/http does
		panic(v)
	}
	s.log.Error("panic", slog.Any("value", v), slog.String("request_id", r.id), slog.String("stack", string(debug.Stack())))
	if w.status != 0 {
		panic(http.ErrAbortHandler) // the answer has begun and cannot be taken back
	}
	s.writeError(w, r, fleet.Errorf(fleet.CodeInternal, "internal error"))
}

// writer remembers what was answered.
type writer struct {
	http.ResponseWriter
	status       int
	stream       bool
	writeTimeout time.Duration // restarts the write deadline at the first byte; zero leaves it
}

// WriteHeader implements http.ResponseWriter.
func (w *writer) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		if w.writeTimeout > 0 {
			w.setWriteDeadline(time.Now().Add(w.writeTimeout))
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController through.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// setReadDeadline has no effect on writers without deadlines, in tests.
func (w *writer) setReadDeadline(t time.Time) {
	_ = http.NewResponseController(w.ResponseWriter).SetReadDeadline(t)
}

// setWriteDeadline has no effect on writers without deadlines, in tests.
func (w *writer) setWriteDeadline(t time.Time) {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(t)
}

// clientGone is whether an error comes from the caller having left.
func clientGone(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Canceled)
}
