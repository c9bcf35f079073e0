package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
)

const (
	readyTimeout = 2 * time.Second
	maxCheckText = 200
)

// serverRoutes answers for the server itself.
type serverRoutes struct{ *Server }

func (s serverRoutes) version(w http.ResponseWriter, _ *web.Request) error {
	web.WriteJSON(w, http.StatusOK, gen.Version{Service: "fuse-orchestrator", Version: s.cfg.Version})
	return nil
}

func (s serverRoutes) health(w http.ResponseWriter, _ *web.Request) error {
	web.WriteJSON(w, http.StatusOK, gen.Health{Status: "ok"})
	return nil
}

// ready runs the checks one after the other; each answers at once.
func (s serverRoutes) ready(w http.ResponseWriter, r *web.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	doc := gen.Ready{Status: "ready", Checks: make(map[string]string, len(s.cfg.Ready))}
	status := http.StatusOK
	for _, check := range s.cfg.Ready {
		text := check.ok()
		if err := check.Run(ctx); err != nil {
			text, doc.Status, status = checkText(err), "not_ready", http.StatusServiceUnavailable
			w.Header().Set("Retry-After", "1")
		}
		doc.Checks[check.Name] = text
	}
	web.WriteJSON(w, status, doc)
	return nil
}

// ok is the text of a check that found nothing wrong.
func (c Check) ok() string {
	if c.Note != nil {
		return cmp.Or(c.Note(), "ok")
	}
	return "ok"
}

// checkText says why a check failed. Anybody may ask, so only what was written
// for callers is told.
func checkText(err error) string {
	var fe *fleet.Error
	if !errors.As(err, &fe) {
		return "not ok"
	}
	return fe.Message[:min(len(fe.Message), maxCheckText)]
}

func (s serverRoutes) metrics(w http.ResponseWriter, r *web.Request) error {
	s.cfg.MetricsHandler.ServeHTTP(w, r.Request)
	return nil
}

func (s serverRoutes) openAPI(w http.ResponseWriter, _ *web.Request) error {
	web.WriteRaw(w, http.StatusOK, gen.OpenAPI)
	return nil
}

func (s serverRoutes) login(w http.ResponseWriter, r *web.Request) error {
	var body gen.Login
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	cookie, err := s.cfg.Gate.Login(r.Request, body.Token)
	if err != nil {
		s.refuse(r, fleet.EventAuthFailed)
		return err
	}
	http.SetCookie(w, cookie)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s serverRoutes) logout(w http.ResponseWriter, r *web.Request) error {
	cookie, err := s.cfg.Gate.Logout(r.Request)
	if err != nil {
		return err
	}
	http.SetCookie(w, cookie)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
