package probe

import (
	"context"
	"net/http"
	"time"
)

// adoptedWithin bounds how long a call into a guest waits for the adoption: a VM
// that hangs must not hold up those beside it for long.
const adoptedWithin = 10 * time.Second

// SetAdopted says that listings can be believed from now on.
func (h *Prober) SetAdopted() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.adopted {
		h.adopted = true
		close(h.held)
	}
}

// Adopted has calls into guests wait until the adoption that follows the start
// has ended: a VM that runs is not refused as one that does not yet.
func (h *Prober) Adopted(path string, next http.Handler) (string, http.Handler) {
	return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.awaitAdopted(r.Context())
		next.ServeHTTP(w, r)
	})
}

func (h *Prober) awaitAdopted(ctx context.Context) {
	limit := time.NewTimer(adoptedWithin)
	defer limit.Stop()
	select {
	case <-h.held:
	case <-limit.C:
	case <-ctx.Done():
	}
}
