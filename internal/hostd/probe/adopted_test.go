package probe

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// A call into a guest that comes before the adoption has ended waits for it, but
// no longer than its caller does, and not for ever.
func TestCallsWaitForTheAdoption(t *testing.T) {
	for name, c := range map[string]struct {
		adopted, patience, want time.Duration
	}{
		"the adoption ends":       {time.Second, time.Minute, time.Second},
		"a VM hangs":              {time.Minute, time.Minute, adoptedWithin},
		"the caller has given up": {time.Minute, 2 * time.Second, 2 * time.Second},
		"it has ended before":     {0, time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, served := New(Config{}), time.Duration(-1)
				began := time.Now()
				path, handler := h.Adopted("/guest", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = time.Since(began) }))
				adopt := func() { h.SetAdopted(); h.SetAdopted() } // again does no harm
				if c.adopted == 0 {
					adopt()
				} else {
					time.AfterFunc(c.adopted, adopt)
				}
				ctx, cancel := context.WithTimeout(t.Context(), c.patience)
				defer cancel()
				handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, path, http.NoBody))
				if path != "/guest" || served != c.want {
					t.Errorf("%s was served after %v, want %v", path, served, c.want)
				}
			})
		})
	}
}
