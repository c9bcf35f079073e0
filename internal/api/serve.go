package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/tracing"
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
	r := &web.Request{Request: hr, ID: requestID(hr), Log: s.log}
	w := &web.Writer{ResponseWriter: rw}
	h := w.Header()
	h.Set("X-Request-ID", r.ID)
	h.Set("Server", "fuse-orchestrator/"+s.cfg.Version)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	label, span := noRoute, tracing.Span{}
	defer func() { // runs last, also when an answer is broken off
		took := time.Since(start)
		if w.Stream {
			took = -1
		}
		done(label, hr.Method, w.Status, took)
		span.SetInt(tracing.Status, w.Status)
		span.End(nil)
		s.log.Debug("request", slog.String("method", hr.Method), slog.String("route", label),
			slog.Int("status", w.Status), slog.Duration("took", took), slog.String("request_id", r.ID))
	}()
	defer func() {
		if v := recover(); v != nil {
			s.panicked(w, r, v)
		}
	}()
	path, param := s.router.Match(hr.URL)
	if path != nil {
		label, r.Item = path.Pattern, path.Item(hr.URL)
		if strings.HasPrefix(label, "/v1/") {
			r.Request, span = s.cfg.Tracer.Serve(hr, "request "+label)
			span.Set(tracing.Method, hr.Method)
			span.Set(tracing.Route, label)
			span.Set(tracing.Request, r.ID)
		}
	}
	r.Param = param
	if err := s.serve(w, r, path); err != nil {
		s.writeError(w, r, err)
	}
}

func (s *Server) serve(w *web.Writer, r *web.Request, p *web.Path) error {
	if r.ContentLength != 0 {
		// Lifted only when all is read: net/http discards what a refused
		// request still sends, and that must not take for ever.
		w.SetReadDeadline(time.Now().Add(s.readTimeout))
	}
	if p == nil {
		if err := s.admit(r, web.ByNobody); err != nil {
			return err
		}
		return fleet.Errorf(fleet.CodeRouteNotFound, "there is nothing at this path").
			With(fleet.DetailRemedy, "/openapi.json lists what there is")
	}
	rt := p.Methods[r.Method]
	if rt == nil {
		if err := s.admit(r, web.ByNobody); err != nil {
			return err
		}
		w.Header().Set("Allow", p.Allow)
		return fleet.Errorf(fleet.CodeMethodNotAllowed, "this path does not take %.16s", r.Method).With(fleet.DetailLimit, p.Allow)
	}
	r.Route = rt
	if err := s.admit(r, rt.Access); err != nil {
		return err
	}
	if rt.Access == web.ByToken {
		s.whileLeading(w, r)
	}
	if err := allow(r); err != nil {
		return err
	}
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil && rt.Access != web.ByAnyone {
		// What cannot be read would be as if it were not there, and what is asked
		// for then more than was meant.
		return fleet.Errorf(fleet.CodeInvalidArgument, "the query cannot be read").
			With(fleet.DetailScope, "query").With(fleet.DetailRemedy, "join its parts with & and percent-encode what is in them")
	}
	if rt.BodyLimit > 0 {
		if err := r.ReadBody(w, s.readTimeout); err != nil {
			return err
		}
	}
	if err := s.reveal(r); err != nil { // not before the body, which may take its time
		return err
	}
	if rt.Slow {
		w.WriteTimeout = s.cfg.WriteTimeout
		w.SetWriteDeadline(time.Time{})
	}
	return rt.Handle(w, r)
}

// admit checks address and token and puts the principal into the context.
func (s *Server) admit(r *web.Request, a web.Access) error {
	if a == web.ByAnyone || a == web.ByLocal && auth.LocalName(r.Request) == nil {
		return nil
	}
	if err := s.cfg.Gate.CheckAddress(r.Request); err != nil {
		s.refuse(r, fleet.EventIPRejected)
		return err
	}
	if a == web.ByNobody {
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
func (s *Server) refuse(r *web.Request, eventType string) {
	ev, ok := s.reporter.Report(eventType, r.Request, r.ID)
	if !ok {
		return
	}
	s.log.Warn("request refused", slog.String("type", eventType), slog.String("remote", r.RemoteAddr),
		slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.String("request_id", r.ID))
	select {
	case s.refused <- ev:
	default:
	}
}

func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-ID"); requestIDRule.MatchString(id) {
		return id
	}
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return "req_" + hex.EncodeToString(raw[:])
}

func (s *Server) panicked(w *web.Writer, r *web.Request, v any) {
	if v == http.ErrAbortHandler { //nolint:errorlint,err113 // a panic value, compared as net/http does
		panic(v)
	}
	s.log.Error("panic", slog.Any("value", v), slog.String("request_id", r.ID), slog.String("stack", string(debug.Stack())))
	if w.Status != 0 {
		panic(http.ErrAbortHandler) // the answer has begun and cannot be taken back
	}
	s.writeError(w, r, fleet.Errorf(fleet.CodeInternal, "internal error"))
}

// clientGone is whether an error comes from the caller having left.
func clientGone(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Canceled)
}
